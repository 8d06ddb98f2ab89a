// The backend behind make_cuda_backend: which launch each operation becomes, and which operations wait for
// the next one to go with it. backend.cpp has the main chain of a step, backend_experts.cpp the experts,
// backend_selection.cpp what chooses entries and tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/cuda/devices.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/launch_chain.h"
#include "engine/kernels/cuda/memory.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/products.h"
#include "engine/kernels/cuda/recorder.h"
#include "engine/kernels/cuda/scratch.h"
#include "engine/kernels/cuda/weights.h"

namespace spark::engine::cuda {

class Backend final : public CudaBackend {
 public:
  explicit Backend(const CudaOptions& options);
  ~Backend() override;

  std::string name() const override { return "cuda"; }
  const CudaDeviceInfo& device() const override { return info_; }
  int64_t allocated_bytes() const override { return arena_->reserved_bytes(); }
  int64_t scratch_bytes() const override { return scratch_->allocated_bytes(); }

  // ---- memory ----

  void* allocate(size_t bytes, const std::string& purpose) override {
    return arena_->allocate(bytes, purpose);
  }
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void synchronise() override;
  bool keeps_host(WeightFormat) const override { return false; }
  bool host_memory() const override { return false; }
  Weight place(const Weight& host) override { return store_->place(host); }
  ExpertBank place_experts(std::span<const ExpertWeights> host) override {
    return store_->place_experts(host);
  }
  Weight synthetic_weight(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) override {
    return store_->synthetic(format, rows, cols, seed);
  }
  ExpertBank synthetic_experts(int experts, int64_t hidden, int64_t width, uint64_t seed) override {
    return store_->synthetic_experts(experts, hidden, width, seed);
  }
  int64_t weight_bytes(const Weight& weight) const override { return WeightStore::prepared(weight).bytes; }
  void fill_random(void* to, int64_t bytes, uint64_t seed) override;
  const uint8_t* synthetic_bytes(int64_t bytes, uint64_t seed) override;
  void* native_stream() override;

  // ---- recording ----

  void run_recorded(uint64_t key, const std::function<void()>& body) override;
  double time_graph(const std::function<void()>& body, int repeats, int rounds) override;

  // ---- linear ----

  void quantise(const QuantiseArgs& args) override;
  void linear(const LinearArgs& args) override;
  void grouped_linear(const GroupedLinearArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;

  // ---- streams ----

  void embed(const EmbedArgs& args) override;
  void mhc_mix(const MhcMixArgs& args) override;
  void mhc_collapse(const MhcCollapseArgs& args) override;
  void mhc_expand(const MhcExpandArgs& args) override;
  void stream_mean(const StreamMeanArgs& args) override { launch_stream_mean(main(), args); }
  void gather_rows(const GatherRowsArgs& args) override;
  void engram_dequantise(const EngramDequantiseArgs& args) override {
    launch_engram_dequantise(main(), args);
  }
  void engram_inject(const EngramInjectArgs& args) override;

  // ---- attention ----

  void rope_angles(const RopeAnglesArgs& args) override { launch_rope_angles(main(), args); }
  void rope(const RopeArgs& args) override;
  void window_write(const WindowWriteArgs& args) override;
  void pool_pairs(const PoolPairsArgs& args) override;
  void entry_write(const EntryWriteArgs& args) override;
  void sparse_attention(const SparseAttentionArgs& args) override;
  void index_query(const IndexQueryArgs& args) override { launch_index_query(main(), args); }
  void index_select(const IndexSelectArgs& args) override;

  // ---- experts ----

  void route(const RouteArgs& args) override;
  void experts(const ExpertsArgs& args) override;

  // ---- selection ----

  void argmax(const float* logits, int32_t rows, int64_t columns, int32_t* index) override;
  void draft(const DraftArgs& args) override;
  void select(const SelectArgs& args) override;
  void verify_drafts(const VerifyArgs& args) override;

 private:
  ExpertWorkspace expert_workspace(const ScratchSizes& sizes);
  void prefill_experts(const ExpertsArgs& args, const PreparedExperts& bank, const uint16_t* shared);
  SelectWorkspace select_workspace(int64_t rows, int64_t vocab) {
    const ScratchSizes sizes = select_scratch(rows, vocab);
    return {.best = scratch<uint64_t>(Scratch::kSelectBest, sizes),
            .masses = scratch<uint64_t>(Scratch::kSelectMasses, sizes),
            .totals = scratch<uint64_t>(Scratch::kSelectTotals, sizes)};
  }
  static void require_vocabulary(int64_t vocab) {
    if (vocab >= 1 && vocab <= kMaxMassVocabulary) return;
    throw Error("selection among " + std::to_string(vocab) + " tokens", "CUDA backend",
                "masses of at most " + std::to_string(kMaxMassVocabulary) + " tokens add up within 64 bits");
  }
  static void require_streams(int streams) {
    if (streams >= 1 && streams <= 4) return;
    throw Error(std::to_string(streams) + " residual streams", "CUDA backend",
                "the kernels take one to four");
  }
  static void require_four(int streams) {
    if (streams == 4) return;
    throw Error("collapse of " + std::to_string(streams) + " residual streams", "CUDA backend",
                "the kernel takes four");
  }

  // Operations that wait for the next call, which may take them along in its own launch. At most one kind
  // waits (an expansion perhaps with the mix after it); whatever else is launched goes behind it.
  struct Waiting {
    std::optional<QuantiseArgs> quantise;
    std::optional<RmsNormArgs> norm;
    std::optional<RmsNormArgs> second_norm;
    std::optional<LinearArgs> product;  // of the norm's rows
    std::optional<RopeArgs> rope;       // of the product's output, if there is one
    std::optional<RouteArgs> route;
    std::optional<MhcExpandArgs> expand;
    std::optional<MhcMixArgs> mix;
  };

  void flush();

  // A product with the norms before it, the rotation of its output, and a window write.
  void launch_product(const Waiting& waiting, const WindowWriteArgs* window);

  // Notes that the last launch of the main chain writes what `memory` begins.
  void written(const void* memory) { written_[memory] = chain_->last(); }
  // Whether that is complete when the launch that was just taken from the chain starts.
  bool settled_before(const void* memory) const {
    const auto found = written_.find(memory);
    return found == written_.end() || chain_->settled(found->second);
  }

  static bool independent(const RmsNormArgs& first, const RmsNormArgs& second) {
    return second.x != first.y && (first.y == nullptr || second.y != first.y);
  }

  void launch_mix(const MhcMixArgs& args);
  // Whether the coefficients are complete when the launch that was just taken from the chain starts: it, or
  // one before it, has joined them behind a kernel that settles.
  bool mix_settled() const {
    return mix_settles_ && !mix_side_.busy && chain_->last() >= mix_side_.joined_before;
  }

  // Few rows: the coefficients that are made from a collapse's streams are not needed before the next one.
  // They wait until attention, or the router's product, has its place: q-a, q-b and attention each need a
  // multiprocessor's registers and shared memory, and the streams have settled when attention lets go.
  void launch_late_mix() {
    if (!late_mix_) return;
    launch_mix(*std::exchange(late_mix_, std::nullopt));
  }

  // Notes the place in the main chain after which a collapse's rows exist.
  void remember_collapsed(const MhcCollapseArgs& args) {
    if (!options_.side_stream || args.x_q.codes == nullptr) return;
    chain_->note(collapsed_);
    collapsed_codes_ = args.x_q.codes;
  }
  void forget_collapsed(const uint8_t* codes) {
    if (codes == collapsed_codes_) collapsed_codes_ = nullptr;
  }

  // What waits goes first.
  Launch main() {
    flush();
    return chain_->next();
  }
  Launch beside(LaunchChain::Side& side) {
    flush();
    return chain_->beside(side);
  }
  // What runs beside the main chain starts early only for few rows: with more, its many blocks take the room
  // of products that have no weights waiting (2 % of a step of 24 rows, 2.7 of 48).
  static bool starts_early(int rows) { return rows <= kDirectRows; }
  void fork(LaunchChain::Side& side, bool early) {
    flush();
    chain_->fork(side, early);
  }
  void fork_at(LaunchChain::Side& side, const LaunchChain::Place& place, bool early) {
    flush();
    chain_->fork_at(side, place, early);
  }
  void join(LaunchChain::Side& side);
  void join() {
    join(mix_side_);
    join(shared_side_);
  }
  cudaStream_t stream() const { return chain_->stream().get(); }

  cudaGraph_t capture(const std::function<void()>& body);

  template <class T>
  T* scratch(Scratch use, const ScratchSizes& sizes) {
    return scratch_->get<T>(use, sizes);
  }

  CudaOptions options_;
  CudaDeviceInfo info_;
  DeviceLimits limits_;
  std::unique_ptr<LaunchChain> chain_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<ScratchMemory> scratch_;
  Recorder recorder_;
  // The mHC coefficients run on one stream, the shared expert on another, because the experts wait for the
  // latter only.
  LaunchChain::Side mix_side_;
  LaunchChain::Side shared_side_;
  LaunchChain::Place collapsed_;
  const uint8_t* collapsed_codes_ = nullptr;  // the rows that collapsed_ stands for
  Waiting waiting_;
  std::optional<MhcMixArgs> late_mix_;
  bool mix_settles_ = false;  // the last coefficients' launches end with one that settles
  std::unordered_map<const void*, uint64_t> written_;  // memory -> the launch that wrote it last
  const float* pending_pre_ = nullptr;
  uint64_t last_mhc_ = 0;  // the last launch of the main chain that reads coefficients
};

}  // namespace spark::engine::cuda
