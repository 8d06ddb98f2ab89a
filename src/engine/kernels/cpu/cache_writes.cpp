#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/error.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/rows.h"
#include "engine/kernels/cpu/vectors.h"

namespace spark::engine::cpu {

void rope_angles(Context& ctx, const RopeAnglesArgs& args) {
  ctx.rows.add(args.step.rows, static_cast<double>(args.step.rows) * args.pairs * 40, [=](int64_t t, int) {
    const auto position = static_cast<float>(args.step.position[t] - args.back);
    float* out = args.cos_sin + t * args.pairs * 2;
    for (int64_t i = 0; i < args.pairs; ++i) {
      const auto angle = static_cast<double>(position * args.freq[i]);
      out[2 * i] = static_cast<float>(std::cos(angle));
      out[2 * i + 1] = static_cast<float>(std::sin(angle));
    }
  });
}

void rope(Context& ctx, const RopeArgs& args) {
  const double cost = static_cast<double>(args.rows) * args.heads * args.pairs;
  ctx.rows.add(args.rows, cost, [=](int64_t t, int) {
    const float* cos_sin = args.cos_sin + t * args.pairs * 2;
    for (int64_t head = 0; head < args.heads; ++head)
      rotate(args.x + (t * args.heads + head) * args.width, args.width, cos_sin, args.pairs, args.inverse);
  });
}

void window_write(Context& ctx, const WindowWriteArgs& args) {
  SPARK_CHECK(args.width % kBlock == 0);
  const int64_t width = args.width;
  Buffer* const scratch = ctx.scratch.data();
  ctx.rows.add(args.step.rows, static_cast<double>(args.step.rows * width) / 2, [=](int64_t t, int worker) {
    if (args.step.sequence[t] < 0) return;
    auto* value = scratch[worker].get<float>(static_cast<size_t>(width));
    rotated_floats(args.kv + t * width, width, args.cos_sin + t * args.pairs * 2, args.pairs, value);
    uint8_t* record = args.records != nullptr
                          ? args.records + t * window_record_bytes(args.width)
                          : record_of(args.cache, args.step.sequence[t], args.step.position[t]);
    quantise_floats(value, width, record, record + width);
  });
}

void pool_pairs(Context& ctx, const PoolPairsArgs& args) {
  SPARK_CHECK(args.width % kBlock == 0);
  const int64_t width = args.width;
  const StepRows& step = args.step;
  const auto state = [&](int64_t t, int32_t position) {
    const int64_t slot = int64_t{step.sequence[t]} * args.ring + position % args.ring;
    return args.state + slot * 2 * width;
  };
  const double cost = static_cast<double>(step.rows * width);
  ctx.fork(step.rows, cost, [&](int64_t t, int) {
    uint16_t* pooled = args.pooled + t * width;
    const int32_t position = step.position[t];
    if (step.sequence[t] < 0 || position % 2 == 0) {
      std::memset(pooled, 0, static_cast<size_t>(width) * sizeof(uint16_t));
      return;
    }
    const bool in_step = t > step.first_row[t];
    const float* kv = in_step ? args.kv + (t - 1) * width : state(t, position - 1);
    const float* score = in_step ? args.score + (t - 1) * width : kv + width;
    pool_pair(kv, score, args.kv + t * width, args.score + t * width, width, pooled);
  });
  for (int64_t t = 0; t < step.rows; ++t) {
    if (step.sequence[t] < 0 || t <= step.last_row[t] - args.ring) continue;
    float* to = state(t, step.position[t]);
    std::copy_n(args.kv + t * width, width, to);
    std::copy_n(args.score + t * width, width, to + width);
  }
}

void entry_write(Context& ctx, const EntryWriteArgs& args) {
  SPARK_CHECK(args.width % kBlock == 0 && args.key_width % kBlock == 0);
  const int64_t width = args.width;
  const int64_t key_width = args.key_width;
  const double cost = static_cast<double>(args.step.rows * (width + key_width)) / args.ratio;
  Buffer* const scratch = ctx.scratch.data();
  ctx.rows.add(args.step.rows, cost, [=](int64_t t, int worker) {
    const int32_t sequence = args.step.sequence[t];
    const int32_t position = args.step.position[t];
    if (sequence < 0 || (position + 1) % args.ratio != 0) return;
    auto* value = scratch[worker].get<float>(static_cast<size_t>(std::max(width, key_width)));
    const float* cos_sin = args.cos_sin + t * args.pairs * 2;
    const int32_t entry = position / args.ratio;
    rotated_floats(args.key + t * key_width, key_width, cos_sin, args.pairs, value);
    uint8_t* key = record_of(args.key_cache, sequence, entry);
    quantise_fp4_ue8m0(value, key_width, key, key + key_width / 2);
    rotated_floats(args.latent + t * width, width, cos_sin, args.pairs, value);
    uint8_t* record = record_of(args.main_cache, sequence, entry);
    quantise_fp4_e4m3(value, width, record, record + width / 2);
  });
}

}  // namespace spark::engine::cpu
