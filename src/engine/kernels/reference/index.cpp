#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/kernels/reference/arithmetic.h"
#include "engine/kernels/reference/cache_access.h"
#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"

namespace spark::engine::reference {
namespace {

// The scores of a row's visible entries, BF16 values held as FP32.
std::vector<float> row_scores(const IndexSelectArgs& args, int32_t t, int32_t visible) {
  const size_t heads = static_cast<size_t>(args.heads);
  const size_t width = static_cast<size_t>(args.width);
  const size_t row = static_cast<size_t>(t);
  std::vector<float> q(heads * width);
  dequantise_fp4_block32_ue8m0({args.q_packed + row * heads * width / 2, heads * width / 2},
                               {args.q_scales + row * heads * width / 32, heads * width / 32}, q);
  std::vector<float> weight(heads);
  for (size_t h = 0; h < heads; ++h) {
    weight[h] = round_to_bf16(bf16_to_float(args.head_weight[row * heads + h]) * args.weight_factor);
  }
  std::vector<float> scores(static_cast<size_t>(visible));
  std::vector<uint16_t> bits(width);
  std::vector<float> key(width);
  for (int32_t j = 0; j < visible; ++j) {
    decode_index_record(record(args.key_cache, args.step.sequence[t], j), bits);
    to_float(bits, key);
    scores[static_cast<size_t>(j)] = index_score(q, key, weight);
  }
  return scores;
}

void store_list(const std::vector<int32_t>& list, int32_t* out, int32_t capacity) {
  std::copy(list.begin(), list.end(), out);
  std::fill(out + list.size(), out + capacity, -1);
}

}  // namespace

void index_query(const IndexQueryArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  const size_t angles = static_cast<size_t>(args.pairs) * 2;
  std::vector<uint16_t> value(width);
  for (size_t t = 0; t < static_cast<size_t>(args.rows); ++t) {
    for (size_t head = 0; head < static_cast<size_t>(args.heads); ++head) {
      const size_t at = (t * static_cast<size_t>(args.heads) + head) * width;
      std::copy_n(args.q + at, width, value.begin());
      rotate(value, {args.cos_sin + t * angles, angles}, false);
      quantise_fp4_block32_ue8m0(value, {args.packed + at / 2, width / 2},
                                 {args.scales + at / 32, width / 32});
    }
  }
}

float index_score(std::span<const float> q, std::span<const float> key, std::span<const float> head_weight) {
  double sum = 0;
  for (size_t h = 0; h < head_weight.size(); ++h) {
    const float product = round_to_bf16(dot(q.subspan(h * key.size(), key.size()), key));
    sum += static_cast<double>(round_to_bf16(std::max(0.0F, product) * head_weight[h]));
  }
  return round_to_bf16(static_cast<float>(sum));
}

std::vector<int32_t> select_best(std::span<const float> scores, int32_t count) {
  std::vector<int32_t> order;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] != kMinusInfinity) order.push_back(static_cast<int32_t>(j));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> candidate_blocks(std::span<const float> scores, int32_t block_size, int32_t max_blocks) {
  if (scores.empty()) return {};
  const size_t size = static_cast<size_t>(block_size);
  std::vector<float> best((scores.size() + size - 1) / size, kMinusInfinity);
  for (size_t j = 0; j < scores.size(); ++j) best[j / size] = std::max(best[j / size], scores[j]);
  best.back() = -kMinusInfinity;
  return select_best(best, max_blocks);
}

void index_select(const IndexSelectArgs& args) {
  for (int32_t t = 0; t < args.step.rows; ++t) {
    if (args.step.sequence[t] < 0) continue;
    const int32_t visible = (args.step.position[t] + 1) / args.ratio;
    std::vector<float> scores = row_scores(args, t, visible);
    if (args.scores != nullptr) {
      uint16_t* out = args.scores + static_cast<int64_t>(t) * args.max_entries;
      for (size_t j = 0; j < scores.size(); ++j) out[j] = float_to_bf16(scores[j]);
    }
    int32_t* blocks = args.candidate_blocks + static_cast<int64_t>(t) * args.max_blocks;
    if (args.mode == CandidateMode::kProduce) {
      store_list(candidate_blocks(scores, args.block_size, args.max_blocks), blocks, args.max_blocks);
    }
    if (args.mode == CandidateMode::kRestrict) {
      std::vector<float> masked(scores.size(), kMinusInfinity);
      for (int32_t b = 0; b < args.max_blocks && blocks[b] >= 0; ++b) {
        const int32_t begin = blocks[b] * args.block_size;
        const int32_t end = std::min(begin + args.block_size, visible);
        for (int32_t j = begin; j < end; ++j) masked[static_cast<size_t>(j)] = scores[static_cast<size_t>(j)];
      }
      scores = masked;
    }
    store_list(select_best(scores, args.top_k), args.selected + static_cast<int64_t>(t) * args.top_k,
               args.top_k);
  }
}

}  // namespace spark::engine::reference
