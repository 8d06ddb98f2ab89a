// Down of a prompt's rows.
//
// An item's rows lie in shared memory as FP16; a warp takes one set of 32 output channels after the other and
// streams their weights through a ring of its own. Blocks have equal runs of units, a unit being an item and
// as many sets of 32 channels as a block has warps.
#include "engine/kernels/cuda/sm90/experts_prefill.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kSlots = 4;
constexpr int kStageBytes = fp4_stage_bytes(1);  // 64 columns
constexpr int kSlotBytes = 2 * kStageBytes;
constexpr int kOutStride = kDownChannels + 8;  // BF16; rows begin in different banks, 16-byte aligned

struct PrefillDownParams {
  const uint8_t* stages;
  size_t expert_bytes;
  int hidden;
  int double_blocks;  // 64 columns of the width
  int steps;          // 128
  int channel_groups;
  int sets;  // of kItemWarps channel groups
  int codes_stride;
  int row_bytes;
  // Where things lie in shared memory.
  int rings_at;
  int scales_at;  // [block][row]
  int outputs_at;
  int barriers_at;
  int destinations_at;
  PrefillExperts work;
};

size_t lay_out(PrefillDownParams& p) {
  int64_t at = 0;
  const auto take = [&](int& place, int64_t size) {
    place = static_cast<int>(at);
    at = round_up(at + size, 128);
  };
  take(p.rings_at, int64_t{kItemWarps} * kSlots * kSlotBytes);
  int rows_at = 0;
  take(rows_at, int64_t{kPrefillItemRows} * p.row_bytes);
  take(p.scales_at, int64_t{p.steps} * 4 * kPrefillItemRows * 4);
  take(p.outputs_at, int64_t{kItemWarps} * kPrefillItemRows * kOutStride * 2);
  take(p.barriers_at, int64_t{kItemWarps} * kSlots * 8);
  take(p.destinations_at, int64_t{kPrefillItemRows} * 4);
  return static_cast<size_t>(at);
}
__host__ __device__ constexpr int rows_at(const PrefillDownParams& p) {
  return p.rings_at + kItemWarps * kSlots * kSlotBytes;
}
static_assert(kItemWarps * kSlots * kSlotBytes % 128 == 0);

// A warp's weights, unit after unit of the block's run without a gap.
class DownRing {
 public:
  __device__ __forceinline__ DownRing(const PrefillDownParams& p, uint8_t* shared, int unit, int last)
      : p_(p),
        warp_(static_cast<int>(threadIdx.x >> 5)),
        ring_(shared + p.rings_at + warp_ * kSlots * kSlotBytes),
        arrived_(reinterpret_cast<uint64_t*>(shared + p.barriers_at) + warp_ * kSlots),
        unit_(unit),
        last_(last) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    if (lane < kSlots) barrier_init(arrived_ + lane, 1);
    barrier_init_done();
    __syncwarp();
    aim();
    for (int i = 0; i < kSlots; ++i) fetch(i);
  }
  __device__ __forceinline__ const uint8_t* next() {
    barrier_wait(arrived_ + slot_, parity_);
    return ring_ + slot_ * kSlotBytes;
  }
  // All lanes have read what next() returned.
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch(slot_);
    if (++slot_ == kSlots) slot_ = 0, parity_ ^= 1;
  }

 private:
  // To the next unit in which this warp has channels.
  __device__ __forceinline__ void aim() {
    for (; unit_ < last_; ++unit_) {
      const int item = unit_ / p_.sets;
      const int group = (unit_ - item * p_.sets) * kItemWarps + warp_;
      if (group >= p_.channel_groups) continue;
      from_ = p_.stages + static_cast<size_t>(p_.work.items[item].expert) * p_.expert_bytes +
              static_cast<size_t>(group) * p_.double_blocks * kStageBytes;
      left_ = p_.double_blocks;
      return;
    }
  }
  __device__ __forceinline__ void fetch(int slot) {
    if (left_ == 0) return;
    const uint32_t bytes = static_cast<uint32_t>(min(left_, 2)) * kStageBytes;
    if ((threadIdx.x & 31) == 0) copy_bulk(ring_ + slot * kSlotBytes, from_, bytes, arrived_ + slot);
    from_ += bytes;
    left_ -= min(left_, 2);
    if (left_ == 0) ++unit_, aim();
  }

  const PrefillDownParams& p_;
  const int warp_;
  uint8_t* const ring_;
  uint64_t* const arrived_;
  int unit_;  // that is fetched
  const int last_;
  const uint8_t* from_ = nullptr;
  int left_ = 0;  // stages of it
  int slot_ = 0;
  uint32_t parity_ = 0;
};

// Brings an item's rows in. All threads of the block call, and have used the item before.
__device__ __forceinline__ void bring_rows(const PrefillDownParams& p, uint8_t* shared,
                                           const ExpertItem& item) {
  const int pieces = p.steps * 8;  // 16 columns of a row
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillItemRows * pieces; i += kItemThreads) {
    const int row = i / pieces, piece = i - row * pieces;
    const int64_t position = item.first + min(row, item.count - 1);
    store_sixteen(shared + rows_at(p) + row * p.row_bytes + piece * 32,
                  *reinterpret_cast<const uint4*>(p.work.codes + position * p.codes_stride + piece * 16));
  }
  const int blocks = p.steps * 4;
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillItemRows * blocks; i += kItemThreads) {
    const int row = i / blocks, block = i - row * blocks;
    const int64_t position = item.first + min(row, item.count - 1);
    reinterpret_cast<float*>(shared + p.scales_at)[block * kPrefillItemRows + row] =
        item_scale(p.work.scales[position * (p.codes_stride / 32) + block]);
  }
  if (threadIdx.x < kPrefillItemRows) {
    const int row = static_cast<int>(threadIdx.x);
    reinterpret_cast<int32_t*>(shared + p.destinations_at)[row] =
        row < item.count ? p.work.destination[item.first + row] : -1;
  }
}

__global__ void __launch_bounds__(kItemThreads, 1)
    prefill_down_kernel(const __grid_constant__ PrefillDownParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, shared);
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int g = lane >> 2, t = lane & 3;
  wait_for_inputs();
  const int64_t units = static_cast<int64_t>(*p.work.item_count) * p.sets;
  const int first = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int last = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  DownRing ring(p, shared, first, last);
  uint16_t* const outputs =
      reinterpret_cast<uint16_t*>(shared + p.outputs_at) + warp * kPrefillItemRows * kOutStride;
  const int32_t* const destinations = reinterpret_cast<const int32_t*>(shared + p.destinations_at);
  ExpertItem item = {};
  int item_index = -1;
  for (int unit = first; unit < last; ++unit) {
    if (unit / p.sets != item_index) {
      item_index = unit / p.sets;
      item = p.work.items[item_index];
      __syncthreads();
      bring_rows(p, shared, item);
      __syncthreads();
    }
    const int group = (unit - item_index * p.sets) * kItemWarps + warp;
    if (group >= p.channel_groups) continue;
    const int eights = (item.count + 7) >> 3;
    ItemSums sum = {};
    const uint8_t* rows = shared + rows_at(p) + g * p.row_bytes + t * 16;
    const float* scales = reinterpret_cast<const float*>(shared + p.scales_at) + 2 * t;
    for (int step = 0; step < p.steps; ++step) {
      const uint8_t* const at = ring.next();
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        if (s == 1 && 2 * step + 1 == p.double_blocks) break;
        const uint8_t* tiles[kWarpTiles];
        const uint32_t* words[kWarpTiles];
#pragma unroll
        for (int i = 0; i < kWarpTiles; ++i) {
          tiles[i] = at + s * kStageBytes + i * kTileBytes + lane * 16;
          words[i] = reinterpret_cast<const uint32_t*>(at + s * kStageBytes + kWarpTiles * kTileBytes +
                                                       i * kFp4ScaleTileBytes) +
                     g;
        }
        multiply_item(sum[s], tiles, words, rows + s * 128, p.row_bytes, scales + 2 * s * kPrefillItemRows,
                      eights);
      }
      ring.release();
      rows += 256;
      scales += 4 * kPrefillItemRows;
    }
    // Through shared memory, so that a row's channels leave side by side.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kItemEights; ++n) {
#pragma unroll
        for (int q = 0; q < 4; ++q)
          outputs[(n * 8 + 2 * t + (q & 1)) * kOutStride + i * 16 + (q >> 1) * 8 + g] =
              float_to_bf16((sum[0][i][n][q] + sum[1][i][n][q]) * kFp4EmbedScale);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPrefillItemRows / 8; ++i) {
      const int row = i * 8 + (lane >> 2), channel = (lane & 3) * 8;
      const int destination = destinations[row];
      const int64_t to = static_cast<int64_t>(group) * kDownChannels + channel;
      if (destination < 0 || to >= p.hidden) continue;
      *reinterpret_cast<uint4*>(p.work.outputs + static_cast<int64_t>(destination) * p.hidden + to) =
          *reinterpret_cast<const uint4*>(outputs + row * kOutStride + channel);
    }
  }
}

PrefillDownParams down_params(const PreparedExperts& bank) {
  PrefillDownParams p = {};
  p.stages = bank.down;
  p.expert_bytes = static_cast<size_t>(prepared_bytes(Layout::kFp4, bank.hidden, bank.width));
  p.hidden = static_cast<int>(bank.hidden);
  p.double_blocks = static_cast<int>(ceil_div(bank.width, kFp4TileCols));
  p.steps = (p.double_blocks + 1) / 2;
  p.channel_groups = static_cast<int>(ceil_div(bank.hidden, kDownChannels));
  p.sets = static_cast<int>(ceil_div(p.channel_groups, kItemWarps));
  p.codes_stride = static_cast<int>(expert_codes_stride(bank.width));
  p.row_bytes = item_row_bytes(p.steps * 4);
  return p;
}

}  // namespace

void launch_prefill_down(const Launch& on, const PreparedExperts& bank, const PrefillExperts& work) {
  PrefillDownParams p = down_params(bank);
  p.work = work;
  const size_t bytes = lay_out(p);
  launch_kernel(on, prefill_down_kernel, dim3(static_cast<unsigned>(on.device.multiprocessors)), kItemThreads,
                bytes, 1, p);
}

size_t prefill_down_shared_bytes(const PreparedExperts& bank) {
  PrefillDownParams p = down_params(bank);
  return lay_out(p);
}

}  // namespace spark::engine::cuda
