#include <algorithm>
#include <limits>
#include <numeric>

#include "kernel_cases/cache_layout.h"
#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

Problem query_problem(int32_t rows, int32_t heads, int32_t width, int32_t pairs) {
  Random random(static_cast<uint64_t>(101 + width));
  Problem p;
  p.rows = rows;
  const auto row = static_cast<size_t>(heads * width);
  const int angles =
      p.input("cos_sin", Kind::kF32, random_angles(random, rows, pairs), static_cast<size_t>(2 * pairs));
  const int q = p.input("q", Kind::kBf16, bf16_rows(random, rows, row), row);
  const int packed = p.output("packed", Kind::kBytes, row / 2, kExact);
  const int scales = p.output("scales", Kind::kBytes, row / 32, kExact);
  p.issue = [=](const Call& call) {
    call.backend.index_query({.rows = call.rows,
                              .heads = heads,
                              .width = width,
                              .pairs = pairs,
                              .cos_sin = call.data<float>(angles),
                              .q = call.data<uint16_t>(q),
                              .packed = call.data<uint8_t>(packed),
                              .scales = call.data<uint8_t>(scales)});
  };
  return p;
}

enum class Data : uint8_t {
  kRandom,
  kTies,  // few different scores, all sums exact
  kZero,  // every score is zero
};

struct SelectShape {
  int32_t heads = 4;
  int32_t width = 64;
  int32_t ratio = 1;
  int32_t top_k = 40;
  CandidateMode mode = CandidateMode::kNone;
  int32_t block_size = 4;
  int32_t max_blocks = 12;
  int32_t last_position = 300;
  Data data = Data::kRandom;
  bool scores = true;
  bool few = false;  // six rows of one sequence, for kernels that take few
};

HostSteps select_steps(int32_t last, bool few) {
  HostSteps steps;
  if (few) {
    for (int32_t p = 0; p < 6; ++p) steps.add(1, last - 5 + p);
    return steps;
  }
  for (int32_t p = 0; p < 4; ++p) steps.add(0, p);
  for (int32_t p = 0; p < 5; ++p) steps.add(2, 38 + p);
  steps.add(-1, 0);
  for (int32_t p = 0; p < 6; ++p) steps.add(1, last - 5 + p);
  return steps;
}

// The best `count` of the scores by the specified rule, ascending.
std::vector<int32_t> best(const std::vector<float>& scores, int32_t count) {
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

std::vector<int32_t> row_list(const std::vector<int32_t>& all, int32_t t, int32_t capacity) {
  const auto begin = all.begin() + static_cast<int64_t>(t) * capacity;
  return {begin, std::find(begin, begin + capacity, -1)};
}

struct SelectTensors {
  int selected, blocks, scores;
};

// Judges selections and candidates by the candidate's own scores.
std::string judge_row(const SelectShape& s, const SelectTensors& at, const Problem& p, const Results& r,
                      int32_t t, int32_t max_entries) {
  const int32_t n = (p.steps->position[static_cast<size_t>(t)] + 1) / s.ratio;
  const auto bits = values_of<uint16_t>(r[static_cast<size_t>(at.scores)]);
  std::vector<float> scores;
  for (int32_t j = 0; j < n; ++j)
    scores.push_back(bf16_to_float(bits[static_cast<size_t>(t * max_entries + j)]));
  const auto blocks = row_list(values_of<int32_t>(r[static_cast<size_t>(at.blocks)]), t, s.max_blocks);
  if (s.mode == CandidateMode::kProduce && n > 0) {
    std::vector<float> top(static_cast<size_t>((n + s.block_size - 1) / s.block_size), kMinusInfinity);
    for (int32_t j = 0; j < n; ++j) {
      float& b = top[static_cast<size_t>(j / s.block_size)];
      b = std::max(b, scores[static_cast<size_t>(j)]);
    }
    top.back() = -kMinusInfinity;
    if (best(top, s.max_blocks) != blocks) return "row " + std::to_string(t) + ": wrong candidate blocks\n";
  }
  if (s.mode == CandidateMode::kRestrict) {
    std::vector<float> masked(scores.size(), kMinusInfinity);
    for (const int32_t b : blocks) {
      for (int32_t j = b * s.block_size; j < std::min((b + 1) * s.block_size, n); ++j)
        masked[static_cast<size_t>(j)] = scores[static_cast<size_t>(j)];
    }
    scores = masked;
  }
  const auto selected = row_list(values_of<int32_t>(r[static_cast<size_t>(at.selected)]), t, s.top_k);
  return best(scores, s.top_k) == selected
             ? ""
             : "row " + std::to_string(t) + ": wrong selection for its scores\n";
}

std::vector<int32_t> given_candidates(Random& random, const HostSteps& steps, const SelectShape& s) {
  std::vector<int32_t> all;
  for (int32_t t = 0; t < steps.rows(); ++t) {
    const int32_t blocks =
        ((steps.position[static_cast<size_t>(t)] + 1) / s.ratio + s.block_size - 1) / s.block_size;
    std::vector<int32_t> list;
    for (int32_t b = 0; b < blocks; ++b) {
      if (random.below(blocks) < s.max_blocks || b == blocks - 1) list.push_back(b);
    }
    list.resize(std::min(list.size(), static_cast<size_t>(s.max_blocks)));
    list.resize(static_cast<size_t>(s.max_blocks), -1);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

std::vector<uint8_t> key_records(Random& random, const CacheShape& shape, int32_t width, Data data) {
  if (data == Data::kRandom)
    return encoded_records(random, shape, static_cast<size_t>(width), 1, encode_index_record);
  // One code per record, scale one: a dot product is an integer multiple of that code.
  std::vector<uint8_t> bytes(shape.bytes());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto record = i / static_cast<size_t>(shape.record_bytes);
    const auto at = static_cast<int32_t>(i % static_cast<size_t>(shape.record_bytes));
    const auto code = static_cast<uint8_t>((record * 2654435761u >> 7) % 16);
    bytes[i] = at < width / 2 ? static_cast<uint8_t>(code * 17) : uint8_t{127};
  }
  return bytes;
}

Problem select_problem(const SelectShape& s) {
  Random random(static_cast<uint64_t>(111 + s.width + s.last_position) + static_cast<uint64_t>(s.data));
  Problem p;
  p.steps = select_steps(s.last_position, s.few);
  p.rows = p.steps->rows();
  const auto heads = static_cast<size_t>(s.heads);
  const auto row = heads * static_cast<size_t>(s.width);
  const auto count = static_cast<size_t>(p.rows);
  CacheShape shape{3, s.last_position + 1, s.ratio, index_key_record_bytes(s.width)};
  const CacheTensors keys =
      add_cache(p, random, "keys", shape, key_records(random, shape, s.width, s.data), false);
  std::vector<uint8_t> packed(count * row / 2);
  std::vector<uint8_t> scales(count * row / 32);
  quantise_fp4_block32_ue8m0(bf16_values(random, count * row), packed, scales);
  std::vector<uint16_t> weights = bf16_values(random, count * heads);
  if (s.data != Data::kRandom) {
    for (uint8_t& byte : packed) byte = s.data == Data::kZero ? uint8_t{0x80} : uint8_t{0x22};
    std::fill(scales.begin(), scales.end(), uint8_t{127});
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = float_to_bf16(i % 3 == 0 ? -0.5F : 1.0F);
  }
  const int32_t max_entries = (s.last_position + 1) / s.ratio + 3;
  const int q = p.input("q", Kind::kBytes, packed, row / 2);
  const int q_scales = p.input("q_scales", Kind::kBytes, scales, row / 32);
  const int weight = p.input("head_weight", Kind::kBf16, weights, heads);
  const bool exact = !s.scores || s.data != Data::kRandom;
  const Check list = exact ? kExact : Check{.skip = true};
  const int selected = p.output("selected", Kind::kInt32, static_cast<size_t>(s.top_k), list);
  int blocks = -1;
  if (s.mode == CandidateMode::kRestrict) {
    blocks = p.input("blocks", Kind::kInt32, given_candidates(random, *p.steps, s),
                     static_cast<size_t>(s.max_blocks));
  } else {
    blocks = p.output("blocks", Kind::kInt32, static_cast<size_t>(s.max_blocks), list);
  }
  const Check close{.ulps = 1, .row_max = 1e-3, .fraction = exact ? 0.0 : 0.02};
  const int scores = p.output("scores", Kind::kBf16, static_cast<size_t>(max_entries), close);
  p.issue = [=](const Call& call) {
    call.backend.index_select(
        {.step = call.step,
         .heads = s.heads,
         .width = s.width,
         .ratio = s.ratio,
         .top_k = s.top_k,
         .q_packed = call.data<uint8_t>(q),
         .q_scales = call.data<uint8_t>(q_scales),
         .head_weight = call.data<uint16_t>(weight),
         .weight_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width) * s.heads)),
         .key_cache = keys.view(call),
         .max_entries = max_entries,
         .mode = s.mode,
         .block_size = s.block_size,
         .max_blocks = s.max_blocks,
         .candidate_blocks = call.data<int32_t>(blocks),
         .selected = call.data<int32_t>(selected),
         .scores = s.scores ? call.data<uint16_t>(scores) : nullptr});
  };
  if (s.scores) {
    p.verify = [=](const Problem& problem, const Results& r) {
      std::string trouble;
      for (int32_t t = 0; t < problem.rows; ++t) {
        if (problem.steps->sequence[static_cast<size_t>(t)] >= 0)
          trouble += judge_row(s, {selected, blocks, scores}, problem, r, t, max_entries);
      }
      return trouble;
    };
  }
  return p;
}

}  // namespace

void add_index_cases(std::vector<KernelCase>& cases) {
  cases.push_back({"index_query/tiny", [] { return query_problem(9, 4, 64, 8); }});
  cases.push_back({"index_query/real", [] { return query_problem(6, 32, 128, 32); }});
  const auto add = [&](const std::string& name, const SelectShape& shape) {
    cases.push_back({"index_select/" + name, [shape] { return select_problem(shape); }});
  };
  const CandidateMode produce = CandidateMode::kProduce;
  const CandidateMode restrict_to = CandidateMode::kRestrict;
  for (const Data data : {Data::kRandom, Data::kTies, Data::kZero}) {
    const std::string kind = data == Data::kRandom ? "random" : data == Data::kTies ? "ties" : "zero";
    add("all/" + kind, {.data = data});
    add("produce/" + kind, {.mode = produce, .data = data});
    add("restrict/" + kind, {.mode = restrict_to, .data = data});
    add("all, no scores/" + kind, {.data = data, .scores = false});
    add("produce, no scores/" + kind, {.mode = produce, .data = data, .scores = false});
    add("restrict, no scores/" + kind, {.mode = restrict_to, .data = data, .scores = false});
  }
  add("ratio 2", {.ratio = 2, .mode = produce});
  add("block of 8", {.mode = produce, .block_size = 8, .max_blocks = 20, .last_position = 1000});
  add("real", {.heads = 32, .width = 128, .top_k = 512, .last_position = 2100});
  add("real, ratio 2", {.heads = 32, .width = 128, .ratio = 2, .top_k = 512, .last_position = 1500});
  for (const Data data : {Data::kTies, Data::kRandom}) {
    for (const CandidateMode mode : {CandidateMode::kNone, produce, restrict_to}) {
      const std::string kind =
          std::to_string(static_cast<int>(mode)) + (data == Data::kTies ? "/ties" : "/random");
      add("few rows, real, mode " + kind, {.heads = 32,
                                           .width = 128,
                                           .top_k = 512,
                                           .mode = mode,
                                           .block_size = 8,
                                           .max_blocks = 200,
                                           .last_position = 2100,
                                           .data = data,
                                           .scores = false,
                                           .few = true});
      add("few rows, mode " + kind, {.width = 128, .mode = mode, .data = data, .scores = false, .few = true});
    }
  }
  add("one head", {.heads = 1, .width = 32, .top_k = 1, .last_position = 90});
  add("more than there are", {.top_k = 512, .mode = produce, .max_blocks = 200});
  add_random_cases(cases, "index_query", [](Random& random) {
    const int32_t rows = random_rows(random), heads = 1 + random.below(6);
    const int32_t width = random_multiple(random, 32, 128);
    return query_problem(rows, heads, width, random_multiple(random, 4, width / 2));
  });
  add_random_cases(cases, "index_select", [](Random& random) {
    SelectShape s;
    s.heads = 1 + random.below(8);
    s.width = random_multiple(random, 32, 128);
    s.ratio = 1 + random.below(2);
    s.top_k = 1 + random.below(120);
    s.mode = static_cast<CandidateMode>(random.below(3));
    s.block_size = 4 << random.below(2);
    s.max_blocks = 1 + random.below(30);
    s.last_position = 60 + random.below(400);
    s.data = static_cast<Data>(random.below(3));
    s.scores = random.below(2) == 0;
    return select_problem(s);
  });
}

}  // namespace spark::engine::cases
