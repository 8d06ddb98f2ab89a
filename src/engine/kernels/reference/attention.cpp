#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/reference/arithmetic.h"
#include "engine/kernels/reference/cache_access.h"
#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"

namespace spark::engine::reference {
namespace {

constexpr size_t kChunkSlots = 64;

// The positions in the window's slots for one row, in list order; -1 = empty.
std::vector<int32_t> window_slots(const SparseAttentionArgs& args, int32_t t) {
  const int32_t end = args.window_end != nullptr ? args.window_end[t] : args.step.position[t];
  const int32_t start = std::max(args.step.window_start[t], end - args.window + 1);
  std::vector<int32_t> slots(static_cast<size_t>(args.window), -1);
  for (int32_t p = std::max(start, 0); p <= end; ++p) {
    const int32_t slot = args.order == WindowOrder::kRingSlot ? p % args.window : p - (end - args.window + 1);
    slots[static_cast<size_t>(slot)] = p;
  }
  return slots;
}

// The row's whole list, decoded: an empty vector is an empty slot.
std::vector<std::vector<float>> decoded_list(const SparseAttentionArgs& args, int32_t t) {
  const size_t width = static_cast<size_t>(args.width);
  const int32_t sequence = args.step.sequence[t];
  std::vector<std::vector<float>> list;
  std::vector<uint16_t> value(width);
  const auto push = [&](const std::vector<uint16_t>& x) {
    list.emplace_back(width);
    to_float(x, list.back());
  };
  for (const int32_t position : window_slots(args, t)) {
    if (position < 0) {
      list.emplace_back();
      continue;
    }
    decode_window_record(record(args.window_cache, sequence, position), value);
    push(value);
  }
  for (int32_t i = 0; args.main_cache.base != nullptr && i < args.max_selected; ++i) {
    const int32_t entry = args.selected[static_cast<int64_t>(t) * args.max_selected + i];
    if (entry < 0) {
      list.emplace_back();
      continue;
    }
    decode_main_record(record(args.main_cache, sequence, entry), value);
    push(value);
  }
  for (int32_t row = args.step.first_row[t]; args.extra != nullptr && row <= args.step.last_row[t]; ++row) {
    const size_t bytes = static_cast<size_t>(window_record_bytes(args.width));
    decode_window_record({args.extra + static_cast<size_t>(row) * bytes, bytes}, value);
    push(value);
  }
  return list;
}

}  // namespace

void rope_angles(const RopeAnglesArgs& args) {
  for (int32_t t = 0; t < args.step.rows; ++t) {
    for (int32_t i = 0; i < args.pairs; ++i) {
      const float angle = static_cast<float>(args.step.position[t] - args.back) * args.freq[i];
      float* out = args.cos_sin + (static_cast<int64_t>(t) * args.pairs + i) * 2;
      out[0] = static_cast<float>(std::cos(static_cast<double>(angle)));
      out[1] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

void rotate(std::span<uint16_t> x, std::span<const float> cos_sin, bool inverse) {
  uint16_t* tail = x.data() + (x.size() - cos_sin.size());
  for (size_t i = 0; i < cos_sin.size(); i += 2) {
    const float a = bf16_to_float(tail[i]);
    const float b = bf16_to_float(tail[i + 1]);
    const float c = cos_sin[i];
    const float s = inverse ? -cos_sin[i + 1] : cos_sin[i + 1];
    tail[i] = float_to_bf16(a * c - b * s);
    tail[i + 1] = float_to_bf16(a * s + b * c);
  }
}

void rope(const RopeArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const size_t angles = static_cast<size_t>(args.pairs) * 2;
  for (size_t t = 0; t < static_cast<size_t>(args.rows); ++t) {
    for (size_t head = 0; head < static_cast<size_t>(args.heads); ++head) {
      uint16_t* x = args.x + (t * static_cast<size_t>(args.heads) + head) * width;
      rotate({x, width}, {args.cos_sin + t * angles, angles}, args.inverse);
    }
  }
}

void window_write(const WindowWriteArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const size_t angles = static_cast<size_t>(args.pairs) * 2;
  const size_t bytes = static_cast<size_t>(window_record_bytes(args.width));
  std::vector<uint16_t> value(width);
  for (int32_t t = 0; t < args.step.rows; ++t) {
    if (args.step.sequence[t] < 0) continue;
    const size_t row = static_cast<size_t>(t);
    std::copy_n(args.kv + row * width, width, value.begin());
    rotate(value, {args.cos_sin + row * angles, angles}, false);
    encode_window_record(value, args.records != nullptr
                                    ? std::span<uint8_t>(args.records + row * bytes, bytes)
                                    : record(args.cache, args.step.sequence[t], args.step.position[t]));
  }
}

void pool_pairs(const PoolPairsArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const auto state = [&](int32_t sequence, int32_t position) {
    return args.state + (static_cast<size_t>(sequence) * static_cast<size_t>(args.ring) +
                         static_cast<size_t>(position % args.ring)) *
                            2 * width;
  };
  for (int32_t t = 0; t < args.step.rows; ++t) {
    const int32_t position = args.step.position[t];
    const size_t row = static_cast<size_t>(t);
    uint16_t* pooled = args.pooled + row * width;
    if (args.step.sequence[t] < 0 || position % 2 == 0) {
      std::fill_n(pooled, width, uint16_t{0});
      continue;
    }
    const bool in_step = t > args.step.first_row[t];
    const float* stored = in_step ? nullptr : state(args.step.sequence[t], position - 1);
    const float* kv0 = in_step ? args.kv + (row - 1) * width : stored;
    const float* score0 = in_step ? args.score + (row - 1) * width : stored + width;
    for (size_t c = 0; c < width; ++c) {
      const float score1 = args.score[row * width + c];
      const float largest = std::max(score0[c], score1);
      const float e0 = exp_f32(score0[c] - largest);
      const float e1 = exp_f32(score1 - largest);
      const float sum = e0 + e1;
      pooled[c] = float_to_bf16((e0 / sum) * kv0[c] + (e1 / sum) * args.kv[row * width + c]);
    }
  }
  for (int32_t t = 0; t < args.step.rows; ++t) {
    if (args.step.sequence[t] < 0 || t <= args.step.last_row[t] - args.ring) continue;
    float* to = state(args.step.sequence[t], args.step.position[t]);
    std::copy_n(args.kv + static_cast<size_t>(t) * width, width, to);
    std::copy_n(args.score + static_cast<size_t>(t) * width, width, to + width);
  }
}

void entry_write(const EntryWriteArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const size_t key_width = static_cast<size_t>(args.key_width);
  const size_t angles = static_cast<size_t>(args.pairs) * 2;
  for (int32_t t = 0; t < args.step.rows; ++t) {
    const int32_t position = args.step.position[t];
    if (args.step.sequence[t] < 0 || (position + 1) % args.ratio != 0) continue;
    const size_t row = static_cast<size_t>(t);
    const std::span<const float> cos_sin(args.cos_sin + row * angles, angles);
    const int32_t entry = position / args.ratio;
    std::vector<uint16_t> key(args.key + row * key_width, args.key + (row + 1) * key_width);
    rotate(key, cos_sin, false);
    encode_index_record(key, record(args.key_cache, args.step.sequence[t], entry));
    std::vector<uint16_t> latent(args.latent + row * width, args.latent + (row + 1) * width);
    rotate(latent, cos_sin, false);
    encode_main_record(latent, record(args.main_cache, args.step.sequence[t], entry));
  }
}

void attend(std::span<const float> q, std::span<const float* const> slots, float scale, float sink,
            std::span<uint16_t> out) {
  float largest = -1e30F;
  float denominator = 0;
  std::vector<float> acc(q.size(), 0.0F);
  std::vector<float> z(kChunkSlots);
  std::vector<double> sum(q.size());
  for (size_t begin = 0; begin < slots.size(); begin += kChunkSlots) {
    const size_t count = std::min(kChunkSlots, slots.size() - begin);
    float next = largest;
    for (size_t i = 0; i < count; ++i) {
      const float* kv = slots[begin + i];
      z[i] = kv == nullptr ? kMinusInfinity : dot(q, {kv, q.size()}) * scale;
      next = std::max(next, z[i]);
    }
    const float decay = exp_f32(largest - next);
    double chunk_denominator = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t i = 0; i < count; ++i) {
      const float* kv = slots[begin + i];
      if (kv == nullptr) continue;
      const float e = exp_f32(z[i] - next);
      chunk_denominator += static_cast<double>(e);
      const double weight = static_cast<double>(round_to_bf16(e));
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += weight * static_cast<double>(kv[c]);
    }
    denominator = denominator * decay + static_cast<float>(chunk_denominator);
    for (size_t c = 0; c < acc.size(); ++c) acc[c] = acc[c] * decay + static_cast<float>(sum[c]);
    largest = next;
  }
  const bool empty = denominator == 0;
  denominator += exp_f32(sink - largest);
  for (size_t c = 0; c < acc.size(); ++c) out[c] = empty ? uint16_t{0} : float_to_bf16(acc[c] / denominator);
}

void sparse_attention(const SparseAttentionArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const size_t angles = static_cast<size_t>(args.pairs) * 2;
  std::vector<float> q(width);
  for (int32_t t = 0; t < args.step.rows; ++t) {
    if (args.step.sequence[t] < 0) continue;
    const std::vector<std::vector<float>> list = decoded_list(args, t);
    std::vector<const float*> slots;
    for (const std::vector<float>& slot : list) slots.push_back(slot.empty() ? nullptr : slot.data());
    for (int32_t head = 0; head < args.heads; ++head) {
      const size_t at =
          (static_cast<size_t>(t) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) * width;
      to_float({args.q + at, width}, q);
      const std::span<uint16_t> out(args.o + at, width);
      attend(q, slots, args.scale, args.sink[head], out);
      rotate(out, {args.cos_sin + static_cast<size_t>(t) * angles, angles}, true);
    }
  }
}

}  // namespace spark::engine::reference
