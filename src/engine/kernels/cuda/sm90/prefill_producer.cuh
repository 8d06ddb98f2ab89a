// What a prompt's product (prefill_gemm.cuh) multiplies, on its way into shared memory: by one warpgroup,
// through a ring whose slots hold two blocks of 32 columns.
//
// The rows of the step stay as they are, in an order in which four lanes of four rows meet all banks; who
// multiplies converts them. The weights become FP16 or BF16 in the order of operand B (plan/wide_operand.h):
// a warp copies its two tiles of 16 rows, waits for its own copies alone, and converts them.
#pragma once

#include "engine/kernels/cuda/sm90/wgmma.cuh"
#include "engine/kernels/cuda/stream_gemm.cuh"

namespace spark::engine::cuda {

constexpr int kPrefillConsumers = 256, kPrefillProducers = 128;
constexpr int kPrefillThreads = kPrefillConsumers + kPrefillProducers;
// Of the 168 registers that a thread starts with: 2 * 224 + 56 = 3 * 168.
constexpr int kPrefillConsumerRegisters = 224, kPrefillProducerRegisters = 56;
constexpr int kPrefillBlocks = 2;  // of 32 columns of a slot
constexpr int kPrefillTiles = kPrefillWeightRows / kTileRows;
constexpr int kPrefillBlock = kPrefillWeightRows * 64;  // bytes of operand B of a block
constexpr int kPrefillWeightScales = kPrefillWeightRows / 32;

// Shared memory of a format.
template <class Format>
struct PrefillShape {
  static constexpr int kSlots = Format::kCodes ? 6 : Format::kWeightScale ? 5 : 4;
  // Slots whose copies are under way. The others hold operands that wait, or are multiplied.
  static constexpr int kAhead = kSlots / 2;
  static constexpr int kRowBytes = kPrefillBlocks * (Format::kCodes ? 32 : 64);
  static constexpr int kRowsAt = kPrefillBlocks * kPrefillBlock;  // in a slot, behind the operand
  static constexpr int kWeightsAt = kRowsAt + kPrefillStepRows * kRowBytes;
  static constexpr int kScalesAt = kWeightsAt + kPrefillTiles * kPrefillBlocks * Format::kBlockBytes;
  // Behind those of the rows. Then the slot's two barriers: all is there, all has been used.
  static constexpr int kWeightScalesAt =
      kScalesAt + (Format::kCodes ? kPrefillBlocks * kPrefillStepRows * 4 : 0);
  static constexpr int kFullAt = kWeightScalesAt + kPrefillBlocks * kPrefillWeightScales * 4;
  static constexpr int kEmptyAt = kFullAt + 8;
  static constexpr int kSlotBytes = static_cast<int>(round_up(kEmptyAt + 8, 1024));
  static constexpr int kBytes = kSlots * kSlotBytes;
  static_assert(kBytes <= 227 * 1024);
};

// Where piece `piece` of 16 bytes of a row lies among the row's: codes of four neighbours' 32 bytes, or two
// neighbours' 64 bytes of BF16, lie in different banks.
template <class Format>
__device__ __forceinline__ uint32_t prefill_row_place(int row, int piece) {
  return static_cast<uint32_t>(piece ^ (Format::kCodes ? row & 2 : (row & 1) << 2)) << 4;
}

// 128 rows of the step by 128 weight rows, weight rows first.
struct PrefillItem {
  int first_tile, first_row;
  bool second;
};
SPARK_HOST_DEVICE inline int prefill_tile_groups(const StreamGemmParams& p) {
  return (p.row_tiles + kPrefillTiles - 1) / kPrefillTiles;
}
SPARK_HOST_DEVICE inline int prefill_row_groups(const StreamGemmParams& p) {
  return (p.rows + kPrefillStepRows - 1) / kPrefillStepRows;
}
SPARK_HOST_DEVICE inline int prefill_items(const StreamGemmParams& p) {
  return prefill_tile_groups(p) * prefill_row_groups(p) * (p.second_tiles != nullptr ? 2 : 1);
}
__device__ __forceinline__ PrefillItem prefill_item(const StreamGemmParams& p, int index) {
  const int groups = prefill_tile_groups(p), rows = prefill_row_groups(p);
  const int rest = index / groups;
  return {(index - rest * groups) * kPrefillTiles, rest % rows * kPrefillStepRows, rest >= rows};
}

template <class Format>
class PrefillProducer {
 public:
  using Shape = PrefillShape<Format>;

  __device__ __forceinline__ PrefillProducer(const StreamGemmParams& p, uint8_t* shared)
      : p_(p),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x) - kPrefillConsumers),
        lane_(thread_ & 31),
        warp_(thread_ >> 5),
        index_(static_cast<int>(blockIdx.x)),
        items_(prefill_items(p)) {
    choose();
  }

  __device__ __forceinline__ void run() {
    const int steps = (p_.blocks + kPrefillBlocks - 1) / kPrefillBlocks;
    int left = (items_ - index_ + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x) * steps;
    Scales scales[Shape::kAhead];
#pragma unroll
    for (int i = 0; i < Shape::kAhead; ++i) scales[i] = fetch(i);
#pragma unroll
    for (int i = 0; i < Shape::kAhead - 1; ++i) store(scales[i], i);
    // What was read in one turn is stored in the next, when it is there.
    Scales pending = scales[Shape::kAhead - 1];
    int slot = 0, fetched = Shape::kAhead;
    uint32_t emptied = 1;  // parity: in the first round all slots are
#pragma unroll 1
    for (; left > 0; --left) {
      const int stored = fetched == 0 ? Shape::kSlots - 1 : fetched - 1;
      barrier_wait(barrier(fetched, Shape::kEmptyAt), emptied);
      const Scales next = fetch(fetched);
      store(pending, stored);
      pending = next;
      if (++fetched == Shape::kSlots) fetched = 0, emptied ^= 1;
      copy_async_wait<Shape::kAhead>();
      __syncwarp();
      convert(slot);
      wgmma_operands_written();
      __syncwarp();
      if (lane_ == 0) barrier_arrive(barrier(slot, Shape::kFullAt));
      if (++slot == Shape::kSlots) slot = 0;
    }
  }

 private:
  // Two blocks' of a row of the step and of 32 weight rows, as they are in memory.
  struct Scales {
    uint32_t row, weight;
  };
  static constexpr int kPieces = Shape::kRowBytes / 16;  // of a row in a slot
  static constexpr int kUnits =
      2 * kPrefillBlocks * Format::kBlockBytes / 512;  // of a warp's weights in a slot

  __device__ __forceinline__ uint64_t* barrier(int slot, int at) const {
    return reinterpret_cast<uint64_t*>(shared_ + slot * Shape::kSlotBytes + at);
  }

  __device__ __forceinline__ void choose() {
    item_ = prefill_item(p_, index_);
  }

  // Starts the next step's copies and closes their group, also when there is no step; returns its scales.
  __device__ __forceinline__ Scales fetch(int slot) {
    Scales scales = {};
    if (index_ < items_) {
      const int first = step_ * kPrefillBlocks, blocks = p_.blocks - first;  // that are left
      copy_weights(shared_ + slot * Shape::kSlotBytes + Shape::kWeightsAt, first, blocks);
      copy_rows(shared_ + slot * Shape::kSlotBytes + Shape::kRowsAt, first, blocks);
      scales = read_scales(first, blocks);
      ++step_;
      if (blocks <= kPrefillBlocks) {
        step_ = 0, index_ += static_cast<int>(gridDim.x);
        choose();
      }
    }
    copy_async_commit();
    return scales;
  }

  __device__ __forceinline__ void copy_weights(uint8_t* to, int first, int blocks) const {
    constexpr int kTileUnits = kUnits / 2, kBlockUnits = Format::kBlockBytes / 512;
    const int tile = item_.first_tile + warp_ * 2;
    const uint8_t* const from = (item_.second ? p_.second_tiles : p_.tiles) +
                                static_cast<size_t>(tile) * p_.tile_stride +
                                static_cast<size_t>(first) * Format::kBlockBytes + lane_ * 16;
    // The four pieces of two rows where eight lanes read them without a conflict.
    to += warp_ * kUnits * 512 + wide_chunk(lane_ >> 2, lane_ & 3);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const bool valid = tile + u / kTileUnits < p_.row_tiles && u % kTileUnits / kBlockUnits < blocks;
      copy_async_16(to + u * 512,
                    valid ? from + u / kTileUnits * p_.tile_stride + u % kTileUnits * 512 : p_.tiles, valid);
    }
  }

  // Rows that the step does not have are copies of its last: what they give is nobody's.
  __device__ __forceinline__ void copy_rows(uint8_t* to, int first, int blocks) const {
    constexpr int kRowsAtOnce = kPrefillProducers / kPieces;
    const int piece = thread_ % kPieces, row0 = thread_ / kPieces;
    const bool valid = piece / (kPieces / kPrefillBlocks) < blocks;
    const int group = p_.rows_per_group > 0 ? item_.first_tile * kTileRows / p_.rows_per_group : 0;
    const uint32_t column = static_cast<uint32_t>(group * p_.cols + (valid ? first * 32 : 0)) +
                            static_cast<uint32_t>(valid ? piece * (Format::kCodes ? 16 : 8) : 0);
    to += row0 * Shape::kRowBytes + prefill_row_place<Format>(row0, piece);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int row = min(item_.first_row + row0 + i * kRowsAtOnce, p_.rows - 1);
      const uint32_t at = static_cast<uint32_t>(row) * static_cast<uint32_t>(p_.x_stride) + column;
      if constexpr (Format::kCodes) {
        copy_async_16(to + i * kRowsAtOnce * Shape::kRowBytes, p_.x_codes + at, valid);
      } else {
        copy_async_16(to + i * kRowsAtOnce * Shape::kRowBytes, p_.x + at, valid);
      }
    }
  }

  // Of blocks `first` and `first` + 1; without the second, only the first's.
  __device__ __forceinline__ uint32_t read_two(const uint8_t* from, int blocks) const {
    if (p_.blocks % 2 == 0) return __ldg(reinterpret_cast<const uint16_t*>(from));
    return blocks > 1 ? from[0] | uint32_t{from[1]} << 8 : uint32_t{from[0]};
  }
  __device__ __forceinline__ Scales read_scales(int first, int blocks) const {
    Scales scales = {};
    if constexpr (Format::kCodes) {
      const int row = min(item_.first_row + thread_, p_.rows - 1);
      const uint8_t* const from = p_.x_scales + static_cast<size_t>(row) * p_.blocks + first;
      scales.row = p_.blocks % 2 == 0 ? *reinterpret_cast<const uint16_t*>(from)
                                      : from[0] | (blocks > 1 ? uint32_t{from[1]} << 8 : 0u);
    }
    if constexpr (Format::kWeightScale) {
      const int rows = item_.first_tile / 2 + thread_;  // of 32
      if (thread_ < kPrefillWeightScales && rows * 2 < p_.row_tiles)
        scales.weight = read_two(
            (item_.second ? p_.second_scales : p_.scales) + static_cast<size_t>(rows) * p_.blocks + first,
            blocks);
    }
    return scales;
  }
  __device__ __forceinline__ void store(const Scales& scales, int slot) const {
    uint8_t* const to = shared_ + slot * Shape::kSlotBytes;
    if constexpr (Format::kCodes) {
      // Rows g and g + 8 of sixteen side by side.
      float* const rows = reinterpret_cast<float*>(to + Shape::kScalesAt) + (thread_ & ~15) +
                          (thread_ & 7) * 2 + (thread_ >> 3 & 1);
      rows[0] = Format::scale(scales.row & 0xFFu);
      rows[kPrefillStepRows] = Format::scale(scales.row >> 8);
    }
    if constexpr (Format::kWeightScale) {
      if (thread_ < kPrefillWeightScales) {
        float* const weights = reinterpret_cast<float*>(to + Shape::kWeightScalesAt) + thread_;
        weights[0] = Format::scale(scales.weight & 0xFFu);
        weights[kPrefillWeightScales] = Format::scale(scales.weight >> 8);
      }
    }
  }

  // A warp's two tiles of a slot: eight lanes take 16 rows of a block, a lane two of them, and what it writes
  // are whole chunks of 16 bytes.
  __device__ __forceinline__ void convert(int slot) const {
    uint8_t* const base = shared_ + slot * Shape::kSlotBytes;
    const int g = lane_ & 7;
    const uint8_t* const from = base + Shape::kWeightsAt + (warp_ * kUnits + (lane_ >> 3)) * 512;
    if constexpr (Format::kWeightScale) {
      uint8_t* const to = base + (lane_ >> 3 & 1) * kPrefillBlock + (warp_ * 2 + (lane_ >> 4)) * 1024;
      uint4 v[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) v[t] = *reinterpret_cast<const uint4*>(from + wide_chunk(g, t));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          uint2 h[4];
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            h[t] = half_of(half == 0 ? (pair == 0 ? v[t].x : v[t].y) : (pair == 0 ? v[t].z : v[t].w));
          }
          *reinterpret_cast<uint4*>(to + wide_chunk(half * 8 + g, pair * 2)) =
              make_uint4(h[0].x, h[1].x, h[2].x, h[3].x);
          *reinterpret_cast<uint4*>(to + wide_chunk(half * 8 + g, pair * 2 + 1)) =
              make_uint4(h[0].y, h[1].y, h[2].y, h[3].y);
        }
      }
    } else {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        // Units of 512 bytes: of each block the first step of 16 columns, then the second.
        const int step = lane_ >> 3 & 1;
        uint8_t* const to = base + (lane_ >> 4) * kPrefillBlock + (warp_ * 2 + tile) * 1024;
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          v[t] = *reinterpret_cast<const uint4*>(from + tile * (kUnits / 2) * 512 + wide_chunk(g, t));
        }
        *reinterpret_cast<uint4*>(to + wide_chunk(g, step * 2)) = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
        *reinterpret_cast<uint4*>(to + wide_chunk(g + 8, step * 2)) =
            make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
        *reinterpret_cast<uint4*>(to + wide_chunk(g, step * 2 + 1)) =
            make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
        *reinterpret_cast<uint4*>(to + wide_chunk(g + 8, step * 2 + 1)) =
            make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
      }
    }
  }
  // Four codes as two pairs.
  static __device__ __forceinline__ uint2 half_of(uint32_t codes) {
    uint2 h = e4m3x4_to_half4(codes);
    if constexpr (!Format::kCodes) {
      const float2 a = half2_to_float2(h.x), b = half2_to_float2(h.y);
      h = make_uint2(pack_bf16(a.x, a.y), pack_bf16(b.x, b.y));
    }
    return h;
  }

  const StreamGemmParams& p_;
  uint8_t* const shared_;
  const int thread_, lane_, warp_;
  // The next step that is fetched.
  int index_;
  const int items_;
  int step_ = 0;
  PrefillItem item_;
};

}  // namespace spark::engine::cuda
