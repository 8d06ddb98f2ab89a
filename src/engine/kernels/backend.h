// A device: memory, weights in it, and the operations of the forward pass. `engine/forward` is written once
// over this.
//
// An operation is specified by the comment on its argument struct; kernels/reference is that contract in code
// (sums in double, rounded once). Every implementation keeps a row's result independent of the other rows of
// the step, of the number of rows and of the thread count. Calls are asynchronous in order: results are
// visible to later calls, to download() and after finish(). Padding rows (step.sequence[t] < 0) may be
// skipped. Outputs never alias inputs unless the struct says "in place".
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/kernels/attention.h"
#include "engine/kernels/draft.h"
#include "engine/kernels/experts.h"
#include "engine/kernels/index.h"
#include "engine/kernels/linear.h"
#include "engine/kernels/select.h"
#include "engine/kernels/streams.h"
#include "engine/kernels/types.h"
#include "engine/numeric/partial_sums.h"

namespace spark::engine {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;

  // Memory. Allocations are zeroed and live as long as the backend; throws Error when the device has no room.
  virtual void* allocate(size_t bytes, const std::string& purpose) = 0;
  virtual void upload(void* to, const void* from_host, size_t bytes) = 0;
  virtual void download(void* to_host, const void* from, size_t bytes) = 0;  // waits for everything before it

  // Moves a weight that lies in host memory into the device's memory and layout. Host memory of the
  // checkpoint stays mapped for the life of the model, so a CPU backend may keep pointing at it.
  virtual Weight place(const Weight& host) = 0;
  virtual ExpertBank place_experts(std::span<const ExpertWeights> host) = 0;
  // Whether weights of the format, once placed, still point into the host memory they came from.
  virtual bool keeps_host(WeightFormat) const { return true; }
  // Whether the host can read and write the backend's memory.
  virtual bool host_memory() const { return true; }

  // Returns when the host may read what the calls before this one write; for memory that the host can read.
  virtual void finish() {}

  // Whether linear() and experts() can leave sums unrounded (y_f64), for ranks that add up parts of them.
  virtual bool sums_in_double() const { return false; }
  // Rounds what they left, on a rank that is alone. Here for memory that the host can read.
  virtual void round_partials(const RoundPartialsArgs& args) {
    add_partials({&args.x, 1}, args.rows, args.terms, args.cols, args.y);
  }

  // Runs `body`, the operations of one step, which depend on nothing but `key` and the contents of buffers. A
  // device with graphs records them on the first call with a key and replays them later.
  virtual void run_recorded(uint64_t key, const std::function<void()>& body) = 0;

  virtual void quantise(const QuantiseArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void grouped_linear(const GroupedLinearArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void mhc_mix(const MhcMixArgs& args) = 0;
  virtual void mhc_collapse(const MhcCollapseArgs& args) = 0;
  virtual void mhc_expand(const MhcExpandArgs& args) = 0;
  virtual void stream_mean(const StreamMeanArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;
  virtual void engram_dequantise(const EngramDequantiseArgs& args) = 0;
  virtual void engram_inject(const EngramInjectArgs& args) = 0;

  virtual void rope_angles(const RopeAnglesArgs& args) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void window_write(const WindowWriteArgs& args) = 0;
  virtual void pool_pairs(const PoolPairsArgs& args) = 0;
  virtual void entry_write(const EntryWriteArgs& args) = 0;
  virtual void sparse_attention(const SparseAttentionArgs& args) = 0;

  virtual void index_query(const IndexQueryArgs& args) = 0;
  virtual void index_select(const IndexSelectArgs& args) = 0;

  virtual void route(const RouteArgs& args) = 0;
  virtual void experts(const ExpertsArgs& args) = 0;

  virtual void draft(const DraftArgs& args) = 0;

  virtual void select(const SelectArgs& args) = 0;
  virtual void verify_drafts(const VerifyArgs& args) = 0;
};

}  // namespace spark::engine
