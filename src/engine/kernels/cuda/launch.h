// Kernel parameters and the functions that launch them. Included by the .cu files and by the backend; every
// pointer lies in device memory. The arithmetic of each operation is specified in engine/kernels/*.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "common/error.h"
#include "engine/kernels/backend.h"
#include "engine/kernels/cuda/plan/linear_plan.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/plan/work_shapes.h"

namespace spark::engine::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(std::string(what) + ": " + cudaGetErrorString(status), "CUDA",
              status == cudaErrorMemoryAllocation ? "free device memory or load a smaller model" : "");
}

// Where a kernel goes. `dependent`: it may start while its predecessor drains (programmatic dependent
// launch).
struct Launch {
  cudaStream_t stream = nullptr;
  bool dependent = false;
  DeviceLimits device;
};

// Asks for all of the multiprocessor's memory as shared memory, so that the kernels before and after find
// room beside this one's blocks: otherwise the driver sets aside what this one's own need.
template <class Kernel>
void prefer_shared([[maybe_unused]] Kernel kernel) {
#ifndef SPARK_CUDA_EMULATION
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "preferring shared memory");
#endif
}

#ifdef SPARK_CUDA_EMULATION
// On the CPU, thread by thread: see tests/cuda_emulation.
template <class... Parameters, class... Arguments>
void launch_kernel(const Launch& on, void (*kernel)(Parameters...), dim3 grid, int threads,
                   size_t shared_bytes, int cluster, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const emulation::LaunchShape shape = {.grid = {grid.x, grid.y, grid.z},
                                        .block = {static_cast<unsigned>(threads), 1, 1},
                                        .shared_bytes = shared_bytes,
                                        .cluster = static_cast<unsigned>(cluster),
                                        .most_shared_bytes = on.device.shared_bytes,
                                        .warpgroups = on.device.sm90};
  emulation::run_or_record(
      [shape, kernel, values = std::tuple<std::remove_cv_t<Parameters>...>(Parameters(arguments)...)] {
        emulation::run_kernel(shape, [&] { std::apply(kernel, values); });
      });
}
#else
template <class... Parameters, class... Arguments>
void launch_kernel(const Launch& on, void (*kernel)(Parameters...), dim3 grid, int threads,
                   size_t shared_bytes, int cluster, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // The limit of 48 KiB is for static and dynamic shared memory together.
  if (shared_bytes > 32 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "raising a kernel's shared memory");
  }
  if (cluster > 8) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "allowing a large cluster");
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (on.dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = on.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "launching a kernel");
}
#endif

// ---- weights in the kernels' layouts
// --------------------------------------------------------------------------------

enum class Layout : uint8_t {
  kFp8,
  kBf16,
  kPacked,  // 12 bits an element
  kFp4,
  kF32,        // row-major, as in the checkpoint
  kPlainBf16,  // row-major: widths that are no multiple of eight
};

// What Weight::prepared points to (host memory, owned by the backend).
struct PreparedWeight {
  Layout layout = Layout::kFp8;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint8_t* tiles = nullptr;
  const uint8_t* scales = nullptr;  // FP8: UE8M0 [ceil(rows/32)][blocks]; FP4: among the tiles, see Fp4Stages
  // Packed BF16: the exceptions of row n are entries offsets[n] .. offsets[n + 1] - 1: column << 16 | value.
  const uint32_t* exception_offsets = nullptr;
  const uint32_t* exceptions = nullptr;
  uint16_t unpack_scale = 0;  // BF16 bits of 2^base
  int exponent_base = 0;
  int64_t bytes = 0;  // read by one use
};

int64_t prepared_bytes(Layout layout, int64_t rows, int64_t cols);

// Raw checkpoint form -> tiles. `tiles` and the scales lie in zeroed memory of prepared_bytes /
// fp4_scale_bytes.
void launch_prepare_fp8(const Launch& on, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles);
void launch_prepare_bf16(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, uint8_t* tiles);
void launch_prepare_fp4(const Launch& on, const uint8_t* raw, const uint8_t* raw_scales, int64_t rows,
                        int64_t cols, const Fp4Stages& at, int matrix, uint8_t* stages);
void launch_fill_fp4(const Launch& on, uint8_t* to, int64_t bytes, int matrices, uint64_t seed, uint32_t low,
                     uint32_t span);
// Packing: histogram of exponents [257] (256: zeros), then codes, and the exceptions of each row (count, then
// fill).
void launch_count_exponents(const Launch& on, const uint16_t* raw, int64_t elements, uint64_t* histogram);
void launch_count_exceptions(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, int base,
                             uint32_t* counts);
void launch_pack(const Launch& on, const uint16_t* raw, int64_t rows, int64_t cols, int base,
                 const uint32_t* offsets, uint8_t* tiles, uint32_t* exceptions);
// Adds the number of elements whose unpacked value differs from raw to *mismatches.
void launch_verify_pack(const Launch& on, const PreparedWeight& weight, const uint16_t* raw,
                        uint32_t* mismatches);
// Pseudo-random contents in place of a checkpoint: bytes, E4M3 without NaN, UE8M0 in [low, low + span), BF16
// normals.
enum class Fill : uint8_t { kBytes, kE4m3, kUe8m0, kBf16 };
void launch_fill(const Launch& on, Fill kind, void* to, int64_t bytes, uint64_t seed, uint32_t low,
                 uint32_t span);

// ---- linear
// ---------------------------------------------------------------------------------------------------------

constexpr int kLinearThreads = 32 * kLinearWarps;
constexpr int kDirectThreads = 32 * kDirectWarps;
constexpr int kWideThreads = 128 * kWideTeams;

// What the shared expert's last product adds to its sums: the routed experts' outputs.
struct RoutedSum {
  const uint16_t* outputs = nullptr;  // [rows * top_k][out]
  uint64_t* words = nullptr;          // of the experts' launch, to be cleared
  int word_pairs = 0;
  const int32_t* sequence = nullptr;  // of the rows; negative: nothing is written
  int top_k = 0;
  bool early = false;  // the rows are complete before the kernel may start
};

struct StreamGemmParams {
  const uint8_t* tiles = nullptr;
  const uint8_t* scales = nullptr;
  size_t tile_stride = 0;  // bytes of a row tile
  const uint8_t* x_codes = nullptr;
  const uint8_t* x_scales = nullptr;
  const uint16_t* x = nullptr;         // with FP8 activations: quantised on the way instead of x_codes
  uint8_t* quantised_codes = nullptr;  // where that quantised form goes, for others to read
  uint8_t* quantised_scales = nullptr;
  int64_t x_stride = 0;  // elements between rows
  int rows = 0;
  int cols = 0;
  int blocks = 0;
  int shard_blocks = 0;
  int row_tiles = 0;  // of the padded weight
  int row_groups = 0;
  int row_warps = 1;
  int shard_warps = 1;
  int warp_shards = 1;   // of a warp of the direct product
  int shard_chunks = 1;  // of a shard
  int cluster = 1;
  uint32_t ring_offset = 0;
  uint32_t reduce_offset = 0;
  uint32_t first_reduce_offset = 0;  // of the wide product, for the first of a warpgroup's two shards
  uint32_t barrier_offset = 0;       // where a kernel's barriers are, if its plan places them
  int ring_slots = 0;                // of the tall product
  bool persistent = false;
  int64_t out = 0;  // weight rows
  // A second weight of the same shape for the same rows, in the same launch.
  const uint8_t* second_tiles = nullptr;
  const uint8_t* second_scales = nullptr;
  uint16_t* second_y = nullptr;
  int rows_per_group = 0;
  int groups = 1;
  uint16_t* y = nullptr;
  float* y_f32 = nullptr;
  int64_t y_stride = 0;
  const uint32_t* exception_offsets = nullptr;
  const uint32_t* exceptions = nullptr;
  uint16_t unpack_scale = 0;
  bool settles = false;  // lets its successors go after its own wait, not before: see LaunchChain
  RoutedSum combine;
};

// Rows of one launch, in the plan's terms. Each lies in a file of its own.
void launch_stream_fp8(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params);
void launch_stream_fp8_bf16(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params);
void launch_stream_bf16(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params);
void launch_stream_packed(const Launch& on, const LinearLaunch& plan, const StreamGemmParams& params);
// The same for weights that fit in shared memory, at most kMaxDirectRows rows.
void launch_direct_fp8(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params);
void launch_direct_combine(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params);
void launch_direct_bf16(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params);
void launch_direct_fp8_bf16(const Launch& on, const DirectLaunch& plan, const StreamGemmParams& params);
// The rows of a prompt, kMinPrefillRows and more, all in one launch: an H200 has the shared memory. Columns
// are whole blocks of 32, groups of rows whole blocks of kPrefillWeightRows.
constexpr int kMinPrefillRows = 256;  // fewer make too few blocks: launches of 48 rows are as fast
constexpr int kPrefillWeightRows = 128;
constexpr int kPrefillStepRows = 128;
void launch_prefill_fp8(const Launch& on, const StreamGemmParams& params);
void launch_prefill_fp8_bf16(const Launch& on, const StreamGemmParams& params);
void launch_prefill_bf16(const Launch& on, const StreamGemmParams& params);
// More rows, on devices with the matrix instruction of a warpgroup. row_warps and shard_warps are warpgroups
// here.
void launch_wide_fp8(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params);
void launch_wide_fp8_bf16(const Launch& on, const WideLaunch& plan, const StreamGemmParams& params);
void launch_tall_packed(const Launch& on, const TallLaunch& plan, const StreamGemmParams& params);
void launch_linear_fp4(const Launch& on, const LinearArgs& args, const PreparedWeight& weight);

// A norm of rows, and the write of their window records, as kernels take them.
struct NormParams {
  const uint16_t* x = nullptr;
  int64_t x_stride = 0;
  int cols = 0;
  float eps = 0;
  const uint16_t* weight = nullptr;
  uint16_t* y = nullptr;
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
};
NormParams norm_params(const RmsNormArgs& args);
struct WindowWriteParams {
  const int32_t* position = nullptr;
  const int32_t* sequence = nullptr;
  int width = 0;
  int pairs = 0;
  const float* cos_sin = nullptr;
  const uint16_t* kv = nullptr;
  PagedCache cache = {};
  uint8_t* records = nullptr;
};
WindowWriteParams window_params(const WindowWriteArgs& args);

// The direct FP8 product of rows that are normalised and quantised, or only quantised, on the way.
struct DirectRowsParams {
  StreamGemmParams product;  // x: BF16 rows of stride x_stride; quantised_*: where the codes go for others
  int product_blocks = 0;
  // Of the norm; null: the rows are only quantised.
  const uint16_t* norm_weight = nullptr;
  float eps = 0;
  // Rotation of the output in heads of `head_width` channels, the last 2 * pairs of them; pairs = 0: none.
  const float* cos_sin = nullptr;
  int head_width = 0;
  int pairs = 0;
  // One block per row more: the second norm, if it has a weight; then its rows' window records, if there is a
  // step.
  NormParams second = {};
  WindowWriteParams window = {};
};
void launch_direct_rows_norm(const Launch& on, const DirectLaunch& plan, const DirectRowsParams& params);
void launch_direct_rows_quantise(const Launch& on, const DirectLaunch& plan, const DirectRowsParams& params);

// y[m][n] = sum_k x[m][(n / rows_per_group) * cols + k] * weight[n][k], for FP32, plain BF16 and FP8
// weights.
struct PlainProduct {
  int64_t out = 0;
  int64_t cols = 0;
  int64_t rows_per_group = 0;
  const uint16_t* x = nullptr;
  int64_t x_stride = 0;
  int rows = 0;
  uint16_t* y = nullptr;
  float* y_f32 = nullptr;
  int64_t y_stride = 0;
};
void launch_linear_plain(const Launch& on, const PreparedWeight& weight, const PlainProduct& product);

// ---- experts
// --------------------------------------------------------------------------------------------------------

struct PreparedExperts {
  int experts = 0;
  int64_t hidden = 0;
  int64_t width = 0;
  // One run of memory per matrix kind, expert after expert.
  const uint8_t* gate_up = nullptr;  // stages of w1 and w3 together
  const uint8_t* down = nullptr;     // stages of w2
};

// Workspace of one launch of at most kMaxLinearRows rows; assignments are (row, slot), sorted by expert.
struct ExpertWorkspace {
  int32_t* item_count = nullptr;
  ExpertItem* items = nullptr;   // [rows * top_k]
  int32_t* item_row = nullptr;   // [rows * top_k][kExpertRows]: row of the step, or -1
  float* item_weight = nullptr;  // [rows * top_k][kExpertRows]: routing weight
  int32_t* destination =
      nullptr;  // [rows * top_k] by assignment: row * top_k + place among the row's experts
  uint32_t* x_scales =
      nullptr;                // [rows][hidden / 128, rounded up]: the rows' scales, four in a word; or null
  uint8_t* codes = nullptr;   // [rows * top_k][padded width]
  uint8_t* scales = nullptr;  // [rows * top_k][padded width / 32]
  // Of the streaming kernel, instead of codes and scales: [rows * top_k][width / 4] words of four codes (low
  // half) and their scale as FP32 (high half), which is never zero. Zero between launches.
  uint64_t* words = nullptr;
  uint16_t* outputs = nullptr;   // BF16 [rows * top_k][hidden] by destination
  uint32_t* arrivals = nullptr;  // [hidden / kDownChannels]: zero between launches
};

// With `route` the router runs first, in the same launch: at most kRoutedPlanRows rows.
constexpr int kRoutedPlanRows = 16;
void launch_expert_plan(const Launch& on, const ExpertsArgs& args, int first_row, int rows, int experts,
                        const ExpertWorkspace& work, const RouteArgs* route = nullptr);
void launch_expert_gate_up(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const PreparedExperts& bank, const ExpertWorkspace& work);
// `shared` is the shared expert's output, BF16 [rows][hidden], of the rows from first_row on.
void launch_expert_down(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                        const PreparedExperts& bank, const ExpertWorkspace& work, const uint16_t* shared);
// Gate/up and down in one launch, where the device has the shared memory and the shapes are regular.
bool expert_stream_fits(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank);
// Whether launch_expert_plan comes first; few rows are sorted in the launch itself.
constexpr int kListedRows = 16;
bool expert_stream_needs_list(const ExpertsArgs& args, int rows);
// Whether the launch leaves multiprocessors for the shared expert's last product beside it, and its units of
// down are cut so that all blocks have about as many. So it is with the rows of one stream and five drafts;
// measured with three to five rows, the product that adds up is faster.
constexpr int kFreeingRows = 6;
constexpr bool expert_stream_frees(int rows) {
  return rows == kFreeingRows;
}
constexpr int kExpertShards = 20;  // of the streaming kernel's sums of gate and up
void launch_expert_stream(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                          const PreparedExperts& bank, const ExpertWorkspace& work);
// Afterwards: a row's experts in ascending order, and `shared` (as of launch_expert_down). Clears the words,
// where there are any.
void launch_expert_combine(const Launch& on, const ExpertsArgs& args, int first_row, int rows,
                           const ExpertWorkspace& work, const uint16_t* shared);
// More rows than kMaxLinearRows, of a prompt: three launches and the combine, with the streaming kernel's
// bits. `fits`: the device has the shared memory, and fewer rows take the streaming kernel.
struct PrefillExperts {
  int32_t* item_count = nullptr;
  ExpertItem* items =
      nullptr;  // [experts + rows * top_k / kPrefillItemRows]: up to kPrefillItemRows rows of one expert
  int32_t* row = nullptr;          // [rows * top_k] by sorted assignment: row of the launch
  float* weight = nullptr;         // routing weight
  int32_t* destination = nullptr;  // row * top_k + place among the row's experts
  uint8_t* codes = nullptr;        // [rows * top_k][expert_codes_stride(width)]
  uint8_t* scales = nullptr;       // [rows * top_k][expert_codes_stride(width) / 32]
  uint16_t* outputs = nullptr;     // BF16 [rows * top_k][hidden] by destination
};
bool prefill_experts_fit(const DeviceLimits& device, const ExpertsArgs& args, const PreparedExperts& bank);
size_t prefill_gate_up_shared_bytes();
size_t prefill_down_shared_bytes(const PreparedExperts& bank);
void launch_prefill_plan(const Launch& on, const ExpertsArgs& args, int first_row, int rows, int experts,
                         const PrefillExperts& work);
void launch_prefill_gate_up(const Launch& on, const ExpertsArgs& args, int first_row,
                            const PreparedExperts& bank, const PrefillExperts& work);
void launch_prefill_down(const Launch& on, const PreparedExperts& bank, const PrefillExperts& work);
// Does nothing but let its successors go after its own wait: when one of them starts, all that was launched
// before this is complete, even if the successor starts early (every other kernel lets its successors go at
// once).
void launch_settle(const Launch& on);
// t = silu(gate) * up with the clamps, quantised per 32: gate and up are BF16 [rows][width].
void launch_swiglu_quantise(const Launch& on, const uint16_t* gate, const uint16_t* up, int rows,
                            int64_t width, float limit, const QuantisedRows& out);
struct RouteParams;
RouteParams route_params(const RouteArgs& args);
void launch_route(const Launch& on, const RouteArgs& args);

// ---- rows and streams
// -----------------------------------------------------------------------------------------------

void launch_quantise(const Launch& on, const QuantiseArgs& args);
void launch_rms_norm(const Launch& on, const RmsNormArgs& args);
// Two norms of the same rows in one launch.
void launch_rms_norms(const Launch& on, const RmsNormArgs& first, const RmsNormArgs& second);
void launch_embed(const Launch& on, const EmbedArgs& args, const PreparedWeight& table);
void launch_gather_rows(const Launch& on, const GatherRowsArgs& args);
// workspace: [rows][kMixOutputs][mhc_mix_chunks]. `early`: the streams are complete when the first launch
// starts.
void launch_mhc_mix(const Launch& partials, const Launch& finish, const MhcMixArgs& args, const float* fn,
                    float* workspace, bool early);
void launch_mhc_collapse(const Launch& on, const MhcCollapseArgs& args);
// Whether expand and collapse fit in one launch.
bool expands_and_collapses(int hidden);
// Expand, then collapse of the new streams, in one launch.
// What is complete when that one starts, and may be read before the wait for y.
struct EarlyStreams {
  bool streams = false;
  bool coefficients = false;
};
void launch_mhc_expand_collapse(const Launch& on, const MhcExpandArgs& expand, const MhcCollapseArgs& args,
                                const EarlyStreams& early);
void launch_mhc_expand(const Launch& on, const MhcExpandArgs& args);
void launch_stream_mean(const Launch& on, const StreamMeanArgs& args);
void launch_engram_dequantise(const Launch& on, const EngramDequantiseArgs& args);
void launch_engram_inject(const Launch& on, const EngramInjectArgs& args);

// ---- attention
// ------------------------------------------------------------------------------------------------------

void launch_rope_angles(const Launch& on, const RopeAnglesArgs& args);
void launch_rope(const Launch& on, const RopeArgs& args);
void launch_window_write(const Launch& on, const WindowWriteArgs& args);
void launch_rope_and_window_write(const Launch& on, const RopeArgs& rope, const WindowWriteArgs& args);
void launch_pool_pairs(const Launch& pool, const Launch& store, const PoolPairsArgs& args);
void launch_entry_write(const Launch& on, const EntryWriteArgs& args);
// What is known to be complete when the kernel starts and may be read before it waits: rows and block
// tables always are (only transfers write them).
struct EarlyRecords {
  bool window = false;      // records of positions before the sequence's first row of this step
  bool all_window = false;  // all window records
  bool selected = false;    // the selection and the records that it names
};
// Lets its successors go after its own wait: what came before its predecessor is complete when they start.
void launch_sparse_attention(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early);

// ---- indexer
// --------------------------------------------------------------------------------------------------------

// One launch takes rows row_begin .. row_end - 1 of the step; workspace rows count from row_begin.
struct IndexWorkspace {
  int row_begin = 0;
  int row_end = 0;
  uint16_t* scores = nullptr;      // [row_end - row_begin][stride]
  uint16_t* block_best = nullptr;  // [row_end - row_begin][block_stride]
  int64_t stride = 0;
  int64_t block_stride = 0;
};
void launch_index_query(const Launch& on, const IndexQueryArgs& args);
void launch_index_scores(const Launch& on, const IndexSelectArgs& args, const IndexWorkspace& work,
                         bool restricted);
void launch_index_select(const Launch& on, const IndexSelectArgs& args, const IndexWorkspace& work);

// ---- selection
// ------------------------------------------------------------------------------------------------------

// One place of the draft blocks: m = Markov rows of the previous tokens, BF16 [rows][rank]; then, given the
// product of m and the Markov head (FP32 [rows][vocab]), the drafts and confidences. best:
// [rows][kArgmaxPieces].
void launch_draft_gather(const Launch& on, const DraftArgs& args, int place, const PreparedWeight& embed,
                         uint16_t* m);
void launch_draft_pick(const Launch& pieces, const Launch& finish, const DraftArgs& args, int place,
                       const float* product, const PreparedWeight& confidence_proj, const uint16_t* m,
                       uint64_t* best);

// Memory of a selection of so many rows: see launch_select and launch_verify.
struct SelectWorkspace {
  uint64_t* best = nullptr;    // [rows][kSelectPieces]
  uint64_t* masses = nullptr;  // [rows][vocab]
  uint64_t* totals = nullptr;  // [rows]
};
// Rows: args.rows.
void launch_select(const Launch& on, const SelectArgs& args, const SelectWorkspace& work);
// Rows: args.blocks * (2 * args.max_drafts + 1), targets first.
void launch_verify(const Launch& on, const VerifyArgs& args, const SelectWorkspace& work);

// best[m] = index of the largest logit of a row, the lowest on ties; a NaN never wins. workspace:
// [rows][kArgmaxPieces].
void launch_argmax(const Launch& on, const float* logits, int rows, int64_t vocabulary, int64_t stride,
                   int32_t* best, uint64_t* workspace);

}  // namespace spark::engine::cuda
