// The indexer: scores and selection of a row in one launch, by a cluster of blocks that share its list.
//
// A block scores its share of the list and keeps the keys that order the scores in shared memory; nothing
// goes through global memory. A warp copies the records of 32 entries at a time into two places of its own,
// the first ones before the kernel's inputs are there: only entries of this step's rows and a list of
// candidates that is new depend on them. Selection: the blocks push histograms of the keys' high byte to one
// another; everyone finds the byte in which the k-th largest key lies; the same for the low byte. From the
// histograms of both a block also knows how many selected entries the blocks before it have, so it writes its
// own without another meeting, ascending, ties to the lower entry. Scores are those of index.cu, to the bit.
#include <algorithm>
#include <bit>

#include "engine/kernels/cuda/index_cluster.h"
#include "engine/kernels/cuda/index_selection.cuh"

namespace spark::engine::cuda {
namespace {

constexpr int kRecordBytes = kMaxIndexWidth / 2 + kMaxIndexBlocks;
constexpr int kGroup = 32;  // entries that a warp scores at once
constexpr int kUnit = 4;    // entries side by side in the cache: whole pieces of 16 bytes
constexpr int kUnits = kGroup / kUnit;
constexpr int kUnitBytes = kUnit * kRecordBytes;
constexpr int kGroupBytes = kGroup * kRecordBytes;
constexpr int kPieces = kGroupBytes / 16;

// Few rows: clusters of sixteen large blocks, each alone on its multiprocessor by its registers (80 a
// thread), because two of them on one take twice as long; there is room for a direct product's block beside
// it. Up to twice as many: of sixteen small blocks, two a multiprocessor. More rows: of eight small blocks.
constexpr int kFewRows = 7;
constexpr int kFewWarps = 16;
constexpr int kManyWarps = 8;
// Threads that the compiler shares registers among. (GB10 runs small blocks only.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kFewBound = kFewWarps * 32;
#else
constexpr int kFewBound = 768;
#endif
constexpr int kMaxRows = 128;  // above, index.cu reads keys once for several rows

struct IndexClusterParams {
  IndexSelectArgs a;
  bool restricted;
  bool early;    // the candidates are complete when the kernel starts
  int capacity;  // keys that a block has room for, a multiple of kGroup
  int places;    // of a warp for records: 1 or 2
  int page_shift, block_shift;
};

// The row, and this block's share of its list.
struct RowShare {
  int sequence;
  int first, end;  // places
  int old;         // entries of earlier steps
  int visible;
};

struct ClusterShared {
  IndexQueries q;
  uint16_t weight[kIndexHeads];
  SelectionShared<2> selection;  // entries, then candidate blocks
  int listed;
  RowShare share;
};

// Scores of the 32 entries whose records lie at `records`, one a lane. Row g + 8h of tile T of the matrix
// instruction is entry 4g + 2T + h: then the lanes' words lie in different banks. The records' place takes
// the heads' products afterwards, so that a lane sums the heads of one entry in their order.
template <int kUnrolled>
__device__ __forceinline__ float score_group(uint8_t* records, const IndexQueries& queries,
                                             const uint16_t* weight) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int g = lane >> 2, t = lane & 3;
  const uint8_t* mine = records + g * kUnitBytes;
  float d[2][4][4] = {};
#pragma unroll kUnrolled
  for (int block = 0; block < kMaxIndexBlocks; ++block) {
    uint4 k[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* record = mine + i * kRecordBytes;
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(record + block * 16 + t * 4);
      k[i / 2][i & 1] = fp4_to_bf16(codes, scale_pair(record[kMaxIndexWidth / 2 + block]));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 q = queries[j][block][lane];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4 &a = k[tile][0], &b = k[tile][1];
        mma_bf16(d[tile][j], a.x, b.x, a.y, b.y, q.x, q.y);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4 &a = k[tile][0], &b = k[tile][1];
        mma_bf16(d[tile][j], a.z, b.z, a.w, b.w, q.z, q.w);
      }
    }
  }
  __syncwarp();
  const uint4 w = *reinterpret_cast<const uint4*>(weight + 8 * t);
  const auto place = [&](int group, int tile, int half) {
    return reinterpret_cast<uint4*>(records + group * kUnitBytes + tile * 144 + half * 64);
  };
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto product = [&](int j, uint32_t weights) {
        const float* v = &d[tile][j][2 * half];
        return multiply_bf16x2(pack_bf16(fmaxf(v[0], 0.0f), fmaxf(v[1], 0.0f)), weights);
      };
      place(g, tile, half)[t] =
          make_uint4(product(0, w.x), product(1, w.y), product(2, w.z), product(3, w.w));
    }
  }
  __syncwarp();
  const uint4* own = place(lane >> 2, lane >> 1 & 1, lane & 1);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = own[i];
    sum += bf16_low(v.x), sum += bf16_high(v.x);
    sum += bf16_low(v.y), sum += bf16_high(v.y);
    sum += bf16_low(v.z), sum += bf16_high(v.z);
    sum += bf16_low(v.w), sum += bf16_high(v.w);
  }
  __syncwarp();
  return sum;
}

__device__ __forceinline__ int32_t* candidates_of(const IndexSelectArgs& a) {
  return a.candidate_blocks + static_cast<int64_t>(blockIdx.y) * a.max_blocks;
}

// Where a unit's records lie: null if nowhere. The lowest bit says that they depend on the step.
constexpr uint64_t kLate = 1;

// The unit at place i of the row's list.
__device__ __forceinline__ uint64_t find_unit(const IndexClusterParams& p, const RowShare& share, int i) {
  i += share.first;
  if (i >= share.end) return 0;
  if (p.restricted) {
    const int slot = i >> p.block_shift;
    const int block = slot < p.a.max_blocks ? __ldcg(candidates_of(p.a) + slot) : -1;
    if (block < 0) return 0;
    i = (block << p.block_shift) + (i & ((1 << p.block_shift) - 1));
  }
  const PagedCache& cache = p.a.key_cache;
  const int entry = i >> p.page_shift;
  if (entry >= cache.table_stride) return 0;
  const int page = cache.block_table[static_cast<int64_t>(share.sequence) * cache.table_stride + entry];
  if (page < 0) return 0;
  const int64_t record = (static_cast<int64_t>(page) << p.page_shift) + (i & ((1 << p.page_shift) - 1));
  return reinterpret_cast<uint64_t>(cache.base + record * kRecordBytes) | (i + kUnit > share.old ? kLate : 0);
}

// Copies the records of the warp's k-th group: those that have settled, those that have not, or both. Units
// of groups k & ~3 to k | 3 are in the lanes.
__device__ __forceinline__ void copy_group(uint8_t* records, const uint8_t* anywhere, uint64_t unit, int k,
                                           bool settled, bool late) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < (kPieces + 31) / 32; ++i) {
    const int piece = i * 32 + lane;
    const int of = piece / (kUnitBytes / 16);
    const uint64_t from = __shfl_sync(~0u, unit, (k & 3) * kUnits + (of & (kUnits - 1)));
    if (piece >= kPieces || !((from & kLate) != 0 ? late : settled)) continue;
    const uint8_t* record = reinterpret_cast<const uint8_t*>(from & ~kLate);
    copy_async_16(records + piece * 16, from != 0 ? record + (piece - of * (kUnitBytes / 16)) * 16 : anywhere,
                  from != 0);
  }
}

// Keys of this block.
__device__ __forceinline__ int count_of(const IndexClusterParams& p, const ClusterShared& s) {
  return max(0, (p.restricted ? min(s.share.end, s.listed) : s.share.end) - s.share.first);
}

template <int kWarps>
__global__ void __launch_bounds__(kWarps == kFewWarps ? kFewBound : kWarps * 32, kWarps == kFewWarps ? 1 : 2)
    index_cluster_kernel(const __grid_constant__ IndexClusterParams p) {
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  constexpr int kThreads = kWarps * 32;
  constexpr int kUnrolled = kWarps == kFewWarps ? 1 : kMaxIndexBlocks;  // as registers allow
  ClusterShared& s = *reinterpret_cast<ClusterShared*>(memory);
  auto& selection = s.selection;
  const IndexSelectArgs& a = p.a;
  const bool produce = a.mode == CandidateMode::kProduce;
  Counts* const all = reinterpret_cast<Counts*>(memory + sizeof(ClusterShared));
  uint8_t* const places = reinterpret_cast<uint8_t*>(all + (produce ? 4 : 2));
  uint16_t* const keys = reinterpret_cast<uint16_t*>(places + kWarps * p.places * kGroupBytes);  // [capacity]
  uint16_t* const best = keys + p.capacity;                                                      // of blocks
  launch_dependents();
  const int rank = static_cast<int>(blockIdx.x);
  const int ranks = static_cast<int>(gridDim.x);
  const int row = static_cast<int>(blockIdx.y);
  const int sequence = a.step.sequence[row];
  if (sequence < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31, warp = thread / 32;
#pragma unroll 1
  for (int i = thread; i < 4 * kBins; i += kThreads) selection.own[i] = 0;
  if (thread == 0) {
    s.listed = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) barrier_init(&selection.counted[i], 1);
    barrier_init_done();
#pragma unroll 1
    for (int i = 0; i < 4; ++i)
      barrier_expect(&selection.counted[i], static_cast<uint32_t>(ranks) * kCountBytes);
    // Shares of the longest list that there can be, in whole groups (which are whole candidate blocks).
    const int visible = visible_entries(a, row);
    const int old = a.step.position[a.step.first_row[row]] / a.ratio;
    const int longest = p.restricted ? min(a.max_blocks << p.block_shift, visible) : visible;
    const int share = ((longest + ranks - 1) / ranks + kGroup - 1) & -kGroup;
    const int first = min(rank * share, longest);
    s.share = {sequence, first, min(first + share, longest), old, visible};
  }
  __syncthreads();
  cluster_arrive();

  uint8_t* const mine = places + warp * p.places * kGroupBytes;
  uint64_t unit = 0;
  const auto base_of = [&](int k) { return (k * kWarps + warp) * kGroup; };
  const auto find_units = [&](int k) {
    unit = find_unit(p, s.share, base_of(k + lane / kUnits) + lane % kUnits * kUnit);
  };
  constexpr int kOperands = 4 * kMaxIndexBlocks / kWarps;
  RawQuery raw[kOperands];
  float factor = 0.0f;
  // What has settled before the wait, then the rest: in a loop, because code that runs once is fetched once.
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const bool settled = p.early == (turn == 0);
    if (turn == 1) {
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < kOperands; ++i) raw[i] = load_query(a, row, kMaxIndexBlocks, i * kWarps + warp);
      if (thread < kIndexHeads) factor = head_factor(a, row, thread);
      if (!settled && __ballot_sync(~0u, (unit & kLate) != 0) == 0) break;
    } else if (!settled) {
      continue;
    }
    if (settled) find_units(0);
#pragma unroll 1
    for (int k = 0; k < p.places; ++k) {
      copy_group(mine + k * kGroupBytes, a.key_cache.base, unit, k, settled, turn == 1);
    }
    copy_async_commit();
    if (!settled || !p.restricted) continue;
    // The list ends with the last candidate block; its last entries may not be visible yet.
    const int32_t* candidates = candidates_of(a);
    const int visible = s.share.visible;
    int listed = 0;
#pragma unroll 4
    for (int i = thread; i < a.max_blocks; i += kThreads) {
      const int block = __ldcg(candidates + i);
      if (block >= 0) listed += max(0, min(1 << p.block_shift, visible - (block << p.block_shift)));
    }
    listed = static_cast<int>(warp_total(static_cast<uint32_t>(listed)));
    if (lane == 0 && listed != 0) atomicAdd(&s.listed, listed);
  }
#pragma unroll
  for (int i = 0; i < kOperands; ++i) store_query(s.q, kMaxIndexBlocks, i * kWarps + warp, raw[i]);
  if (thread < kIndexHeads) s.weight[thread] = float_to_bf16(factor);
  __syncthreads();

#pragma unroll 1
  for (int k = 0; base_of(k) < count_of(p, s); ++k) {
    if (k == 0 || p.places == 1) {
      copy_async_wait<0>();
    } else {
      copy_async_wait<1>();
    }
    __syncwarp();
    uint8_t* const records = mine + (p.places == 2 ? (k & 1) * kGroupBytes : 0);
    const float sum = score_group<kUnrolled>(records, s.q, s.weight);
    const int count = count_of(p, s);
    const int i = base_of(k) + lane;
    if (i < count) {
      const uint32_t key = order_key(float_to_bf16(sum));
      keys[i] = static_cast<uint16_t>(key);
      atomicAdd(&selection.own[key >> 8], 1u);
    }
    const int next = k + p.places;
    if ((next & 3) == 0) find_units(next);
    if (base_of(next) < count) copy_group(records, a.key_cache.base, unit, next, true, true);
    copy_async_commit();
  }
  cluster_wait();  // the others have started

  const int list = p.restricted ? s.listed : s.share.visible;
  const int count = count_of(p, s);
  const int first = s.share.first;
  int32_t* const candidates = candidates_of(a);
  const auto entry_of = [&](int i) {
    i += first;
    if (!p.restricted) return i;
    return (candidates[i >> p.block_shift] << p.block_shift) + (i & ((1 << p.block_shift) - 1));
  };
  int32_t* selected = a.selected + static_cast<int64_t>(row) * a.top_k;
  __syncthreads();
  if (list <= a.top_k) {
#pragma unroll 1
    for (int i = thread; i < count; i += kThreads) selected[first + i] = entry_of(i);
#pragma unroll 1
    for (int i = list + rank * kThreads + thread; i < a.top_k; i += ranks * kThreads) selected[i] = -1;
  } else {
    const Selection sel = {keys, count, a.top_k};
    const Border border = find_border<kWarps>(selection, all, sel, false, 0, rank, ranks);
    emit_selected<kWarps>(selection, sel, border, rank, ranks,
                          [&](int at, int i) { selected[at] = entry_of(i); });
  }
  if (!produce) return;

  // Candidate blocks: a block's share of the list is whole blocks of entries.
  const int first_block = first >> p.block_shift;
  const int count_blocks = (count + (1 << p.block_shift) - 1) >> p.block_shift;
  const int all_blocks = (list + (1 << p.block_shift) - 1) >> p.block_shift;
#pragma unroll 1
  for (int b = thread; b < count_blocks; b += kThreads) {
    uint32_t largest = 0;
#pragma unroll 1
    for (int i = b << p.block_shift; i < min((b + 1) << p.block_shift, count); ++i)
      largest = max(largest, uint32_t{keys[i]});
    if (first_block + b == all_blocks - 1) largest = 0xFFFF;  // the newest block is always kept
    best[b] = static_cast<uint16_t>(largest);
    atomicAdd(&selection.own[2 * kBins + (largest >> 8)], 1u);
  }
  int kept = 0;
  if (list > 0) {
    const Selection sel = {best, count_blocks, min(a.max_blocks, all_blocks)};
    // Blocks of minus infinity are dropped.
    const Border border = find_border<kWarps>(selection, all, sel, true, 2, rank, ranks);
    kept = emit_selected<kWarps>(selection, sel, border, rank, ranks,
                                 [&](int at, int b) { candidates[at] = first_block + b; });
  }
#pragma unroll 1
  for (int i = kept + rank * kThreads + thread; i < a.max_blocks; i += ranks * kThreads) candidates[i] = -1;
}

struct Shape {
  int warps;
  int ranks;
  int capacity;
  int places;
  size_t shared_bytes;
};

// For blocks of so many warps; no places if the list does not fit.
Shape shape_of(const DeviceLimits& device, const IndexSelectArgs& args, int warps, int most_ranks) {
  const int64_t list =
      std::max<int64_t>(1, args.mode == CandidateMode::kRestrict ? int64_t{args.max_blocks} * args.block_size
                                                                 : args.max_entries);
  const bool produce = args.mode == CandidateMode::kProduce;
  Shape s = {.warps = warps};
  // Two at least: a launch that is no cluster has no asynchronous stores to shared memory.
  s.ranks = static_cast<int>(std::clamp<int64_t>(ceil_div(list, warps * kGroup), 2, most_ranks));
  const int64_t capacity = round_up(ceil_div(list, s.ranks), kGroup);
  if (capacity >= 1 << 16) return s;  // counts of 16 bits
  s.capacity = static_cast<int>(capacity);
  const int64_t blocks = produce ? ceil_div(capacity, args.block_size) : 0;
  const size_t fixed = sizeof(ClusterShared) + (produce ? 4 : 2) * sizeof(Counts) +
                       static_cast<size_t>(capacity + blocks) * sizeof(uint16_t);
  for (s.places = 2; s.places > 0; --s.places) {
    s.shared_bytes = fixed + static_cast<size_t>(s.places * warps) * kGroupBytes;
    if (s.shared_bytes + 1024 <= device.shared_bytes) return s;
  }
  return s;
}

Shape shape_of(const DeviceLimits& device, const IndexSelectArgs& args) {
  const bool large = device.max_attention_cluster >= kMaxRanks;  // clusters of sixteen
  Shape s = large && args.step.rows <= kFewRows
                ? shape_of(device, args, kFewWarps, kMaxRanks)
                : shape_of(device, args, kManyWarps, large && args.step.rows <= 2 * kFewRows ? kMaxRanks : 8);
  // A list that is too long for eight blocks may have room in sixteen.
  if (s.places == 0) s = shape_of(device, args, kManyWarps, device.max_attention_cluster);
  return s;
}

bool power_of_two(int v, int least) {
  return v >= least && std::has_single_bit(static_cast<uint32_t>(v));
}

}  // namespace

bool index_cluster_fits(const DeviceLimits& device, const IndexSelectArgs& args) {
  const PagedCache& keys = args.key_cache;
  if (args.scores != nullptr || args.step.rows > kMaxRows || args.width != kMaxIndexWidth) return false;
  if (keys.record_bytes != kRecordBytes || reinterpret_cast<uintptr_t>(keys.base) % 16 != 0) return false;
  if (!power_of_two(keys.records_per_block, kUnit)) return false;
  if (args.mode != CandidateMode::kNone &&
      (!power_of_two(args.block_size, kUnit) || args.block_size > kGroup))
    return false;
  const Shape s = shape_of(device, args);
  return s.places > 0;
}

void launch_index_cluster(const Launch& on, const IndexSelectArgs& args, bool settled_candidates) {
  require_index_shape(args);
  const Shape s = shape_of(on.device, args);
  const bool restricted = args.mode == CandidateMode::kRestrict;
  const auto shift = [](int v) { return std::countr_zero(static_cast<uint32_t>(v)); };
  const IndexClusterParams params = {args,
                                     restricted,
                                     !restricted || settled_candidates,
                                     s.capacity,
                                     s.places,
                                     shift(args.key_cache.records_per_block),
                                     shift(std::max(args.block_size, 1))};
  const auto with = [&](auto kernel) {
    launch_kernel(on, kernel, dim3(static_cast<unsigned>(s.ranks), static_cast<unsigned>(args.step.rows)),
                  s.warps * 32, s.shared_bytes, s.ranks, params);
  };
  if (s.warps == kFewWarps) return with(index_cluster_kernel<kFewWarps>);
  return with(index_cluster_kernel<kManyWarps>);
}

}  // namespace spark::engine::cuda
