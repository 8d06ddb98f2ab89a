#include "engine/kernels/cpu/attend.h"

#include <algorithm>

#include "engine/kernels/cpu/vectors.h"
#include "engine/numeric/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/attend.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
// clang-format on

// Scores have heads in the lanes (a record's channel is broadcast to all heads), values have channels in the
// lanes (a head's probability is broadcast): no horizontal sums, and every sum runs in list or channel order.
// All products are exact in FP32. Sums of 32 channels of a score are formed in FP32 and added up in double,
// because the softmax magnifies the last bits; sums of a chunk's values are formed in FP32.

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

constexpr int kSlotGroup = kLanes == 16 ? 8 : 4;  // slots whose scores are summed together
constexpr int kHeadGroup = kLanes == 16 ? 8 : 4;  // heads whose values are summed together
constexpr int kSlack = 8;                         // rows that a last group may write past the end

using VHalf = hn::Vec<DFHalf>;

struct State {
  int64_t heads;   // of the group, padded to kDoubles
  int64_t stride;  // heads, padded to whole vectors
  float* q;        // [width][stride]
  float* kv;       // [chunk][width]
  float* z;        // [chunk + slack][stride], scores, then probabilities
  float* m;        // [stride]
  float* d;
  float* f;
  float* acc;  // [stride][width]
};

HWY_INLINE State carve(const AttendTask& task, Buffer& scratch) {
  State state{};
  state.heads = static_cast<int64_t>((static_cast<size_t>(task.heads) + kDoubles - 1) / kDoubles * kDoubles);
  state.stride = (task.heads + kHeadLanes - 1) / kHeadLanes * kHeadLanes;
  const int64_t stride = state.stride;
  const int64_t floats[] = {
      task.width * stride, kChunkSlots * task.width, (kChunkSlots + kSlack) * stride, stride, stride, stride,
      stride * task.width};
  int64_t count = 0;
  for (const int64_t n : floats) count += n;
  auto* at = scratch.get<float>(static_cast<size_t>(count));
  float** const part[] = {&state.q, &state.kv, &state.z, &state.m, &state.d, &state.f, &state.acc};
  for (size_t i = 0; i < 7; at += floats[i++]) *part[i] = at;
  return state;
}

// q [heads][width] in BF16 to state.q [width][stride]; lanes beyond the heads get zeros.
HWY_INLINE void transpose_queries(const AttendTask& task, const State& state) {
  const hn::Rebind<uint16_t, D4> d16;
  const hn::Rebind<uint32_t, D4> d32;
  const int64_t width = task.width;
  const int64_t stride = state.stride;
  int64_t h = 0;
  for (; h + 4 <= task.heads; h += 4) {
    for (int64_t c = 0; c < width; c += 4) {
      Matrix4 a;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, task.q + (h + i) * width + c));
        a.r[i] = hn::BitCast(D4(), hn::ShiftLeft<16>(bits));
      }
      a = transposed(a);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) hn::StoreU(a.r[i], D4(), state.q + (c + i) * stride + h);
    }
  }
  for (; h < stride; ++h) {
    for (int64_t c = 0; c < width; ++c)
      state.q[c * stride + h] = h < task.heads ? bf16_to_float(task.q[h * width + c]) : 0.0F;
  }
}

HWY_INLINE void start(const AttendTask& task, const State& state) {
  const int64_t stride = state.stride;
  transpose_queries(task, state);
  for (int64_t h = 0; h < stride; ++h) {
    state.m[h] = -1e30F;
    state.d[h] = 0;
    state.f[h] = 0;
  }
  std::fill_n(state.z, (kChunkSlots + kSlack) * stride, 0.0F);
  std::fill_n(state.acc, stride * task.width, 0.0F);
}

HWY_INLINE void load_record(const AttendTask& task, int64_t slot, float* kv) {
  const uint8_t* record = task.list.record[slot];
  if (slot >= task.list.first_main && slot < task.list.last_main) {
    decode_main_record_f32(record, task.width, kv);
  } else {
    decode_window_record_f32(record, task.width, kv);
  }
}

// z[i][h] = scale * round(sum over c of q[c][h] * kv[i][c]) for a vector of heads from h on. The width is a
// multiple of kSumChannels.
constexpr int64_t kSumChannels = 32;
HWY_INLINE void score_heads(const State& state, int64_t h, int n, int64_t width, float scale) {
  const int64_t stride = state.stride;
  for (int i = 0; i < n; i += kSlotGroup) {
    const float* row[kSlotGroup];
    VD total[kSlotGroup][2];
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s) {
      row[s] = state.kv + std::min(i + s, n - 1) * width;
      total[s][0] = total[s][1] = hn::Zero(DD());
    }
    for (int64_t begin = 0; begin < width; begin += kSumChannels) {
      VF sum[kSlotGroup];
#pragma GCC unroll 8
      for (int s = 0; s < kSlotGroup; ++s) sum[s] = zero();
      for (int64_t c = begin; c < begin + kSumChannels; ++c) {
        const VF qc = load(state.q + c * stride + h);
#pragma GCC unroll 8
        for (int s = 0; s < kSlotGroup; ++s) sum[s] = hn::MulAdd(qc, set(row[s][c]), sum[s]);
      }
#pragma GCC unroll 8
      for (int s = 0; s < kSlotGroup; ++s) {
        total[s][0] = hn::Add(total[s][0], low_doubles(sum[s]));
        total[s][1] = hn::Add(total[s][1], high_doubles(sum[s]));
      }
    }
    const VF factor = set(scale);
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s)
      store(hn::Mul(to_floats(total[s][0], total[s][1]), factor), state.z + (i + s) * stride + h);
  }
}

HWY_INLINE void scores(const State& state, int n, int64_t width, float scale) {
  for (int64_t h = 0; h < state.stride; h += kLanes) score_heads(state, h, n, width, scale);
}

// Turns z into probabilities relative to the running maximum, rounded to BF16, and updates m, d and f.
HWY_INLINE void softmax_step(const State& state, int n) {
  const int64_t stride = state.stride;
  for (int64_t h = 0; h < state.heads; h += kDoubles) {
    const VHalf before = hn::LoadU(DFHalf(), state.m + h);
    VHalf largest = before;
    for (int i = 0; i < n; ++i) {
      const VHalf zi = hn::LoadU(DFHalf(), state.z + i * stride + h);
      largest = hn::IfThenElse(hn::Lt(largest, zi), zi, largest);
    }
    VD sum = hn::Zero(DD());
    for (int i = 0; i < n; ++i) {
      float* z = state.z + i * stride + h;
      const VHalf x = hn::Sub(hn::LoadU(DFHalf(), z), largest);
      const VHalf e = hn::DemoteTo(DFHalf(), exp_double(hn::PromoteTo(DD(), x)));
      sum = hn::Add(sum, hn::PromoteTo(DD(), e));
      hn::StoreU(e, DFHalf(), z);
    }
    const VHalf decay = hn::DemoteTo(DFHalf(), exp_double(hn::PromoteTo(DD(), hn::Sub(before, largest))));
    hn::StoreU(decay, DFHalf(), state.f + h);
    const VHalf d = hn::Mul(hn::LoadU(DFHalf(), state.d + h), decay);
    hn::StoreU(hn::Add(d, hn::DemoteTo(DFHalf(), sum)), DFHalf(), state.d + h);
    hn::StoreU(largest, DFHalf(), state.m + h);
  }
  for (int64_t i = 0; i < n * stride; i += kLanes) store(round_bf16(load(state.z + i)), state.z + i);
}

// acc[h][c] = acc[h][c] * f[h] + sum over i of p[i][h] * kv[i][c]
HWY_INLINE void accumulate_values(const State& state, int n, int64_t width, int heads) {
  for (int64_t c = 0; c < width; c += 2 * kLanes) {
    for (int h = 0; h < heads; h += kHeadGroup) {
      VF sum[kHeadGroup][2];
#pragma GCC unroll 8
      for (int g = 0; g < kHeadGroup; ++g) sum[g][0] = sum[g][1] = zero();
      for (int i = 0; i < n; ++i) {
        const VF v0 = load(state.kv + i * width + c);
        const VF v1 = load(state.kv + i * width + c + static_cast<int64_t>(kLanes));
#pragma GCC unroll 8
        for (int g = 0; g < kHeadGroup; ++g) {
          const VF p = set(state.z[i * state.stride + h + g]);
          sum[g][0] = hn::MulAdd(p, v0, sum[g][0]);
          sum[g][1] = hn::MulAdd(p, v1, sum[g][1]);
        }
      }
#pragma GCC unroll 8
      for (int g = 0; g < kHeadGroup; ++g) {
        float* to = state.acc + (h + g) * width + c;
        const VF decay = set(state.f[h + g]);
        store(hn::Add(hn::Mul(load(to), decay), sum[g][0]), to);
        to += kLanes;
        store(hn::Add(hn::Mul(load(to), decay), sum[g][1]), to);
      }
    }
  }
}

HWY_INLINE void add_sinks(const AttendTask& task, const State& state) {
  std::copy_n(task.sink, task.heads, state.f);
  for (int64_t h = 0; h < state.stride; h += kLanes) {
    const VF e = exp_float(hn::Sub(load(state.f + h), load(state.m + h)));
    store(hn::Add(load(state.d + h), e), state.d + h);
  }
}

HWY_INLINE void finish(const AttendTask& task, const State& state, bool empty) {
  for (int h = 0; h < task.heads; ++h) {
    uint16_t* o = task.o + h * task.width;
    if (empty) {
      std::fill_n(o, task.width, uint16_t{0});
      continue;
    }
    const VF d = set(state.d[h]);
    for (int64_t c = 0; c < task.width; c += kLanes)
      store_bf16(hn::Div(load(state.acc + h * task.width + c), d), o + c);
    rotate(o, task.width, task.cos_sin, task.pairs, true);
  }
}

void attend_simd(const AttendTask& task, Buffer& scratch) {
  const State state = carve(task, scratch);
  start(task, state);
  bool empty = true;
  for (int64_t begin = 0; begin < task.list.slots; begin += kChunkSlots) {
    const int64_t end = std::min<int64_t>(begin + kChunkSlots, task.list.slots);
    int n = 0;  // empty slots add nothing and are left out
    for (int64_t slot = begin; slot < end; ++slot) {
      if (task.list.record[slot] != nullptr) load_record(task, slot, state.kv + n++ * task.width);
    }
    if (n == 0) continue;
    empty = false;
    scores(state, n, task.width, task.scale);
    softmax_step(state, n);
    accumulate_values(state, n, task.width, task.heads);
  }
  if (!empty) add_sinks(task, state);
  finish(task, state, empty);
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {

HWY_EXPORT(attend_simd);

void attend(const AttendTask& task, Buffer& scratch) {
  HWY_DYNAMIC_DISPATCH(attend_simd)(task, scratch);
}

}  // namespace spark::engine::cpu
#endif
