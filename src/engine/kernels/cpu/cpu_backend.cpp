#include "engine/kernels/cpu/cpu_backend.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "common/error.h"
#include "common/units.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/simd_targets.h"
#include "engine/kernels/cpu/tile_unit.h"
#include "engine/kernels/host_selection.h"

namespace spark::engine {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options) : ctx_(options.threads, options.fork_ns) {}

  std::string name() const override {
    const int threads = ctx_.pool.threads();
    return std::string("cpu, ") + cpu::simd_name() + (cpu::tile_unit_usable() ? " and AMX, " : ", ") +
           std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  }

  void* allocate(size_t bytes, const std::string& purpose) override {
    // calloc gives large blocks as fresh pages, which cost nothing until they are used.
    void* memory = std::calloc(bytes / cpu::kAlignment + 2, cpu::kAlignment);
    if (memory == nullptr) {
      throw Error("no memory for " + format_bytes(bytes) + " of " + purpose, "CPU backend",
                  "lower the number of sequences, the context or the rows of a step");
    }
    blocks_.emplace_back(memory);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t aligned = (address + cpu::kAlignment - 1) / cpu::kAlignment * cpu::kAlignment;
    return static_cast<char*>(memory) + (aligned - address);
  }
  void upload(void* to, const void* from_host, size_t bytes) override {
    ctx_.rows.run();
    if (bytes > 0) std::memcpy(to, from_host, bytes);
  }
  void download(void* to_host, const void* from, size_t bytes) override {
    ctx_.rows.run();
    if (bytes > 0) std::memcpy(to_host, from, bytes);
  }
  void finish() override { ctx_.rows.run(); }

  Weight place(const Weight& host) override {
    if (host.empty()) return host;
    auto placed = std::make_unique<cpu::PlacedWeight>();
    placed->host = host;
    try {
      if (host.format != WeightFormat::kBf16) cpu::pack_weight(host, placed->packed);
    } catch (const std::bad_alloc&) {
      throw Error(
          "no memory for a weight of " + std::to_string(host.rows) + " x " + std::to_string(host.cols),
          "CPU backend", "use a machine with more memory: weights are kept in a second layout");
    }
    Weight result = host;
    result.prepared = placed.get();
    weights_.push_back(std::move(placed));
    return result;
  }
  ExpertBank place_experts(std::span<const ExpertWeights> host) override {
    ExpertBank bank;
    bank.experts.reserve(host.size());
    for (const ExpertWeights& expert : host)
      bank.experts.push_back({place(expert.w1), place(expert.w3), place(expert.w2)});
    return bank;
  }
  bool keeps_host(WeightFormat format) const override { return format == WeightFormat::kBf16; }
  bool sums_in_double() const override { return true; }
  void run_recorded(uint64_t, const std::function<void()>& body) override {
    body();
    ctx_.rows.run();
  }

  void quantise(const QuantiseArgs& args) override { cpu::quantise(ctx_, args); }
  void linear(const LinearArgs& args) override { cpu::linear(ctx_, args); }
  void grouped_linear(const GroupedLinearArgs& args) override { cpu::grouped_linear(ctx_, args); }
  void rms_norm(const RmsNormArgs& args) override { cpu::rms_norm(ctx_, args); }
  void round_partials(const RoundPartialsArgs& args) override { cpu::round_partials(ctx_, args); }

  void embed(const EmbedArgs& args) override { cpu::embed(ctx_, args); }
  void mhc_mix(const MhcMixArgs& args) override { cpu::mhc_mix(ctx_, args); }
  void mhc_collapse(const MhcCollapseArgs& args) override { cpu::mhc_collapse(ctx_, args); }
  void mhc_expand(const MhcExpandArgs& args) override { cpu::mhc_expand(ctx_, args); }
  void stream_mean(const StreamMeanArgs& args) override { cpu::stream_mean(ctx_, args); }
  void gather_rows(const GatherRowsArgs& args) override { cpu::gather_rows(ctx_, args); }
  void engram_dequantise(const EngramDequantiseArgs& args) override { cpu::engram_dequantise(ctx_, args); }
  void engram_inject(const EngramInjectArgs& args) override { cpu::engram_inject(ctx_, args); }

  void rope_angles(const RopeAnglesArgs& args) override { cpu::rope_angles(ctx_, args); }
  void rope(const RopeArgs& args) override { cpu::rope(ctx_, args); }
  void window_write(const WindowWriteArgs& args) override { cpu::window_write(ctx_, args); }
  void pool_pairs(const PoolPairsArgs& args) override { cpu::pool_pairs(ctx_, args); }
  void entry_write(const EntryWriteArgs& args) override { cpu::entry_write(ctx_, args); }
  void sparse_attention(const SparseAttentionArgs& args) override { cpu::sparse_attention(ctx_, args); }

  void index_query(const IndexQueryArgs& args) override { cpu::index_query(ctx_, args); }
  void index_select(const IndexSelectArgs& args) override { cpu::index_select(ctx_, args); }

  void route(const RouteArgs& args) override { cpu::route(ctx_, args); }
  void experts(const ExpertsArgs& args) override { cpu::experts(ctx_, args); }

  void draft(const DraftArgs& args) override { cpu::draft(ctx_, args); }

  void select(const SelectArgs& args) override {
    ctx_.rows.run();
    select_on_host(args);
  }
  void verify_drafts(const VerifyArgs& args) override {
    ctx_.rows.run();
    verify_on_host(args);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  cpu::Context ctx_;
  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::vector<std::unique_ptr<cpu::PlacedWeight>> weights_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return make_cpu_backend(CpuOptions{.threads = threads});
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace spark::engine
