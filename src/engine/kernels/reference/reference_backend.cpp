#include "engine/kernels/reference/reference_backend.h"

#include <cstring>
#include <new>
#include <vector>

#include "common/error.h"
#include "common/units.h"
#include "engine/kernels/host_selection.h"
#include "engine/kernels/reference/operations.h"

namespace spark::engine {
namespace {

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }

  void* allocate(size_t bytes, const std::string& purpose) override {
    try {
      // Lines of 64 bytes, so that a SIMD test may share the buffers.
      blocks_.emplace_back(bytes / sizeof(Line) + 1);
    } catch (const std::bad_alloc&) {
      throw Error("no memory for " + format_bytes(bytes) + " of " + purpose, "reference backend",
                  "lower the number of sequences, the context or the rows of a step");
    }
    return blocks_.back().data();
  }
  void upload(void* to, const void* from_host, size_t bytes) override { std::memcpy(to, from_host, bytes); }
  void download(void* to_host, const void* from, size_t bytes) override { std::memcpy(to_host, from, bytes); }

  Weight place(const Weight& host) override { return host; }
  ExpertBank place_experts(std::span<const ExpertWeights> host) override {
    return {.experts = {host.begin(), host.end()}};
  }
  bool sums_in_double() const override { return true; }
  void run_recorded(uint64_t, const std::function<void()>& body) override { body(); }

  void quantise(const QuantiseArgs& args) override { reference::quantise(args); }
  void linear(const LinearArgs& args) override { reference::linear(args); }
  void grouped_linear(const GroupedLinearArgs& args) override { reference::grouped_linear(args); }
  void rms_norm(const RmsNormArgs& args) override { reference::rms_norm(args); }

  void embed(const EmbedArgs& args) override { reference::embed(args); }
  void mhc_mix(const MhcMixArgs& args) override { reference::mhc_mix(args); }
  void mhc_collapse(const MhcCollapseArgs& args) override { reference::mhc_collapse(args); }
  void mhc_expand(const MhcExpandArgs& args) override { reference::mhc_expand(args); }
  void stream_mean(const StreamMeanArgs& args) override { reference::stream_mean(args); }
  void gather_rows(const GatherRowsArgs& args) override { reference::gather_rows(args); }
  void engram_dequantise(const EngramDequantiseArgs& args) override { reference::engram_dequantise(args); }
  void engram_inject(const EngramInjectArgs& args) override { reference::engram_inject(args); }

  void rope_angles(const RopeAnglesArgs& args) override { reference::rope_angles(args); }
  void rope(const RopeArgs& args) override { reference::rope(args); }
  void window_write(const WindowWriteArgs& args) override { reference::window_write(args); }
  void pool_pairs(const PoolPairsArgs& args) override { reference::pool_pairs(args); }
  void entry_write(const EntryWriteArgs& args) override { reference::entry_write(args); }
  void sparse_attention(const SparseAttentionArgs& args) override { reference::sparse_attention(args); }

  void index_query(const IndexQueryArgs& args) override { reference::index_query(args); }
  void index_select(const IndexSelectArgs& args) override { reference::index_select(args); }

  void route(const RouteArgs& args) override { reference::route(args); }
  void experts(const ExpertsArgs& args) override { reference::experts(args); }

  void draft(const DraftArgs& args) override { reference::draft(args); }

  void select(const SelectArgs& args) override { select_on_host(args); }
  void verify_drafts(const VerifyArgs& args) override { verify_on_host(args); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64] = {};
  };
  std::vector<std::vector<Line>> blocks_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace spark::engine
