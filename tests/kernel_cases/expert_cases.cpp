#include <algorithm>

#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

HostSteps expert_steps(int32_t rows) {
  HostSteps steps;
  for (int32_t t = 0; t < rows; ++t) steps.add(rows > 4 && t == rows / 2 ? -1 : t, 10 + t, 0, 0, t % 7 == 3);
  return steps;
}

Problem route_problem(int32_t rows, int32_t experts, int32_t top_k, bool ties, bool image_bias,
                      bool normalise) {
  Random random(static_cast<uint64_t>(121 + experts + rows));
  Problem p;
  p.rows = rows;
  p.steps = expert_steps(rows);
  const auto n = static_cast<size_t>(experts);
  std::vector<float> z = f32_values(random, static_cast<size_t>(rows) * n, 3);
  const float extremes[] = {-100, -20, -16.7F, 0, -0.0F, 19.999F, 20, 20.001F, 80};
  for (size_t i = 0; i < z.size() && i / n < 2; ++i) {
    if (i % 5 == 0) z[i] = extremes[i / 5 % std::size(extremes)];
  }
  if (ties) {
    for (float& value : z) value = std::round(value);
  }
  std::vector<float> bias = f32_values(random, n, ties ? 0 : 0.3);
  const int logits = p.input("logits", Kind::kF32, z, n);
  const int b = p.input("bias", Kind::kF32, bias);
  const int image = p.input("image_bias", Kind::kF32, f32_values(random, n, 0.5));
  const auto k = static_cast<size_t>(top_k);
  const int ids = p.output("ids", Kind::kInt32, k, kExact);
  const int weights = p.output("weights", Kind::kF32, k, {.ulps = 8});
  p.issue = [=](const Call& call) {
    call.backend.route({.step = call.step,
                        .experts = experts,
                        .top_k = top_k,
                        .normalise = normalise,
                        .logits = call.data<float>(logits),
                        .bias = call.data<float>(b),
                        .image_bias = image_bias ? call.data<float>(image) : nullptr,
                        .ids = call.data<int32_t>(ids),
                        .weights = call.data<float>(weights)});
  };
  return p;
}

struct ExpertShape {
  int32_t rows = 1;
  int32_t hidden = 128;
  int32_t width = 192;
  int32_t experts = 8;
  int32_t top_k = 3;
  float limit = 4;
  double sigma = 1;
  bool edges = false;
  bool broken = false;  // the last row has a block without a number
};

HostExpert random_expert(Random& random, WeightFormat format, const ExpertShape& s) {
  HostExpert e{random_weight(random, format, s.width, s.hidden),
               random_weight(random, format, s.width, s.hidden),
               random_weight(random, format, s.hidden, s.width)};
  return e;
}

Problem experts_problem(const ExpertShape& s) {
  Random random(static_cast<uint64_t>(131 + s.rows + s.hidden));
  Problem p;
  p.rows = s.rows;
  p.steps = expert_steps(s.rows);
  for (int32_t e = 0; e < s.experts; ++e) p.experts.push_back(random_expert(random, WeightFormat::kFp4, s));
  const HostExpert shared = random_expert(random, WeightFormat::kFp8, s);
  p.weights = {shared.w1, shared.w3, shared.w2};
  const auto hidden = static_cast<size_t>(s.hidden);
  std::vector<uint16_t> x = bf16_values(random, static_cast<size_t>(s.rows) * hidden, s.sigma);
  QuantisedHost x_q = quantised(x);
  if (s.edges) add_edges(random, x_q.codes, x_q.scales);
  if (s.broken) {
    std::fill(x_q.codes.end() - 32, x_q.codes.end(), uint8_t{0});
    x_q.scales.back() = 255;
  }
  std::vector<int32_t> chosen;
  for (int32_t t = 0; t < s.rows; ++t) {
    std::vector<int32_t> row;
    while (row.size() < static_cast<size_t>(s.top_k)) {
      // Half of the rows prefer the first experts: some experts get many rows, some none.
      const int32_t e = t % 2 == 0 ? random.below(s.experts) : random.below(std::min(s.experts, s.top_k + 1));
      if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
    }
    chosen.insert(chosen.end(), row.begin(), row.end());
  }
  std::vector<float> weight(chosen.size());
  for (float& w : weight) w = static_cast<float>(random.uniform());
  const auto k = static_cast<size_t>(s.top_k);
  const int codes = p.input("codes", Kind::kBytes, x_q.codes, hidden);
  const int scales = p.input("scales", Kind::kBytes, x_q.scales, hidden / 32);
  const int ids = p.input("ids", Kind::kInt32, chosen, k);
  const int weights = p.input("weights", Kind::kF32, weight, k);
  // A flipped rounding inside becomes a flipped FP8 code of the intermediate row: a small move of all
  // outputs.
  const int y = p.output("y", Kind::kBf16, hidden, {.ulps = 2, .row_max = 0.01, .fraction = 0.15});
  p.issue = [=](const Call& call) {
    const ExpertWeights shared_weights{*call.weight(0), *call.weight(1), *call.weight(2)};
    call.backend.experts({.step = call.step,
                          .hidden = s.hidden,
                          .width = s.width,
                          .top_k = s.top_k,
                          .limit = s.limit,
                          .x_q = {call.data<uint8_t>(codes), call.data<uint8_t>(scales)},
                          .ids = call.data<int32_t>(ids),
                          .weights = call.data<float>(weights),
                          .bank = call.bank(),
                          .shared = &shared_weights,
                          .y = call.data<uint16_t>(y)});
  };
  return p;
}

Problem draft_problem(int32_t blocks, int32_t depth, int32_t vocab, int32_t hidden, int32_t rank, bool ties,
                      bool place_by_place = false) {
  Random random(static_cast<uint64_t>(141 + vocab));
  Problem p;
  HostSteps steps;
  for (int32_t s = 0; s < blocks; ++s) {
    if (s == 1) steps.add(-1, 0);
    for (int32_t i = 0; i < depth - s % 2; ++i)
      steps.add(s, 20 + i, i == 0 ? random.below(vocab) : vocab - 1);
  }
  p.steps = steps;
  p.rows = steps.rows();
  p.splittable = false;
  const auto v = static_cast<size_t>(vocab);
  const auto n = static_cast<size_t>(hidden);
  for (const auto& [rows, cols] :
       {std::pair{vocab, rank}, std::pair{vocab, rank}, std::pair{1, hidden + rank}})
    p.weights.push_back(random_weight(random, WeightFormat::kBf16, rows, cols));
  std::vector<float> logits = f32_values(random, static_cast<size_t>(p.rows) * v, 3);
  if (ties) {  // no Markov bias, and the best logit appears several times
    std::fill(p.weights[1].data.begin(), p.weights[1].data.end(), uint8_t{0});
    for (float& z : logits) z = std::min(std::round(z), 5.0F);
  }
  const int x = p.input("x", Kind::kBf16, bf16_values(random, static_cast<size_t>(p.rows) * n), n);
  const int base = p.input("base", Kind::kF32, logits, v);
  const int draft = p.output("draft", Kind::kInt32, 1, kExact);
  const int confidence = p.output("confidence", Kind::kF32, 1, {.absolute = 1e-4});
  const int out = p.output("logits", Kind::kF32, v, {.row_max = 1e-5});
  p.issue = [=](const Call& call) {
    DraftArgs args = {.step = call.step,
                      .vocab = vocab,
                      .hidden = hidden,
                      .rank = rank,
                      .x = call.data<uint16_t>(x),
                      .base = call.data<float>(base),
                      .embed = call.weight(0),
                      .head = call.weight(1),
                      .confidence_proj = call.weight(2),
                      .draft = call.data<int32_t>(draft),
                      .confidence = call.data<float>(confidence),
                      .logits = call.data<float>(out)};
    if (!place_by_place) return call.backend.draft(args);
    for (args.place = 0; args.place < depth; ++args.place) call.backend.draft(args);
  };
  return p;
}

}  // namespace

void add_expert_cases(std::vector<KernelCase>& cases) {
  cases.push_back({"route/tiny", [] { return route_problem(13, 8, 3, false, true, true); }});
  cases.push_back({"route/real", [] { return route_problem(20, 384, 6, false, true, true); }});
  cases.push_back({"route/ties", [] { return route_problem(12, 48, 6, true, false, true); }});
  cases.push_back({"route/all experts", [] { return route_problem(3, 4, 4, false, true, false); }});
  // More than a warp's lanes could be the best, and more than there are warps.
  cases.push_back({"route/equal scores", [] { return route_problem(3, 384, 6, true, false, true); }});
  cases.push_back({"route/top 18 of 24", [] { return route_problem(3, 24, 18, false, false, true); }});
  cases.push_back({"route/top 20 of 300", [] { return route_problem(3, 300, 20, false, false, true); }});
  cases.push_back({"route/top 32 of 512", [] { return route_problem(3, 512, 32, false, true, true); }});
  const auto add = [&](const std::string& name, const ExpertShape& shape) {
    cases.push_back({"experts/" + name, [shape] { return experts_problem(shape); }});
  };
  add("tiny, one row", {});
  add("tiny, draft rows", {.rows = 6});
  add("tiny, many rows", {.rows = 96});
  add("prompt", {.rows = 98, .width = 96, .experts = 3, .top_k = 1});
  // Shards that are not whole, a width that ends within 128 columns, experts of one item and of two.
  add("prompt, two experts a row", {.rows = 130, .hidden = 640, .width = 160, .experts = 9, .top_k = 2});
  add("long prompt", {.rows = 97, .hidden = 2816, .width = 224, .experts = 3, .top_k = 1});
  add("clamped", {.rows = 5, .limit = 0.5F, .sigma = 8});
  add("one expert", {.rows = 9, .experts = 1, .top_k = 1});
  add("real widths", {.rows = 3, .hidden = 5120, .width = 576, .experts = 4, .top_k = 2, .limit = 10});
  add("broken row", {.rows = 2, .width = 32, .experts = 3, .top_k = 1, .broken = true});
  add("broken row, item by item",
      {.rows = 2, .hidden = 96, .width = 32, .experts = 3, .top_k = 1, .broken = true});
  add("wider", {.rows = 3, .hidden = 512, .width = 320, .experts = 5, .top_k = 2, .limit = 10});
  cases.push_back({"draft/tiny", [] { return draft_problem(3, 5, 640, 128, 32, false); }});
  cases.push_back({"draft/ragged", [] { return draft_problem(2, 3, 101, 96, 40, false); }});
  cases.push_back({"draft/ties", [] { return draft_problem(3, 5, 640, 128, 32, true); }});
  cases.push_back({"draft/place by place", [] { return draft_problem(3, 5, 640, 128, 32, false, true); }});
  add_random_cases(cases, "route", [](Random& random) {
    const int32_t experts = 2 + random.below(380);
    const int32_t rows = random_rows(random), top_k = 1 + random.below(std::min(experts, 8));
    const bool ties = random.below(3) == 0;
    return route_problem(rows, experts, top_k, ties, random.below(2) == 0, random.below(2) == 0);
  });
  add_random_cases(cases, "experts", [](Random& random) {
    ExpertShape s;
    s.rows = 1 + random.below(8);
    s.hidden = random_multiple(random, 32, 320);
    s.width = random_multiple(random, 32, 160);
    s.experts = 1 + random.below(10);
    s.top_k = 1 + random.below(std::min(s.experts, 4));
    s.limit = random.below(2) == 0 ? 0.5F : 10.0F;
    s.edges = true;
    return experts_problem(s);
  });
  add_random_cases(cases, "draft", [](Random& random) {
    const int32_t sequences = 1 + random.below(4), depth = 1 + random.below(6);
    const int32_t vocab = 50 + random.below(600), hidden = random_multiple(random, 32, 128);
    const int32_t rank = random_multiple(random, 8, 64);
    return draft_problem(sequences, depth, vocab, hidden, rank, random.below(3) == 0);
  });
}

}  // namespace spark::engine::cases
