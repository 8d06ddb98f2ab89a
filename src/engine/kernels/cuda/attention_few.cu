// Sparse attention of few rows: a cluster of sixteen blocks takes one row and 16 heads. What a step waits for
// is latency, so the blocks divide everything, and what travels between them is small.
//
// Block (class, quarter) makes the scores of a quarter of each chunk of its class (16 of 64 slots, all
// channels) and the values of all slots of its class for a quarter of the channels. A record's bytes are read
// and decoded twice in a cluster, once for each, but that is done before the queries exist. Then four things
// travel, all by asynchronous stores that a barrier in shared memory counts: maxima and sums of weights to
// all, weights to the blocks of the class, sums of the class to the block that finishes a channel. The
// cluster's own barrier is not used for data: its releasing form waits until everything that the block wrote
// is seen by the whole device, behind the copies of weights that the next kernel has begun by then.
//
// The order of all sums is that of attention_chunk.cuh.
#include <bit>

#include "engine/kernels/cuda/attention_cluster.cuh"
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * 32;
constexpr int kQuarters = 4;
constexpr int kQuarterSlots = kChunk / kQuarters;       // of a chunk, for the scores
constexpr int kQuarterWidth = kMaxWidth / kQuarters;    // channels of a block's values
constexpr int kOwnChannels = kQuarterWidth / kClasses;  // channels that a block finishes
constexpr int kMostRounds = kMaxChunks / kClasses;      // chunks of a class
constexpr int kValueWarps = kOwnChannels * kClasses / 16;
// What a block tells of all its heads and rounds; four words more, so that the blocks' do not share banks.
constexpr int kRankStride = kHeads * kMostRounds + 4;

struct FewShared {
  uint64_t maxima_there, sums_there, weights_there, values_there;  // barriers
  const uint8_t* record[kMostRounds * kChunk];
  uint32_t live[kMostRounds * 2], early[kMostRounds * 2];  // a bit a slot
  float chunk_factor[kMaxChunks][kHeads];                  // of a chunk, for what its class was before
  float class_factor[kClasses][kHeads];
  float last_max[kHeads];
  float sink[kHeads];
  float inverse[kHeads];  // of the sum of weights, with the records' shift taken back
  float angles[kOwnChannels];
  // Written by the blocks of the cluster: [block][head][round].
  alignas(16) float maxima[kFewBlocks][kRankStride];
  // Scores by fourths of the channels, and queries. When all maxima are there nobody reads them any more, and
  // what travels then takes their places.
  union {
    alignas(16) float parts[4][kHeads][kPartStride];
    struct {
      alignas(16) float values[kClasses][kHeads][kOwnChannels];  // sums of classes
      alignas(16) float weights[kFewBlocks][kRankStride];        // sums of weights: as maxima
    } sums;
  };
  union {
    alignas(16) uint16_t queries[kHeads * kMaxWidth];
    alignas(16) uint16_t weights[kMostRounds][kHeads][kWeightStride];
  };
  // Behind it: values [round][slot][kQuarterWidth].
};
constexpr size_t kValuesAt = (sizeof(FewShared) + 15) / 16 * 16;
constexpr size_t kRoundBytes = sizeof(uint16_t) * kChunk * kQuarterWidth;

// As unit_at, of a slot's quarter of channels.
__device__ __forceinline__ int value_at(int slot, int unit) {
  return slot * kQuarterWidth + (unit ^ (slot & 7) ^ (unit >> 2 & 2)) * kUnitChannels;
}

// As record_of, where blocks have a power of two of records.
__device__ __forceinline__ const uint8_t* record_by_shift(const AttentionParams& params, bool main,
                                                          int sequence, int index) {
  const PagedCache& cache = main ? params.a.main_cache : params.a.window_cache;
  const int shift = main ? params.main_shift : params.window_shift;
  const int entry = index >> shift;
  if (entry >= cache.table_stride) return nullptr;
  const int block = cache.block_table[static_cast<int64_t>(sequence) * cache.table_stride + entry];
  if (block < 0) return nullptr;
  return cache.base +
         ((static_cast<int64_t>(block) << shift) + (index & ((1 << shift) - 1))) * cache.record_bytes;
}

// The largest of the lanes of each round, in all lanes.
__device__ __forceinline__ float4 round_maxima(float v) {
  const int round = static_cast<int>(threadIdx.x & 31) / (kQuarterSlots / 2);
  const auto of = [&](int i) { return warp_max(round == i ? v : kInitialMax); };
  return make_float4(of(0), of(1), of(2), of(3));
}

// Two units of 8 channels: the sums of their class over all its chunks.
struct UnitSums {
  float unit[2][4] = {};
};
__device__ __forceinline__ void push_unit(const float (&v)[4], float* to, uint64_t* barrier, int block) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int t = lane & 3;
  const bool odd = (t & 1) != 0;
  // Channels t and t + 4 of heads g and g + 8; two lanes side by side make four channels of one head each.
  const float r0 = __shfl_xor_sync(~0u, odd ? v[0] : v[2], 1);
  const float r1 = __shfl_xor_sync(~0u, odd ? v[1] : v[3], 1);
  const int head = (lane >> 2) + (odd ? 8 : 0);
  store_cluster_async(reinterpret_cast<float4*>(to + head * kOwnChannels + (t >> 1) * 4), barrier,
                      static_cast<uint32_t>(block),
                      odd ? make_float4(r0, v[2], r1, v[3]) : make_float4(v[0], r0, v[1], r1));
}

__global__ void __launch_bounds__(kThreads, 2)
    few_attention_kernel(const __grid_constant__ AttentionParams params) {
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  FewShared& s = *reinterpret_cast<FewShared*>(memory);
  uint16_t* const values = reinterpret_cast<uint16_t*>(memory + kValuesAt);
  const SparseAttentionArgs& a = params.a;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31, warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x);
  const int own_class = rank % kClasses, quarter = rank / kClasses;
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int row = static_cast<int>(blockIdx.z);
  const RowOfStep step_row = row_of_step(a, row);
  const int extra = a.extra == nullptr ? 0 : step_row.last - step_row.first + 1;
  const int slots = a.window + a.max_selected + extra;
  const int chunks = (slots + kChunk - 1) / kChunk;
  const int rounds = (chunks - own_class + kClasses - 1) / kClasses;  // chunks of the block's class
  const auto slot_of = [&](int index) {                               // of the class's slots
    return (own_class + index / kChunk * kClasses) * kChunk + index % kChunk;
  };

  const int slot = slot_of(thread);
  const bool wanted = thread < rounds * kChunk && slot < slots;
  const bool chosen = wanted && is_selected(a, slot);
  const bool later = chosen && !params.early.selected;
  int index = -1;  // of a record: a position, or an entry
  if (chosen && !later) index = selected_entry(a, row, slot);
  if (step_row.sequence < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  if (thread == 0) {
    barrier_init(&s.maxima_there, 1);
    barrier_init(&s.sums_there, 1);
    barrier_init(&s.weights_there, 1);
    barrier_init(&s.values_there, 1);
    barrier_init_done();
    const int classes = min(chunks, kClasses);
    const auto told = static_cast<uint32_t>(classes * kQuarters * kHeads) * uint32_t{sizeof(float4)};
    barrier_expect(&s.maxima_there, told);
    barrier_expect(&s.sums_there, told);
    barrier_expect(&s.weights_there, static_cast<uint32_t>(rounds * kHeads * kChunk) * 2);
    barrier_expect(&s.values_there, static_cast<uint32_t>(classes * kHeads * kOwnChannels) * 4);
  }
  cluster_arrive_relaxed();  // the others must have started before something is written into their memory
  if (thread < kHeads && head0 + thread < a.heads) s.sink[thread] = __ldg(a.sink + head0 + thread);
  if (thread < kMostRounds * kChunk) {
    const uint8_t* record = nullptr;
    bool early = params.early.selected;
    if (slot < a.window) {
      index = window_position(a, step_row, slot);
      early = params.early.all_window || (params.early.window && index < a.step.position[step_row.first]);
    }
    if (wanted && index >= 0) record = record_by_shift(params, chosen, step_row.sequence, index);
    if (slot >= a.window + a.max_selected) {
      early = false;
      if (wanted) record = extra_record(a, step_row, slot);
    }
    s.record[thread] = record;
    const uint32_t live = __ballot_sync(~0u, record != nullptr);
    const uint32_t complete = __ballot_sync(~0u, !later && (early || record == nullptr));
    if (lane == 0) s.live[warp] = live, s.early[warp] = complete;
  }
  __syncthreads();

  // Tiles of eight slots; a lane has 32 channels of one. Keys stay as they come until the queries are under
  // way, values are decoded at once.
  const ScorePlace at = score_place();
  const auto is_main = [&](int i) { return is_selected(a, slot_of(i)); };
  const auto is_live = [&](int i) { return (s.live[i / 32] >> i % 32 & 1) != 0; };
  const auto load = [&](RawChannels& to, int i, int channel) {
    load_channels<true>(to, s.record[i], a.window_cache.base, is_main(i), kMaxWidth, channel);
  };
  const auto key_tile = [&](int j) { return (warp & 3) + 4 * j; };
  const auto key_index = [&](int j) {
    const int tile = key_tile(j);
    return tile / 2 * kChunk + quarter * kQuarterSlots + tile % 2 * 8 + at.g;
  };
  RawChannels keys[2];
  // Bits: the lane's slots of the keys' tiles are no empty ones; the warp has records that are not complete
  // before the wait.
  uint32_t flags = 0;
  constexpr uint32_t kMore = 4;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass != 0) {
      cluster_wait();
      wait_for_inputs();
      // Sixteen heads lie in a row: two pieces of 16 bytes a thread, eight heads apart.
      const int head = thread / (kMaxWidth / kUnitChannels);
      const uint16_t* from =
          a.q + (static_cast<int64_t>(row) * a.heads + head0) * kMaxWidth + thread * kUnitChannels;
      uint16_t* to = s.queries + unit_at(head, thread % (kMaxWidth / kUnitChannels));
#pragma unroll
      for (int i = 0; i < kHeads; i += 8) {
        const bool valid = head0 + head + i < a.heads;
        copy_async_16(to + i * kMaxWidth, valid ? from + i * kMaxWidth : a.q, valid);
      }
      if (thread < kOwnChannels) {
        const int z = quarter * kQuarterWidth + own_class * kOwnChannels + thread - (kMaxWidth - 2 * a.pairs);
        if (z >= 0) copy_async_4(&s.angles[thread], a.cos_sin + static_cast<int64_t>(row) * 2 * a.pairs + z);
      }
      if (!params.early.selected && a.main_cache.base != nullptr) {
        __syncthreads();
        const uint8_t* record = nullptr;
        if (later) {
          index = selected_entry(a, row, slot);
          if (index >= 0) record = record_by_shift(params, true, step_row.sequence, index);
          s.record[thread] = record;
        }
        const uint32_t live = __ballot_sync(~0u, record != nullptr);
        if (thread < kMostRounds * kChunk && lane == 0) s.live[warp] |= live;
        __syncthreads();
      }
      if ((flags & kMore) == 0) break;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (key_tile(j) >= 2 * rounds) continue;
      const int i = key_index(j);
      const uint32_t early = s.early[i / 32] >> (i - at.g) % 32;  // of the tile
      if ((early & 0xFF) != 0xFF) flags |= kMore;
      if (is_live(i)) flags |= 1u << j;
      if ((early >> at.g & 1) == static_cast<uint32_t>(pass)) continue;
      load(keys[j], i, at.channel);
    }
    const int channel = (lane & 3) * 32;  // of the quarter
    const auto value_tile = [&](int j) { return warp + j * kAttentionWarps; };
    bool now[2];
    RawChannels raw[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int first = value_tile(j) * 8;
      const bool early = first < rounds * kChunk && (s.early[first / 32] >> first % 32 & 0xFF) == 0xFF;
      if (first < rounds * kChunk && !early) flags |= kMore;
      now[j] = first < rounds * kChunk && early == (pass == 0);
      if (now[j]) load(raw[j], first + at.g, quarter * kQuarterWidth + channel);
    }
#pragma unroll 1
    for (int j = 0; j < 2; ++j) {
      if (!(j == 0 ? now[0] : now[1])) continue;
      const RawChannels one = j == 0 ? raw[0] : raw[1];
      const int i = value_tile(j) * 8 + at.g;
      const bool main = is_main(i), live = is_live(i);
      const int own = value_at(i, channel / kUnitChannels);
      decode_tile(one, main, live, [&](int u, const uint4& unit) {
        *reinterpret_cast<uint4*>(values + unit_beside(own, u)) = unit;
      });
    }
  }
  copy_async_commit();
  uint4 key[2][kLaneUnits];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (key_tile(j) >= 2 * rounds) continue;
    decode_tile(keys[j], is_main(key_index(j)), (flags >> j & 1) != 0,
                [&](int u, const uint4& unit) { key[j][u] = unit; });
  }
  copy_async_wait<0>();
  __syncthreads();
  // Not before the queries are there: the next kernel's first act is to ask for all of its weights.
  launch_dependents();

  // ---- scores
  float d[2][4] = {};
#pragma unroll
  for (int u = 0; u < kLaneUnits; ++u) {
    uint32_t q[2][4];
    read_query(s.queries, at, u, q);
#pragma unroll
    for (int j = 0; j < 2; ++j) multiply_unit(d[j], q, key[j][u]);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (key_tile(j) < 2 * rounds) store_parts(s.parts[at.fourth], key_tile(j) * 8, d[j]);
  }
  __syncthreads();
  // From here on warp w has head w. A lane has two slots side by side of one round.
  const int round = lane / (kQuarterSlots / 2);
  const int pair = quarter * kQuarterSlots + lane % (kQuarterSlots / 2) * 2;
  const uint32_t live = s.live[2 * round + pair / 32] >> pair % 32;
  const ChunkScores z = add_parts(s.parts, live, a.scale * kRecordShift);
  const float4 largest = round_maxima(fmaxf(fmaxf(z.low, z.high), kInitialMax));
  if (rounds > 0 && lane < kFewBlocks) {
    store_cluster_async(reinterpret_cast<float4*>(&s.maxima[rank][warp * kMostRounds]), &s.maxima_there,
                        static_cast<uint32_t>(lane), largest);
  }
  barrier_wait(&s.maxima_there, 0);

  // ---- weights. Lane n has chunk n of the list.
  const int n = lane % kMaxChunks;
  float running = kInitialMax;
  if (n < chunks) {
#pragma unroll
    for (int c = 0; c < kQuarters; ++c)
      running = fmaxf(running, s.maxima[n % kClasses + c * kClasses][warp * kMostRounds + n / kClasses]);
  }
#pragma unroll
  for (int offset = 1; offset < kMaxChunks; offset *= 2) {
    const float before = __shfl_up_sync(~0u, running, offset);
    if (n >= offset) running = fmaxf(running, before);
  }
  const float own_max = __shfl_sync(~0u, running, own_class + round * kClasses);
  const float low = expf(z.low - own_max), high = expf(z.high - own_max);
  const float word = __uint_as_float(pack_bf16(low, high));
  float4 eight;  // slots: of this lane's four
  eight.x = __shfl_sync(~0u, word, lane & 28), eight.y = __shfl_sync(~0u, word, (lane & 28) + 1);
  eight.z = __shfl_sync(~0u, word, (lane & 28) + 2), eight.w = __shfl_sync(~0u, word, (lane & 28) + 3);
  if (round < rounds) {
    uint16_t* to = &s.weights[round][warp][quarter * kQuarterSlots + (lane >> 2 & 1) * 8];
    store_cluster_async(reinterpret_cast<float4*>(to), &s.weights_there,
                        static_cast<uint32_t>(own_class + (lane & 3) * kClasses), eight);
  }
  const float sum = add_lanes<kQuarterSlots / 2>(low + high);
  float4 told;
  told.x = __shfl_sync(~0u, sum, 0), told.y = __shfl_sync(~0u, sum, 8);
  told.z = __shfl_sync(~0u, sum, 16), told.w = __shfl_sync(~0u, sum, 24);
  if (rounds > 0 && lane < kFewBlocks) {
    store_cluster_async(reinterpret_cast<float4*>(&s.sums.weights[rank][warp * kMostRounds]), &s.sums_there,
                        static_cast<uint32_t>(lane), told);
  }
  // Factors of the chunks by the first half of the lanes, of the classes by the second.
  const float last = __shfl_sync(~0u, running, chunks - 1);
  const float before = __shfl_up_sync(~0u, running, kClasses);
  const bool of_chunk = lane < kMaxChunks;
  const float factor = expf(of_chunk ? before - running : running - last);
  if (of_chunk) {
    if (n < chunks) s.chunk_factor[n][warp] = n >= kClasses ? factor : 0.0f;
  } else if (n < chunks ? n >= chunks - kClasses : n < kClasses) {
    s.class_factor[n % kClasses][warp] = n < chunks ? factor : 0.0f;
  }
  if (lane == 0) s.last_max[warp] = last;
  __syncthreads();

  if (warp < kValueWarps) {
    // ---- values: two units of channels
    UnitSums sums;
    if (rounds > 0) {
      barrier_wait(&s.weights_there, 0);
      const int g = lane >> 2;
      // Not unrolled: all of this code runs once a layer, and its lines come from afar.
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const float f0 = s.chunk_factor[own_class + i * kClasses][g];
        const float f1 = s.chunk_factor[own_class + i * kClasses][g + 8];
        const uint16_t* kv = values + i * kChunk * kQuarterWidth;
        uint32_t weight[4][4];
        load_weights(s.weights[i], weight);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float product[4] = {};
          multiply_values<kQuarterWidth>(product, weight, kv + value_at(lane, warp * 2 + j));
#pragma unroll
          for (int k = 0; k < 4; ++k) sums.unit[j][k] = fmaf(sums.unit[j][k], k < 2 ? f0 : f1, product[k]);
        }
      }
      // To the block that finishes them.
      float* to = &s.sums.values[own_class][0][warp % 2 * 16];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        push_unit(sums.unit[j], to + j * 8, &s.values_there, warp / 2 + quarter * kClasses);
    }
  } else {
    // ---- the sum of all weights: half a warp a head
    barrier_wait(&s.sums_there, 0);
    const int head = (warp - kValueWarps) * 2 + lane / 16;
    float x[kQuarters] = {};
#pragma unroll
    for (int c = 0; c < kQuarters; ++c) {
      if (n < chunks) x[c] = s.sums.weights[n % kClasses + c * kClasses][head * kMostRounds + n / kClasses];
    }
    const float chunk_sum = (x[0] + x[1]) + (x[2] + x[3]);
    const int c = n % kClasses, half = lane & 16;
    float class_sum = __shfl_sync(~0u, chunk_sum, half + c);
#pragma unroll
    for (int i = 1; i < kMostRounds; ++i) {
      const float v = __shfl_sync(~0u, chunk_sum, half + c + i * kClasses);
      if (c + i * kClasses < chunks) class_sum = fmaf(class_sum, s.chunk_factor[c + i * kClasses][head], v);
    }
    float of[kClasses];
#pragma unroll
    for (int i = 0; i < kClasses; ++i) of[i] = __shfl_sync(~0u, class_sum, half + i);
    const float total = join_classes(of[0], s.class_factor[0][head], of[2], s.class_factor[2][head]) +
                        join_classes(of[1], s.class_factor[1][head], of[3], s.class_factor[3][head]);
    if (n == 0) s.inverse[head] = kRecordShift / (total + expf(s.sink[head] - s.last_max[head]));
  }
  __syncthreads();

  // ---- output: two channels a thread. All but the values is read, and all places are made, while these are
  // on their way.
  if (thread >= kHeads * kOwnChannels / 2) return;
  const int head = thread / (kOwnChannels / 2);
  if (head0 + head >= a.heads) return;
  const int own = thread % (kOwnChannels / 2) * 2;  // channel
  const int channel = quarter * kQuarterWidth + own_class * kOwnChannels + own;
  uint32_t* const to = reinterpret_cast<uint32_t*>(
      a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * kMaxWidth + channel);
  // A unit's channels lie in the order 0, 1, 4, 5, 2, 3, 6, 7.
  const float* const sums = &s.sums.values[0][head][own / 8 * 8 + (own & 2) * 2 + (own & 4) / 2];
  float by[kClasses];
#pragma unroll
  for (int c = 0; c < kClasses; ++c) by[c] = s.class_factor[c][head];
  const bool any = s.last_max[head] > kInitialMax;
  const float inverse = s.inverse[head];
  const bool turns = channel >= kMaxWidth - 2 * a.pairs;
  const float cosine = turns ? s.angles[own] : 1.0f, sine = turns ? s.angles[own + 1] : 0.0f;
  barrier_wait(&s.values_there, 0);
  float2 of[kClasses] = {};
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    if (c < chunks) of[c] = *reinterpret_cast<const float2*>(sums + c * kHeads * kOwnChannels);
  }
  const float2 result = join_four(of, by);
  uint32_t out = 0;
  if (any) {
    out = pack_bf16(result.x * inverse, result.y * inverse);
    if (turns) out = rotated_back(out, cosine, sine);
  }
  *to = out;
}

}  // namespace

bool launch_few_attention(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early,
                          int chunks) {
  const size_t bytes = kValuesAt + static_cast<size_t>(ceil_div(chunks, kClasses)) * kRoundBytes;
  const auto shift_of = [](const PagedCache& cache) {
    const auto records = static_cast<uint32_t>(cache.records_per_block);
    return cache.base == nullptr ? 0 : std::has_single_bit(records) ? std::countr_zero(records) : -1;
  };
  AttentionParams params = {args, early};
  params.window_shift = shift_of(args.window_cache);
  params.main_shift = shift_of(args.main_cache);
  if (args.window % 8 != 0 || args.max_selected % 8 != 0 || params.window_shift < 0 ||
      params.main_shift < 0 || on.device.max_attention_cluster < kFewBlocks ||
      bytes > on.device.shared_bytes) {
    return false;
  }
  launch_kernel(on, few_attention_kernel,
                dim3(kFewBlocks, static_cast<unsigned>(ceil_div(args.heads, kHeads)),
                     static_cast<unsigned>(args.step.rows)),
                kThreads, bytes, kFewBlocks, params);
  return true;
}

}  // namespace spark::engine::cuda
