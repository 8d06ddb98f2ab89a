#include "timed_backend.h"

#include <chrono>
#include <set>

namespace spark::engine {
namespace {

double bytes_of(const Weight& w) {
  const auto n = static_cast<double>(w.rows * w.cols);
  switch (w.format) {
    case WeightFormat::kBf16:
      return 2 * n;
    case WeightFormat::kF32:
      return 4 * n;
    case WeightFormat::kFp8:
      return n + n / 1024;
    case WeightFormat::kFp4:
      return n / 2 + n / 32;
  }
  return 0;
}
double bytes_of(const ExpertWeights& e) {
  return bytes_of(e.w1) + bytes_of(e.w3) + bytes_of(e.w2);
}

const char* linear_name(const Weight& w) {
  switch (w.format) {
    case WeightFormat::kBf16:
      return "linear bf16";
    case WeightFormat::kF32:
      return "linear f32";
    case WeightFormat::kFp8:
      return "linear fp8";
    case WeightFormat::kFp4:
      return "linear fp4";
  }
  return "";
}

class TimedBackend final : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> inner, OperationTimes& times)
      : inner_(std::move(inner)), times_(times) {}

  std::string name() const override { return inner_->name(); }
  void* allocate(size_t bytes, const std::string& purpose) override {
    return inner_->allocate(bytes, purpose);
  }
  void upload(void* to, const void* from, size_t bytes) override { inner_->upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { inner_->download(to, from, bytes); }
  Weight place(const Weight& host) override { return inner_->place(host); }
  ExpertBank place_experts(std::span<const ExpertWeights> host) override {
    return inner_->place_experts(host);
  }
  bool sums_in_double() const override { return inner_->sums_in_double(); }
  void finish() override { inner_->finish(); }
  void round_partials(const RoundPartialsArgs& a) override {
    timed("round_partials", 0, [&] { inner_->round_partials(a); });
  }
  void run_recorded(uint64_t key, const std::function<void()>& body) override {
    inner_->run_recorded(key, body);
  }

  void quantise(const QuantiseArgs& a) override {
    timed("quantise", 0, [&] { inner_->quantise(a); });
  }
  void linear(const LinearArgs& a) override {
    timed(linear_name(*a.weight), bytes_of(*a.weight), [&] { inner_->linear(a); });
  }
  void grouped_linear(const GroupedLinearArgs& a) override {
    timed("grouped_linear", bytes_of(*a.weight), [&] { inner_->grouped_linear(a); });
  }
  void rms_norm(const RmsNormArgs& a) override {
    timed("rms_norm", 0, [&] { inner_->rms_norm(a); });
  }
  void embed(const EmbedArgs& a) override {
    timed("embed", 0, [&] { inner_->embed(a); });
  }
  void mhc_mix(const MhcMixArgs& a) override {
    timed("mhc_mix", bytes_of(*a.fn), [&] { inner_->mhc_mix(a); });
  }
  void mhc_collapse(const MhcCollapseArgs& a) override {
    timed("mhc_collapse", 0, [&] { inner_->mhc_collapse(a); });
  }
  void mhc_expand(const MhcExpandArgs& a) override {
    timed("mhc_expand", 0, [&] { inner_->mhc_expand(a); });
  }
  void stream_mean(const StreamMeanArgs& a) override {
    timed("stream_mean", 0, [&] { inner_->stream_mean(a); });
  }
  void gather_rows(const GatherRowsArgs& a) override {
    timed("gather_rows", 0, [&] { inner_->gather_rows(a); });
  }
  void engram_dequantise(const EngramDequantiseArgs& a) override {
    timed("engram_dequantise", 0, [&] { inner_->engram_dequantise(a); });
  }
  void engram_inject(const EngramInjectArgs& a) override {
    timed("engram_inject", 0, [&] { inner_->engram_inject(a); });
  }
  void rope_angles(const RopeAnglesArgs& a) override {
    timed("rope_angles", 0, [&] { inner_->rope_angles(a); });
  }
  void rope(const RopeArgs& a) override {
    timed("rope", 0, [&] { inner_->rope(a); });
  }
  void window_write(const WindowWriteArgs& a) override {
    timed("window_write", 0, [&] { inner_->window_write(a); });
  }
  void pool_pairs(const PoolPairsArgs& a) override {
    timed("pool_pairs", 0, [&] { inner_->pool_pairs(a); });
  }
  void entry_write(const EntryWriteArgs& a) override {
    timed("entry_write", 0, [&] { inner_->entry_write(a); });
  }
  void sparse_attention(const SparseAttentionArgs& a) override {
    timed("sparse_attention", 0, [&] { inner_->sparse_attention(a); });
  }
  void index_query(const IndexQueryArgs& a) override {
    timed("index_query", 0, [&] { inner_->index_query(a); });
  }
  void index_select(const IndexSelectArgs& a) override {
    timed("index_select", 0, [&] { inner_->index_select(a); });
  }
  void route(const RouteArgs& a) override {
    timed("route", 0, [&] { inner_->route(a); });
  }
  void experts(const ExpertsArgs& a) override {
    inner_->finish();
    std::set<int32_t> used(a.ids, a.ids + int64_t{a.step.rows} * a.top_k);
    double bytes = bytes_of(*a.shared);
    for (const int32_t id : used) bytes += bytes_of(a.bank->experts[static_cast<size_t>(id)]);
    timed("experts", bytes, [&] { inner_->experts(a); });
  }
  void draft(const DraftArgs& a) override {
    timed("draft", bytes_of(*a.head), [&] { inner_->draft(a); });
  }
  void select(const SelectArgs& a) override {
    timed("select", 0, [&] { inner_->select(a); });
  }
  void verify_drafts(const VerifyArgs& a) override {
    timed("verify drafts", 0, [&] { inner_->verify_drafts(a); });
  }

 private:
  template <typename F>
  void timed(const char* name, double bytes, const F& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    inner_->finish();  // each operation on its own, also where the backend runs several together
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    OperationTime& time = times_[name];
    ++time.calls;
    time.seconds += elapsed.count();
    time.weight_bytes += bytes;
  }

  std::unique_ptr<Backend> inner_;
  OperationTimes& times_;
};

}  // namespace

std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend> inner, OperationTimes& times) {
  return std::make_unique<TimedBackend>(std::move(inner), times);
}

}  // namespace spark::engine
