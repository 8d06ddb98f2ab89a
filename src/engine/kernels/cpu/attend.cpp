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
// Sums are formed in double, where all products are exact: the softmax magnifies the last bits of FP32
// scores.

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

constexpr int kSlotGroup = kLanes == 16 ? 8 : 4;  // slots whose scores are summed together
constexpr int kHeadGroup = kLanes == 16 ? 8 : 4;  // heads whose values are summed together
constexpr int kSlack = 8;                         // rows that a last group may write past the end

using VHalf = hn::Vec<DFHalf>;

struct State {
  int64_t heads;   // of the group, padded to kDoubles
  int64_t stride;  // heads, padded to whole vectors
  double* q;       // [width][stride]
  double* kv;      // [chunk][width]
  double* p;       // [chunk][stride]
  float* row;      // [width], a record on its way to kv
  float* z;        // [chunk + slack][stride]
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
  const int64_t doubles[] = {task.width * stride, kChunkSlots * task.width, kChunkSlots * stride};
  const int64_t floats[] = {task.width,         (kChunkSlots + kSlack) * stride, stride, stride, stride,
                            stride * task.width};
  int64_t bytes = 0;
  for (const int64_t n : doubles) bytes += 8 * n;
  for (const int64_t n : floats) bytes += 4 * n;
  auto* at = scratch.get<uint8_t>(static_cast<size_t>(bytes));
  double** const wide[] = {&state.q, &state.kv, &state.p};
  for (size_t i = 0; i < 3; at += 8 * doubles[i++]) *wide[i] = reinterpret_cast<double*>(at);
  float** const narrow[] = {&state.row, &state.z, &state.m, &state.d, &state.f, &state.acc};
  for (size_t i = 0; i < 6; at += 4 * floats[i++]) *narrow[i] = reinterpret_cast<float*>(at);
  return state;
}

// q [heads][width] in BF16 to state.q [width][stride]; lanes beyond the heads get zeros.
HWY_INLINE void transpose_queries(const AttendTask& task, const State& state) {
  const hn::Rebind<uint16_t, D4> d16;
  const hn::Rebind<uint32_t, D4> d32;
  const hn::FixedTag<float, 2> half;
  const hn::FixedTag<double, 2> wide;
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
      for (int i = 0; i < 4; ++i) {
        double* to = state.q + (c + i) * stride + h;
        hn::StoreU(hn::PromoteTo(wide, hn::LowerHalf(half, a.r[i])), wide, to);
        hn::StoreU(hn::PromoteTo(wide, hn::UpperHalf(half, a.r[i])), wide, to + 2);
      }
    }
  }
  for (; h < state.heads; ++h) {
    for (int64_t c = 0; c < width; ++c)
      state.q[c * stride + h] =
          h < task.heads ? static_cast<double>(bf16_to_float(task.q[h * width + c])) : 0;
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

HWY_INLINE void load_record(const AttendTask& task, const State& state, int64_t slot, double* kv) {
  const uint8_t* record = task.list.record[slot];
  if (slot >= task.list.first_main && slot < task.list.last_main) {
    decode_main_record_f32(record, task.width, state.row);
  } else {
    decode_window_record_f32(record, task.width, state.row);
  }
  for (int64_t c = 0; c < task.width; c += kDoubles) hn::StoreU(load_doubles(state.row + c), DD(), kv + c);
}

// z[i][h] = scale * round(sum over c of q[c][h] * kv[i][c]), for HV vectors of heads from h on.
template <int HV>
HWY_INLINE void score_heads(const State& state, int64_t h, int n, int64_t width, float scale) {
  const int64_t stride = state.stride;
  for (int i = 0; i < n; i += kSlotGroup) {
    const double* row[kSlotGroup];
    VD sum[kSlotGroup][HV];
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s) {
      row[s] = state.kv + std::min(i + s, n - 1) * width;
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v) sum[s][v] = hn::Zero(DD());
    }
    for (int64_t c = 0; c < width; ++c) {
      VD qc[HV];
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v)
        qc[v] = hn::LoadU(DD(), state.q + c * stride + h + v * static_cast<int>(kDoubles));
#pragma GCC unroll 8
      for (int s = 0; s < kSlotGroup; ++s) {
        const VD k = set_double(row[s][c]);
#pragma GCC unroll 2
        for (int v = 0; v < HV; ++v) sum[s][v] = hn::MulAdd(qc[v], k, sum[s][v]);
      }
    }
    const VHalf factor = hn::Set(DFHalf(), scale);
#pragma GCC unroll 8
    for (int s = 0; s < kSlotGroup; ++s) {
#pragma GCC unroll 2
      for (int v = 0; v < HV; ++v) {
        float* z = state.z + (i + s) * stride + h + v * static_cast<int>(kDoubles);
        hn::StoreU(hn::Mul(hn::DemoteTo(DFHalf(), sum[s][v]), factor), DFHalf(), z);
      }
    }
  }
}

HWY_INLINE void scores(const State& state, int n, int64_t width, float scale) {
  int64_t h = 0;
  for (; h + 2 * static_cast<int64_t>(kDoubles) <= state.heads; h += 2 * kDoubles)
    score_heads<2>(state, h, n, width, scale);
  for (; h < state.heads; h += kDoubles) score_heads<1>(state, h, n, width, scale);
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
  for (int64_t i = 0; i < n * stride; i += kLanes) {
    const VF e = round_bf16(load(state.z + i));
    hn::StoreU(low_doubles(e), DD(), state.p + i);
    hn::StoreU(high_doubles(e), DD(), state.p + i + static_cast<int64_t>(kDoubles));
  }
}

// to = to * decay + round(sum)
HWY_INLINE void add_decayed(float* to, VHalf decay, VD sum) {
  const VHalf before = hn::Mul(hn::LoadU(DFHalf(), to), decay);
  hn::StoreU(hn::Add(before, hn::DemoteTo(DFHalf(), sum)), DFHalf(), to);
}

// acc[h][c] = acc[h][c] * f[h] + sum over i of p[i][h] * kv[i][c]
HWY_INLINE void accumulate_values(const State& state, int n, int64_t width, int heads) {
  for (int64_t c = 0; c < width; c += 2 * kDoubles) {
    for (int h = 0; h < heads; h += kHeadGroup) {
      VD sum[kHeadGroup][2];
#pragma GCC unroll 8
      for (int g = 0; g < kHeadGroup; ++g) sum[g][0] = sum[g][1] = hn::Zero(DD());
      for (int i = 0; i < n; ++i) {
        const VD v0 = hn::LoadU(DD(), state.kv + i * width + c);
        const VD v1 = hn::LoadU(DD(), state.kv + i * width + c + static_cast<int64_t>(kDoubles));
#pragma GCC unroll 8
        for (int g = 0; g < kHeadGroup; ++g) {
          const VD p = set_double(state.p[i * state.stride + h + g]);
          sum[g][0] = hn::MulAdd(p, v0, sum[g][0]);
          sum[g][1] = hn::MulAdd(p, v1, sum[g][1]);
        }
      }
#pragma GCC unroll 8
      for (int g = 0; g < kHeadGroup; ++g) {
        float* to = state.acc + (h + g) * width + c;
        const VHalf decay = hn::Set(DFHalf(), state.f[h + g]);
        add_decayed(to, decay, sum[g][0]);
        add_decayed(to + kDoubles, decay, sum[g][1]);
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
      if (task.list.record[slot] != nullptr) load_record(task, state, slot, state.kv + n++ * task.width);
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
