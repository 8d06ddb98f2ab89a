#include "engine/kernels/cpu/attend.h"

#include <algorithm>
#include <cstring>

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

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

constexpr int kSlotGroup = kLanes == 16 ? 8 : 4;  // slots whose scores are summed together
constexpr int kHeadGroup = kLanes == 16 ? 8 : 4;  // heads whose values are summed together
constexpr int kSlack = 8;                         // rows that a last group may write past the end

// z[i][h] = scale * sum over c of q[c][h] * kv[i][c], for HV vectors of heads.
template <int HV>
HWY_INLINE void score_heads(const float* q, int64_t stride, const float* kv, int n, int64_t width,
                            float scale, float* z) {
  for (int i = 0; i < n; i += kSlotGroup) {
    const float* row[kSlotGroup];
    VF sum[kSlotGroup][HV];
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s) {
      row[s] = kv + std::min(i + s, n - 1) * width;
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v) sum[s][v] = zero();
    }
    for (int64_t c = 0; c < width; ++c) {
      VF qc[HV];
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v) qc[v] = load(q + c * stride + v * static_cast<int>(kLanes));
#pragma GCC unroll 8
      for (int s = 0; s < kSlotGroup; ++s) {
        const VF k = set(row[s][c]);
#pragma GCC unroll 2
        for (int v = 0; v < HV; ++v) sum[s][v] = hn::MulAdd(qc[v], k, sum[s][v]);
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s) {
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v)
        store(hn::Mul(sum[s][v], set(scale)), z + (i + s) * stride + v * static_cast<int>(kLanes));
    }
  }
}

HWY_INLINE void scores(const float* q, int64_t stride, const float* kv, int n, int64_t width, float scale,
                       float* z) {
  int64_t h = 0;
  for (; h + 2 * static_cast<int64_t>(kLanes) <= stride; h += 2 * kLanes)
    score_heads<2>(q + h, stride, kv, n, width, scale, z + h);
  for (; h < stride; h += kLanes) score_heads<1>(q + h, stride, kv, n, width, scale, z + h);
}

// Turns z into probabilities relative to the running maximum, rounded to BF16, and updates m, d and f.
HWY_INLINE void softmax_step(float* z, int64_t stride, int n, float* m, float* d, float* f) {
  for (int64_t h = 0; h < stride; h += kLanes) {
    const VF before = load(m + h);
    VF largest = before;
    for (int i = 0; i < n; ++i) {
      const VF zi = load(z + i * stride + h);
      largest = hn::IfThenElse(hn::Lt(largest, zi), zi, largest);
    }
    VF sum = zero();
    for (int i = 0; i < n; ++i) {
      const VF e = exp_ps(hn::Sub(load(z + i * stride + h), largest));
      sum = hn::Add(sum, e);
      store(round_bf16(e), z + i * stride + h);
    }
    const VF decay = exp_ps(hn::Sub(before, largest));
    store(decay, f + h);
    store(hn::Add(hn::Mul(load(d + h), decay), sum), d + h);
    store(largest, m + h);
  }
}

// acc[h][c] = acc[h][c] * f[h] + sum over i of e[i][h] * kv[i][c]
HWY_INLINE void accumulate_values(const float* e, int64_t stride, const float* kv, int n, int64_t width,
                                  int heads, const float* f, float* acc) {
  constexpr int kVectors = 2;
  for (int64_t c = 0; c < width; c += kVectors * kLanes) {
    for (int h = 0; h < heads; h += kHeadGroup) {
      VF sum[kHeadGroup][kVectors];
#pragma GCC unroll 8
      for (int g = 0; g < kHeadGroup; ++g) sum[g][0] = sum[g][1] = zero();
      for (int i = 0; i < n; ++i) {
        const VF v0 = load(kv + i * width + c);
        const VF v1 = load(kv + i * width + c + static_cast<int64_t>(kLanes));
#pragma GCC unroll 8
        for (int g = 0; g < kHeadGroup; ++g) {
          const VF p = set(e[i * stride + h + g]);
          sum[g][0] = hn::MulAdd(p, v0, sum[g][0]);
          sum[g][1] = hn::MulAdd(p, v1, sum[g][1]);
        }
      }
      for (int g = 0; g < kHeadGroup; ++g) {
        float* to = acc + (h + g) * width + c;
        const VF decay = set(f[h + g]);
        store(hn::Add(hn::Mul(load(to), decay), sum[g][0]), to);
        store(hn::Add(hn::Mul(load(to + kLanes), decay), sum[g][1]), to + kLanes);
      }
    }
  }
}

struct State {
  int64_t stride;  // heads, padded to whole vectors
  float* q;        // [width][stride]
  float* kv;       // [chunk][width]
  float* z;        // [chunk + slack][stride]
  float* m;        // [stride]
  float* d;
  float* f;
  float* acc;  // [stride][width]
};

HWY_INLINE State carve(const AttendTask& task, Buffer& scratch) {
  const int64_t stride = (task.heads + kHeadLanes - 1) / kHeadLanes * kHeadLanes;
  const int64_t sizes[] = {
      task.width * stride, kChunkSlots * task.width, (kChunkSlots + kSlack) * stride, stride, stride, stride,
      stride * task.width};
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  float* at = scratch.get<float>(static_cast<size_t>(total));
  State state{};
  state.stride = stride;
  float** const fields[] = {&state.q, &state.kv, &state.z, &state.m, &state.d, &state.f, &state.acc};
  for (size_t i = 0; i < 7; ++i) {
    *fields[i] = at;
    at += sizes[i];
  }
  return state;
}

HWY_INLINE void start(const AttendTask& task, const State& state) {
  const int64_t stride = state.stride;
  for (int64_t h = 0; h < stride; ++h) {
    for (int64_t c = 0; c < task.width; ++c)
      state.q[c * stride + h] = h < task.heads ? bf16_to_float(task.q[h * task.width + c]) : 0.0F;
    state.m[h] = -1e30F;
    state.d[h] = 0;
  }
  std::memset(state.acc, 0, static_cast<size_t>(stride * task.width) * sizeof(float));
}

HWY_INLINE void finish(const AttendTask& task, const State& state, bool empty) {
  for (int h = 0; h < task.heads; ++h) {
    uint16_t* o = task.o + h * task.width;
    if (empty) {
      std::memset(o, 0, static_cast<size_t>(task.width) * sizeof(uint16_t));
      continue;
    }
    const VF d = set(state.d[h]);
    for (int64_t c = 0; c < task.width; c += kLanes)
      store_bf16(hn::Div(load(state.acc + h * task.width + c), d), o + c);
    rotate(o, task.width, task.cos_sin, task.pairs, true);
  }
}

HWY_INLINE void add_sinks(const AttendTask& task, const State& state) {
  for (int h = 0; h < task.heads; ++h) state.f[h] = task.sink[h];
  for (int64_t h = 0; h < state.stride; h += kLanes) {
    const VF e = exp_ps(hn::Sub(load(state.f + h), load(state.m + h)));
    store(hn::Add(load(state.d + h), e), state.d + h);
  }
}

void attend_simd(const AttendTask& task, Buffer& scratch) {
  const State state = carve(task, scratch);
  start(task, state);
  bool empty = true;
  for (int64_t begin = 0; begin < task.list.slots; begin += kChunkSlots) {
    const int64_t end = std::min<int64_t>(begin + kChunkSlots, task.list.slots);
    int n = 0;  // empty slots add nothing and are left out
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* record = task.list.record[i];
      if (record == nullptr) continue;
      float* kv = state.kv + n++ * task.width;
      if (i >= task.list.first_main && i < task.list.last_main) {
        decode_main_record_f32(record, task.width, kv);
      } else {
        decode_window_record_f32(record, task.width, kv);
      }
    }
    if (n == 0) continue;
    empty = false;
    scores(state.q, state.stride, state.kv, n, task.width, task.scale, state.z);
    softmax_step(state.z, state.stride, n, state.m, state.d, state.f);
    accumulate_values(state.z, state.stride, state.kv, n, task.width, task.heads, state.f, state.acc);
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
