// The drafter's head: for each place in the draft blocks, gather the previous token's Markov row, (product
// elsewhere), pick the best biased logit, and take the confidence. All sequences' rows at one place go
// together.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/table.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = 64;

__device__ __forceinline__ bool is_active(const StepRows& step, int row, int place) {
  return step.sequence[row] >= 0 && row - step.first_row[row] == place;
}

__global__ void draft_gather_kernel(StepRows step, int place, TableView table, int rank, const int32_t* draft,
                                    uint16_t* m) {
  launch_dependents();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.x);
  if (!is_active(step, row, place)) return;
  const int64_t previous = place == 0 ? step.token[row] : draft[row - 1];
  for (int i = static_cast<int>(threadIdx.x); i < rank; i += kThreads) {
    const bool known = previous >= 0 && previous < table.rows;
    m[static_cast<int64_t>(row) * rank + i] = known ? table_value(table, previous, i) : uint16_t{0};
  }
}

// Orders by value, then by lower index, as one unsigned number; a NaN comes before everything.
__device__ __forceinline__ uint64_t rank_of(float v, uint32_t index) {
  const uint32_t bits = __float_as_uint(v == 0.0f ? 0.0f : v);
  const uint32_t ordered = v != v ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - index);
}

__device__ __forceinline__ uint64_t block_max(uint64_t v, uint64_t* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, v, offset);
    v = v > other ? v : other;
  }
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) v = v > scratch[i] ? v : scratch[i];
  return v;
}

__global__ void draft_pieces_kernel(StepRows step, int place, const float* base, const float* product,
                                    int64_t vocab, float* logits, uint64_t* best) {
  __shared__ uint64_t scratch[kThreads / 32];
  launch_dependents();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.y);
  if (!is_active(step, row, place)) return;
  const int64_t piece = ceil_div(vocab, kPieces);
  const int64_t first = piece * blockIdx.x;
  const int64_t last = first + piece < vocab ? first + piece : vocab;
  uint64_t v = 0;
  for (int64_t i = first + threadIdx.x; i < last; i += kThreads) {
    const float logit = base[row * vocab + i] + product[row * vocab + i];
    if (logits != nullptr) logits[row * vocab + i] = logit;
    const uint64_t r = rank_of(logit, static_cast<uint32_t>(i));
    v = v > r ? v : r;
  }
  v = block_max(v, scratch);
  if (threadIdx.x == 0) best[static_cast<int64_t>(row) * kPieces + blockIdx.x] = v;
}

__global__ void draft_finish_kernel(StepRows step, int place, const uint64_t* best, const uint16_t* x,
                                    const uint16_t* m, TableView proj, int hidden, int rank, int32_t* draft,
                                    float* confidence) {
  __shared__ uint64_t scratch[kThreads / 32];
  __shared__ float sums[32];
  launch_dependents();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.x);
  if (!is_active(step, row, place)) return;
  const uint64_t v =
      block_max(threadIdx.x < kPieces ? best[static_cast<int64_t>(row) * kPieces + threadIdx.x] : 0, scratch);
  float sum = 0.0f;
  if (!proj.packed && hidden % 8 == 0 && rank % 8 == 0) {
    // Eight channels a thread: in row 0 of a tile they lie in the first and third word of a lane's two parts.
    const int64_t blocks = ceil_div(proj.cols, kTileCols);
#pragma unroll 3
    for (int piece = static_cast<int>(threadIdx.x); piece < (hidden + rank) / 8; piece += kThreads) {
      const int i = piece * 8;
      const uint16_t* values = i < hidden ? x + static_cast<int64_t>(row) * hidden + i
                                          : m + static_cast<int64_t>(row) * rank + i - hidden;
      const uint4 mine = *reinterpret_cast<const uint4*>(values);
      const uint8_t* at = proj.tiles + bf16_tile_offset(0, i, blocks);
      const uint4 first = *reinterpret_cast<const uint4*>(at);
      const uint4 second = *reinterpret_cast<const uint4*>(at + kTileBytes);
      const uint32_t a[4] = {mine.x, mine.y, mine.z, mine.w};
      const uint32_t b[4] = {first.x, first.z, second.x, second.z};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum = fmaf(bf16_low(a[j]), bf16_low(b[j]), sum);
        sum = fmaf(bf16_high(a[j]), bf16_high(b[j]), sum);
      }
    }
    hidden = rank = 0;
  }
  for (int i = static_cast<int>(threadIdx.x); i < hidden + rank; i += kThreads) {
    const uint16_t value = i < hidden ? x[static_cast<int64_t>(row) * hidden + i]
                                      : m[static_cast<int64_t>(row) * rank + i - hidden];
    sum = fmaf(bf16_to_float(value), bf16_to_float(table_value(proj, 0, i)), sum);
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) {
    draft[row] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(v));
    confidence[row] = sum;
  }
}

}  // namespace

void launch_draft_gather(const Launch& on, const DraftArgs& args, int place, const PreparedWeight& embed,
                         uint16_t* m) {
  launch_kernel(on, draft_gather_kernel, dim3(static_cast<unsigned>(args.step.rows)), kThreads, 0, 1,
                args.step, place, table_view(embed), args.rank, args.draft, m);
}

void launch_draft_pick(const Launch& pieces, const Launch& finish, const DraftArgs& args, int place,
                       const float* product, const PreparedWeight& confidence_proj, const uint16_t* m,
                       uint64_t* best) {
  launch_kernel(pieces, draft_pieces_kernel, dim3(kPieces, static_cast<unsigned>(args.step.rows)), kThreads,
                0, 1, args.step, place, args.base, product, int64_t{args.vocab}, args.logits, best);
  launch_kernel(finish, draft_finish_kernel, dim3(static_cast<unsigned>(args.step.rows)), kThreads, 0, 1,
                args.step, place, best, args.x, m, table_view(confidence_proj), args.hidden, args.rank,
                args.draft, args.confidence);
}

}  // namespace spark::engine::cuda
