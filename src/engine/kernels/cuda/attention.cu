// Sparse attention over one shared latent (K = V). A cluster of four blocks or two takes one row and 16 heads
// and deals the row's chunks of 64 slots out in turns. (Few rows of whole width: attention_few.cu.)
//
// The contract rounds e = exp(z - m') to BF16 relative to the *running* maximum m' of the list. So the maxima
// of all chunks travel to all blocks of the cluster as soon as they are known (a running maximum is the
// maximum of the chunks so far); a block that has more chunks computes the next one's scores before it needs
// them.
//
// Chunks i, i + 4, i + 8, .. are a class and are summed up by the contract's recurrence, acc = acc * f + e *
// kv with f = exp(m of the class's chunk before - m'). The four classes are then joined at the last maximum,
// ((0 + 2) + (1 + 3)). That order is the same however many blocks there are: with four blocks each has a
// class, with two each has two.
//
// Most records were written by earlier steps: what is known to be complete (EarlyRecords) is read before the
// wait. Blocks push what others need into their shared memory and meet; no block reads another's.
#include <type_traits>

#include "engine/kernels/cuda/attention_cluster.cuh"
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * 32;

// kFull: heads of 512 channels and records on 16 bytes, as the model has them.
template <int kSplit, int kBuffers, bool kFull>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_attention_kernel(const __grid_constant__ AttentionParams params) {
  constexpr bool kAhead = kBuffers == 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  if constexpr (kAhead) return;  // never launched: three buffers are more than GB10 has
#endif
  constexpr int kSlots = kAttentionRounds<kSplit> * kChunk;
  SPARK_DYNAMIC_SHARED(uint8_t, memory);
  AttentionShared<kSplit, kBuffers>& s = *reinterpret_cast<AttentionShared<kSplit, kBuffers>*>(memory);
  const SparseAttentionArgs& a = params.a;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31, warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x), ranks = static_cast<int>(gridDim.x);
  const int head0 = static_cast<int>(blockIdx.y) * kHeads;
  const int row = static_cast<int>(blockIdx.z);
  const RowOfStep step_row = row_of_step(a, row);
  const int extra = a.extra == nullptr ? 0 : step_row.last - step_row.first + 1;
  const int slots = a.window + a.max_selected + extra;
  const int chunks = (slots + kChunk - 1) / kChunk;
  const int rounds = (chunks + ranks - 1) / ranks;

  // The thread's slot of the block's.
  const int slot = (rank + thread / kChunk * ranks) * kChunk + thread % kChunk;
  const bool wanted = thread < kSlots && slot < slots;
  const bool chosen = wanted && is_selected(a, slot);
  const bool later = chosen && !params.early.selected;
  const int entry = chosen && !later ? selected_entry(a, row, slot) : -1;
  if (step_row.sequence < 0) {  // the whole cluster leaves
    wait_for_inputs();
    return;
  }
  if (thread == 0) {
#pragma unroll
    for (int i = 0; i < kAttentionRounds<kSplit>; ++i) barrier_init(&s.arrived[i], 1);
    barrier_init(&s.summed, 1);
    barrier_init(&s.pushed, 1);
    barrier_init_done();
    const auto bytes = static_cast<uint32_t>(ranks * kHeads * static_cast<int>(sizeof(float)));
    for (int i = 0; i < rounds; ++i) barrier_expect(&s.arrived[i], bytes);
    barrier_expect(&s.summed, bytes);
    const int pieces = min(params.owned_pieces, a.width / 4 - rank * params.owned_pieces);
    barrier_expect(&s.pushed, static_cast<uint32_t>(ranks * pieces * kPiece) * uint32_t{sizeof(float)});
  }
  cluster_arrive_relaxed();  // the others must have started before something is written into their memory
  if (thread < kHeads && head0 + thread < a.heads) s.sink[thread] = __ldg(a.sink + head0 + thread);

  if (thread < kSlots) {
    Slot found = {nullptr, false, false};
    if (wanted && !later) found = slot_at(a, params.early, step_row, slot, entry);
    s.record[thread] = found.record;
    const uint32_t live = __ballot_sync(~0u, found.record != nullptr);
    const uint32_t early = __ballot_sync(~0u, !later && (found.early || found.record == nullptr));
    if (lane == 0) s.live[warp] = live, s.early[warp] = early;
  }
  __syncthreads();

  const ScorePlace at = score_place();
  const int width = kFull ? kMaxWidth : a.width;
  // The lane's first unit of the first tile.
  const int own = unit_at(at.slots + at.g, at.channel / kUnitChannels);
  RawChannels raw[2];
  const auto is_main = [&](int round, int tile) {
    return is_selected(a, (rank + round * ranks) * kChunk + at.slots + tile * 8 + at.g);
  };
  const auto is_live = [&](int round, int tile) {
    const uint32_t live = s.live[2 * round + at.slots / 32];  // of both tiles
    return (live >> (at.slots % 32 + tile * 8 + at.g) & 1) != 0 && at.channel < width;
  };
  enum class Read : uint8_t { kAll, kEarly, kLate };
  const auto load_tile = [&](RawChannels& to, int round, int tile, Read which) {
    const int i = round * kChunk + at.slots + tile * 8 + at.g;
    if (which != Read::kAll && ((s.early[i / 32] >> i % 32 & 1) != 0) != (which == Read::kEarly)) return;
    load_channels<kFull>(to, s.record[i], a.window_cache.base, is_main(round, tile), width, at.channel);
  };
  // With values behind scores: the records of a round come to where its chunk is decoded later. Eight threads
  // a slot.
  const auto stage = [&](int round, int place, Read which) {
    const int i = round * kChunk + thread / 8;
    if (which != Read::kAll && ((s.early[i / 32] >> i % 32 & 1) != 0) != (which == Read::kEarly)) return;
    const uint8_t* record = s.record[i];
    if (record == nullptr) return;
    const bool main = is_selected(a, (rank + round * ranks) * kChunk + thread / 8);
    const int bytes = main ? main_record_bytes(width) : window_record_bytes(width);
    uint8_t* to = reinterpret_cast<uint8_t*>(s.kv[place]) + thread / 8 * kRawStride;
    if constexpr (kFull) {
      constexpr int kMost = (window_record_bytes(kMaxWidth) + 127) / 128;
#pragma unroll
      for (int i16 = 0; i16 < kMost; ++i16) {
        const int offset = (thread % 8 + i16 * 8) * 16;
        copy_async_16_if(offset < bytes, to + offset, record + offset, true);
      }
    } else {
      for (int at = thread % 8; at < bytes; at += 8) to[at] = __ldcg(record + at);
    }
  };
  // Twice: what is complete before the wait, the rest behind it.
  uint16_t* const queries = s.kv[kAhead ? kBuffers - 1 : 0];
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass != 0) {
      cluster_wait();
      wait_for_inputs();
      launch_dependents();
      copy_queries(a, row, head0, width, queries);
#pragma unroll 1
      for (int i = thread; i < 2 * a.pairs; i += kThreads)
        copy_async_4(&s.angles[i], a.cos_sin + static_cast<int64_t>(row) * 2 * a.pairs + i);
      if (!params.early.selected && a.main_cache.base != nullptr) {
        __syncthreads();
        const uint8_t* record = nullptr;
        if (later) {
          record = chosen_slot(a, step_row.sequence, selected_entry(a, row, slot), false).record;
          s.record[thread] = record;
        }
        const uint32_t live = __ballot_sync(~0u, record != nullptr);
        if (thread < kSlots && lane == 0) s.live[warp] |= live;
        __syncthreads();
      }
    }
    const Read which = pass == 0 ? Read::kEarly : Read::kLate;
    if constexpr (kAhead) {
      stage(0, 0, which);
    } else {
#pragma unroll
      for (int tile = 0; kFull && tile < 2; ++tile) load_tile(raw[tile], 0, tile, which);
    }
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  uint32_t q[kLaneUnits][2][4];
#pragma unroll
  for (int u = 0; u < kLaneUnits; ++u) read_query(queries, at, u, q[u]);
  if constexpr (!kAhead) __syncthreads();

  ValueSums sums[kAttentionSets<kSplit>];  // of the class that is next, and of the other
  ChunkScores next;                        // scores whose weights are next
  const int last_round = rounds - 1;
  // Which of the decoded chunks: of the round whose values are next, of the scores, and of the scores after
  // that.
  int place = 0, place_ahead = 0, place_after = kAhead ? 1 : 0;
#pragma unroll 1
  for (int ahead = 0; ahead < rounds + static_cast<int>(kAhead); ++ahead) {
    // Scores. The next chunk's records are on their way while this one's weights and values are made.
    if (ahead < rounds && rank + ahead * ranks < chunks) {
      uint16_t* kv = s.kv[place_ahead];
      float d[2][4] = {};
      const bool main[2] = {is_main(ahead, 0), is_main(ahead, 1)};
      const bool live[2] = {is_live(ahead, 0), is_live(ahead, 1)};
      if constexpr (kAhead) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          const uint8_t* staged =
              reinterpret_cast<const uint8_t*>(kv) + (at.slots + tile * 8 + at.g) * kRawStride;
          read_channels(raw[tile], staged, main[tile], width, at.channel);
        }
        // All have read theirs, and the values of two chunks ago are done with the next one's place.
        __syncthreads();
        if (ahead < last_round && rank + (ahead + 1) * ranks < chunks)
          stage(ahead + 1, place_after, Read::kAll);
        copy_async_commit();
      }
      if constexpr (kAhead || kFull) {
        decode_tiles<2>(raw, main, live, [&](int tile, int u, const uint4& unit) {
          *reinterpret_cast<uint4*>(kv + tile * kTile + unit_beside(own, u)) = unit;
          multiply_unit(d[tile], q[u], unit);
        });
      } else {
        // Records that do not lie on 16 bytes take too many registers to come ahead.
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          load_tile(raw[0], ahead, tile, Read::kAll);
          decode_tiles<1>(&raw[0], &main[tile], &live[tile], [&](int, int u, const uint4& unit) {
            *reinterpret_cast<uint4*>(kv + tile * kTile + unit_beside(own, u)) = unit;
            multiply_unit(d[tile], q[u], unit);
          });
        }
      }
      if constexpr (!kAhead && kFull) {
        if (ahead < last_round) {
          load_tile(raw[0], ahead + 1, 0, Read::kAll);
          load_tile(raw[1], ahead + 1, 1, Read::kAll);
        }
      }
      store_parts(s.parts[at.fourth], at.slots, d[0]);
      store_parts(s.parts[at.fourth], at.slots + 8, d[1]);
    }
    __syncthreads();
    // Maxima: warp w has head w, and tells every block.
    ChunkScores scores;
    if (ahead < rounds) {
      const int chunk = rank + ahead * ranks;
      if (chunk < chunks)
        scores = add_parts(s.parts, s.live[2 * ahead + lane / 16] >> lane % 16 * 2, a.scale * kRecordShift);
      const float largest = warp_max(fmaxf(fmaxf(scores.low, scores.high), kInitialMax));
      if (lane < ranks)
        store_cluster_async(&s.maxima[chunk][warp], &s.arrived[ahead], static_cast<uint32_t>(lane), largest);
    }
    const int round = ahead - static_cast<int>(kAhead);
    const int chunk = rank + round * ranks;
    if constexpr (!kAhead) next = scores;
    if (round >= 0) {
      barrier_wait(&s.arrived[round], 0);
      if (chunk < chunks) {
        const float running = warp_max(lane <= chunk ? s.maxima[lane][warp] : kInitialMax);
        const float sum = store_weights(next, running, s.e);
        const int set = round % kAttentionSets<kSplit>;
        const bool first = chunk < kClasses;
        const float f = first ? 0.0f : expf(s.class_max[set][warp] - running);
        const float before = first ? 0.0f : s.class_sum[set][warp];
        __syncwarp();
        if (lane == 0) {
          s.step_factor[warp] = f;
          s.class_max[set][warp] = running;
          s.class_sum[set][warp] = fmaf(before, f, sum);
        }
      }
      if (round == last_round) {
        const float running = running_maxima(s.maxima, chunks);
        const float last = __shfl_sync(~0u, running, chunks - 1);
        if (lane < chunks) {
          if (lane >= chunks - kClasses) s.class_factor[lane % kClasses][warp] = expf(running - last);
        } else if (lane < kClasses) {
          s.class_factor[lane][warp] = 0.0f;
        }
        if (lane == 0) s.last_max[warp] = last;
        __syncwarp();
        // The block's sum of weights, for all blocks.
        float sum = rank < chunks ? s.class_sum[0][warp] : 0.0f;
        if constexpr (kSplit == 2) {
          sum = join_classes(sum, s.class_factor[rank][warp], rank + 2 < chunks ? s.class_sum[1][warp] : 0.0f,
                             s.class_factor[rank + 2][warp]);
        }
        if (lane < ranks)
          store_cluster_async(&s.sums[rank][warp], &s.summed, static_cast<uint32_t>(lane), sum);
      }
    }
    if constexpr (kAhead) {
      next = scores;
      copy_async_wait<0>();
    }
    __syncthreads();
    if (round >= 0) {
      if (chunk < chunks) {
        const uint16_t* kv = s.kv[place];
        const int g = lane >> 2;
        add_values(kv, s.e, s.step_factor[g], s.step_factor[g + 8], width, sums[0]);
      }
      if constexpr (kSplit == 2) {
        // The block's classes take turns.
        const ValueSums other = sums[1];
        sums[1] = sums[0], sums[0] = other;
      }
      if constexpr (!kAhead) __syncthreads();  // the chunk and its weights have been read
    }
    if constexpr (kAhead) {
      place = place_ahead, place_ahead = place_after;
      place_after = place_after == kBuffers - 1 ? 0 : place_after + 1;
    }
  }

  if constexpr (kSplit == 2) {
    const bool swapped = rounds % 2 != 0;  // the first class is the second set
    const int g = lane >> 2;
#pragma unroll
    for (int j = 0; j < kLaneUnits; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = g + (i >= 2 ? 8 : 0);
        const float x = sums[0].unit[j][i], y = sums[1].unit[j][i];
        sums[0].unit[j][i] = join_classes(swapped ? y : x, s.class_factor[rank][head], swapped ? x : y,
                                          s.class_factor[rank + 2][head]);
      }
    }
  }
  // Every block finishes its share of pieces. Where the others' parts go nobody reads any more: all maxima
  // have arrived, so all blocks are done with the scores' parts, and with all decoded chunks but the last
  // two.
  float* received;  // [part][piece][8][8]
  if constexpr (kAhead) {
    received = reinterpret_cast<float*>(s.kv[rounds % kBuffers]);
  } else {
    received = reinterpret_cast<float*>(s.kv[0]);
    cluster_sync();
  }
  push_sums(params, sums[0], rank, received, &s.pushed);
  barrier_wait(&s.summed, 0);
  const float divisor = join<kSplit>(s, warp, [&](int r) { return make_float2(s.sums[r][warp], 0.0f); }).x;
  if (lane == 0) s.inverse[warp] = kRecordShift / (divisor + expf(s.sink[warp] - s.last_max[warp]));
  __syncthreads();
  barrier_wait(&s.pushed, 0);

  const int first_piece = rank * params.owned_pieces;
  const int pieces = min(params.owned_pieces, a.width / 4 - first_piece);
  const int stride = params.owned_pieces * kPiece;
  for (int i = thread; i < pieces * (kPiece / 2); i += kThreads) {
    const int piece = first_piece + i / (kPiece / 2);
    const int within = i % (kPiece / 2) * 2;  // float of the piece
    const int head = (piece & 1) * 8 + within / 8;
    const int channel = piece / 2 * 8 + (within / 2 & 1) * 4 + (within / 4 & 1) * 2;
    if (head0 + head >= a.heads) continue;
    const float* from = received + i / (kPiece / 2) * kPiece + within;
    const float2 sum =
        join<kSplit>(s, head, [&](int r) { return *reinterpret_cast<const float2*>(from + r * stride); });
    uint32_t out = 0;
    if (s.last_max[head] > kInitialMax) {
      out = pack_bf16(sum.x * s.inverse[head], sum.y * s.inverse[head]);
      const int z = channel - (a.width - 2 * a.pairs);
      if (z >= 0) out = rotated_back(out, s.angles[z], s.angles[z + 1]);
    }
    *reinterpret_cast<uint32_t*>(a.o + (static_cast<int64_t>(row) * a.heads + head0 + head) * a.width +
                                 channel) = out;
  }
}

}  // namespace

void launch_sparse_attention(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early) {
  if (args.width > kMaxWidth || args.width % 32 != 0) {
    throw Error("attention heads of width " + std::to_string(args.width), "CUDA backend",
                "head widths are multiples of 32 up to 512");
  }
  const int slots = args.window + args.max_selected + (args.extra != nullptr ? kChunk : 0);
  const int chunks = static_cast<int>(ceil_div(slots, kChunk));
  if (chunks > kMaxChunks) {
    throw Error("attention list of " + std::to_string(slots) + " slots", "CUDA backend",
                "at most 1024 slots: window, selected entries and a draft block");
  }
  const int head_groups = static_cast<int>(ceil_div(args.heads, kHeads));
  const int clusters = args.step.rows * head_groups;
  const bool full = args.width == kMaxWidth && args.window_cache.record_bytes % 16 == 0 &&
                    (args.main_cache.base == nullptr || args.main_cache.record_bytes % 16 == 0);
  if (full && clusters <= kFewClusters && launch_few_attention(on, args, early, chunks)) return;
  const auto launch = [&](auto kernel, int ranks, size_t bytes) {
    const int owned = static_cast<int>(ceil_div(args.width / 4, ranks));
    const AttentionParams params = {args, early, owned, static_cast<uint32_t>(ceil_div(1 << 16, owned))};
    const dim3 grid(static_cast<unsigned>(ranks), static_cast<unsigned>(head_groups),
                    static_cast<unsigned>(args.step.rows));
    launch_kernel(on, kernel, grid, kThreads, bytes, ranks, params);
  };
  const auto with = [&](auto is_full) {
    constexpr bool kFull = decltype(is_full)::value;
    if (sizeof(AttentionShared<2, 3>) > on.device.shared_bytes)
      return launch(sparse_attention_kernel<4, 1, kFull>, 4, sizeof(AttentionShared<4, 1>));
    if (clusters * 4 <= on.device.clustered_blocks)
      return launch(sparse_attention_kernel<4, 3, kFull>, 4, sizeof(AttentionShared<4, 3>));
    launch(sparse_attention_kernel<2, 3, kFull>, 2, sizeof(AttentionShared<2, 3>));
  };
  full ? with(std::true_type{}) : with(std::false_type{});
}

}  // namespace spark::engine::cuda
