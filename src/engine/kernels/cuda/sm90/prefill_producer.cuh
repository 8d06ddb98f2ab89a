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
        weights_to_(opaque(Shape::kWeightsAt + warp_ * kUnits * 512 +
                           static_cast<int>(wide_chunk(lane_ >> 2, lane_ & 3)))),
        rows_to_(opaque(Shape::kRowsAt + thread_ / kPieces * Shape::kRowBytes +
                        static_cast<int>(prefill_row_place<Format>(thread_ / kPieces, thread_ % kPieces)))),
        chunk_(opaque(static_cast<int>(wide_chunk(lane_ & 7, 0)))),
        index_(static_cast<int>(blockIdx.x)) {
    choose();
  }

  __device__ __forceinline__ void run() {
    const int blocks = static_cast<int>(gridDim.x);
    const int items = (prefill_items(p_) - index_ + blocks - 1) / blocks;
    left_ = items * ((p_.blocks + kPrefillBlocks - 1) / kPrefillBlocks);
    const int steps = left_;
    // What was read in one turn is stored in the next, when it is there.
    Scales pending = {};
    int slot = 0, fetched = 0;
    uint32_t emptied = 1;  // parity: in the first round all slots are
#pragma unroll 1
    for (int step = -Shape::kAhead; step < steps; ++step) {
      const int stored = fetched == 0 ? Shape::kSlots - 1 : fetched - 1;
      barrier_wait(barrier(fetched, Shape::kEmptyAt), emptied);
      const Scales next = fetch(fetched);
      store(pending, stored);
      pending = next;
      if (++fetched == Shape::kSlots) fetched = 0, emptied ^= 1;
      if (step < 0) continue;
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
  static constexpr int kPieceColumns = Format::kCodes ? 16 : 8;
  static constexpr int kRowsAtOnce = kPrefillProducers / kPieces;
  static constexpr int kUnits =
      2 * kPrefillBlocks * Format::kBlockBytes / 512;  // of a warp's weights in a slot

  __device__ __forceinline__ uint64_t* barrier(int slot, int at) const {
    return reinterpret_cast<uint64_t*>(shared_ + slot * Shape::kSlotBytes + at);
  }

  // Where the item's rows and weights begin: once an item, so that a step adds and copies.
  __device__ __forceinline__ void choose() {
    const PrefillItem item = prefill_item(p_, index_);
    const int tile = item.first_tile + warp_ * 2;
    tiles_ = p_.row_tiles - tile;
    weights_ =
        (item.second ? p_.second_tiles : p_.tiles) + static_cast<size_t>(tile) * p_.tile_stride + lane_ * 16;
    const int group = p_.rows_per_group > 0 ? item.first_tile * kTileRows / p_.rows_per_group : 0;
    column_ = group * p_.cols + thread_ % kPieces * kPieceColumns;
    row_ = item.first_row + thread_ / kPieces;
    row_scales_ =
        static_cast<uint32_t>(min(item.first_row + thread_, p_.rows - 1)) * static_cast<uint32_t>(p_.blocks);
    const int thirty_two = item.first_tile / 2 + thread_;
    weight_scales_ =
        thread_ < kPrefillWeightScales && thirty_two * 2 < p_.row_tiles
            ? (item.second ? p_.second_scales : p_.scales) + static_cast<size_t>(thirty_two) * p_.blocks
            : nullptr;
  }

  // Starts the next step's copies and closes their group, also when there is no step; returns its scales.
  __device__ __forceinline__ Scales fetch(int slot) {
    Scales scales = {};
    if (left_ > 0) {
      const int blocks = p_.blocks - first_;  // that are left
      copy_weights(shared_ + slot * Shape::kSlotBytes, blocks);
      copy_rows(shared_ + slot * Shape::kSlotBytes, blocks);
      if constexpr (Format::kCodes) scales.row = read_two(p_.x_scales + row_scales_ + first_, blocks);
      if constexpr (Format::kWeightScale) {
        if (weight_scales_ != nullptr) scales.weight = read_two(weight_scales_ + first_, blocks);
      }
      first_ += kPrefillBlocks, --left_;
      if (blocks <= kPrefillBlocks) {
        first_ = 0, index_ += static_cast<int>(gridDim.x);
        choose();
      }
    }
    copy_async_commit();
    return scales;
  }

  // What is not there becomes zeros.
  __device__ __forceinline__ void copy_weights(uint8_t* slot, int blocks) {
    constexpr int kTileUnits = kUnits / 2, kBlockUnits = Format::kBlockBytes / 512;
    // The four pieces of two rows where eight lanes read them without a conflict.
    uint8_t* const to = slot + weights_to_;
    const uint8_t* from = weights_;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u == kTileUnits) from += p_.tile_stride;
      copy_async_16(to + u * 512, from + u % kTileUnits * 512,
                    u / kTileUnits < tiles_ && u % kTileUnits / kBlockUnits < blocks);
    }
    weights_ += kPrefillBlocks * Format::kBlockBytes;
  }
  __device__ __forceinline__ void copy_rows(uint8_t* slot, int blocks) const {
    const bool valid = thread_ % kPieces / (kPieces / kPrefillBlocks) < blocks;
    uint8_t* const to = slot + rows_to_;
    // Rows that the step does not have are copies of its last: what they give is nobody's.
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t from = static_cast<uint32_t>(min(row_ + i * kRowsAtOnce, p_.rows - 1)) *
                                static_cast<uint32_t>(p_.x_stride) +
                            static_cast<uint32_t>(column_);
      if constexpr (Format::kCodes) {
        copy_async_16(to + i * kRowsAtOnce * Shape::kRowBytes, p_.x_codes + first_ * 32 + from, valid);
      } else {
        copy_async_16(to + i * kRowsAtOnce * Shape::kRowBytes, p_.x + first_ * 32 + from, valid);
      }
    }
  }

  // Of two blocks; without the second, only the first's.
  __device__ __forceinline__ uint32_t read_two(const uint8_t* from, int blocks) const {
    if (p_.blocks % 2 == 0) return *reinterpret_cast<const uint16_t*>(from);
    return from[0] | (blocks > 1 ? uint32_t{from[1]} << 8 : 0u);
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
    const auto chunk = [&](int c) { return chunk_ ^ (c << 4); };
    const uint8_t* const from = base + Shape::kWeightsAt + (warp_ * kUnits + (lane_ >> 3)) * 512;
    if constexpr (Format::kWeightScale) {
      uint8_t* const to = base + (lane_ >> 3 & 1) * kPrefillBlock + (warp_ * 2 + (lane_ >> 4)) * 1024;
      uint4 v[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) v[t] = *reinterpret_cast<const uint4*>(from + chunk(t));
      const auto write = [&](int half, int pair, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        const uint2 h[4] = {half_of(a), half_of(b), half_of(c), half_of(d)};
        *reinterpret_cast<uint4*>(to + chunk(pair * 2) + half * 512) =
            make_uint4(h[0].x, h[1].x, h[2].x, h[3].x);
        *reinterpret_cast<uint4*>(to + chunk(pair * 2 + 1) + half * 512) =
            make_uint4(h[0].y, h[1].y, h[2].y, h[3].y);
      };
      write(0, 0, v[0].x, v[1].x, v[2].x, v[3].x);
      write(0, 1, v[0].y, v[1].y, v[2].y, v[3].y);
      write(1, 0, v[0].z, v[1].z, v[2].z, v[3].z);
      write(1, 1, v[0].w, v[1].w, v[2].w, v[3].w);
    } else {
      // Units of 512 bytes: of each block the first step of 16 columns, then the second.
      const int first_chunk = lane_ >> 3 & 1 ? chunk(2) : chunk(0);
      const int second_chunk = lane_ >> 3 & 1 ? chunk(3) : chunk(1);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        uint8_t* const to = base + (lane_ >> 4) * kPrefillBlock + (warp_ * 2 + tile) * 1024;
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; ++t)
          v[t] = *reinterpret_cast<const uint4*>(from + tile * (kUnits / 2) * 512 + chunk(t));
        *reinterpret_cast<uint4*>(to + first_chunk) = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
        *reinterpret_cast<uint4*>(to + first_chunk + 512) = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
        *reinterpret_cast<uint4*>(to + second_chunk) = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
        *reinterpret_cast<uint4*>(to + second_chunk + 512) = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
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
  const int weights_to_, rows_to_;  // places in a slot of what this thread copies
  const int chunk_;                 // the first of a row that it converts
  // The next step that is fetched: its first block, and where its item's rows and weights are.
  int first_ = 0;
  int index_;
  int left_ = 0;            // steps
  int tiles_;               // of the warp's that exist, if fewer than two
  const uint8_t* weights_;  // of the step
  int row_, column_;        // of the thread's first piece
  uint32_t row_scales_;
  const uint8_t* weight_scales_;
};

}  // namespace spark::engine::cuda
