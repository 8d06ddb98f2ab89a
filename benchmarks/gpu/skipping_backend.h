// A backend that leaves out some kinds of operations, to see what a step costs without them.
#pragma once

#include <set>
#include <string>

#include "engine/kernels/backend.h"

namespace spark::bench_gpu {

class SkippingBackend final : public engine::Backend {
 public:
  explicit SkippingBackend(engine::Backend& inner) : inner_(inner) {}
  void skip(std::set<std::string> kinds) { skipped_ = std::move(kinds); }

  std::string name() const override { return inner_.name(); }
  void* allocate(size_t bytes, const std::string& purpose) override {
    return inner_.allocate(bytes, purpose);
  }
  void upload(void* to, const void* from, size_t bytes) override { inner_.upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { inner_.download(to, from, bytes); }
  engine::Weight place(const engine::Weight& host) override { return inner_.place(host); }
  engine::ExpertBank place_experts(std::span<const engine::ExpertWeights> host) override {
    return inner_.place_experts(host);
  }
  void run_recorded(uint64_t key, const std::function<void()>& body) override {
    inner_.run_recorded(key, body);
  }

  void quantise(const engine::QuantiseArgs& a) override {
    if (on("casts and norms")) inner_.quantise(a);
  }
  void linear(const engine::LinearArgs& a) override {
    const bool fp8 = a.weight->format == engine::WeightFormat::kFp8;
    if (on(fp8 ? "dense FP8" : a.weight->rows >= 16384 ? "vocabulary head" : "dense BF16")) inner_.linear(a);
  }
  void grouped_linear(const engine::GroupedLinearArgs& a) override {
    if (on("dense FP8")) inner_.grouped_linear(a);
  }
  void rms_norm(const engine::RmsNormArgs& a) override {
    if (on("casts and norms")) inner_.rms_norm(a);
  }
  void embed(const engine::EmbedArgs& a) override { inner_.embed(a); }
  void mhc_mix(const engine::MhcMixArgs& a) override {
    if (on("mHC mix")) inner_.mhc_mix(a);
  }
  void mhc_collapse(const engine::MhcCollapseArgs& a) override {
    if (on("mHC collapse, expand")) inner_.mhc_collapse(a);
  }
  void mhc_expand(const engine::MhcExpandArgs& a) override {
    if (on("mHC collapse, expand")) inner_.mhc_expand(a);
  }
  void stream_mean(const engine::StreamMeanArgs& a) override { inner_.stream_mean(a); }
  void gather_rows(const engine::GatherRowsArgs& a) override { inner_.gather_rows(a); }
  void engram_dequantise(const engine::EngramDequantiseArgs& a) override { inner_.engram_dequantise(a); }
  void engram_inject(const engine::EngramInjectArgs& a) override { inner_.engram_inject(a); }
  void rope_angles(const engine::RopeAnglesArgs& a) override { inner_.rope_angles(a); }
  void rope(const engine::RopeArgs& a) override {
    if (on("rope, cache writes")) inner_.rope(a);
  }
  void window_write(const engine::WindowWriteArgs& a) override {
    if (on("rope, cache writes")) inner_.window_write(a);
  }
  void pool_pairs(const engine::PoolPairsArgs& a) override { inner_.pool_pairs(a); }
  void entry_write(const engine::EntryWriteArgs& a) override {
    if (on("rope, cache writes")) inner_.entry_write(a);
  }
  void sparse_attention(const engine::SparseAttentionArgs& a) override {
    if (on("sparse MLA")) inner_.sparse_attention(a);
  }
  void index_query(const engine::IndexQueryArgs& a) override {
    if (on("indexer")) inner_.index_query(a);
  }
  void index_select(const engine::IndexSelectArgs& a) override {
    if (on("indexer")) inner_.index_select(a);
  }
  void route(const engine::RouteArgs& a) override {
    if (on("route")) inner_.route(a);
  }
  void experts(const engine::ExpertsArgs& a) override {
    if (on("experts")) inner_.experts(a);
  }
  void draft(const engine::DraftArgs& a) override {
    if (on("draft head")) inner_.draft(a);
  }
  void select(const engine::SelectArgs& a) override {
    if (on("select")) inner_.select(a);
  }
  void verify_drafts(const engine::VerifyArgs& a) override {
    if (on("select")) inner_.verify_drafts(a);
  }

 private:
  bool on(const char* kind) const { return skipped_.count(kind) == 0; }

  engine::Backend& inner_;
  std::set<std::string> skipped_;
};

}  // namespace spark::bench_gpu
