#include <algorithm>
#include <limits>

#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// In (0, 1].
double random_uniform(Random& random) {
  return 1.0 - random.uniform();
}

RowFilter random_filter(Random& random) {
  RowFilter f;
  f.temperature = random.below(5) == 0 ? 0.0 : 0.05 + 1.5 * random.uniform();
  f.top_p = random.below(2) == 0 ? 1.0 : random_uniform(random);
  f.min_p = random.below(3) == 0 ? 0.3 * random.uniform() : 0.0;
  f.top_k = random.below(3) == 0 ? 1 + random.below(30) : 0;
  return f;
}

std::vector<uint8_t> bytes_of(const auto& values) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
  return {begin, begin + values.size() * sizeof(values[0])};
}

// Rows of logits: plain, tied, flat, one giant, excluded, and (where `broken`) without a distribution.
std::vector<float> random_logits(Random& random, int32_t rows, int32_t vocab, bool broken) {
  std::vector<float> all;
  for (int32_t m = 0; m < rows; ++m) {
    const int32_t style = (m + random.below(2)) % 7;
    const double sigma = style == 3 ? 0.01 : 4;
    const size_t begin = all.size();
    for (int32_t i = 0; i < vocab; ++i) {
      float z = random.normal(sigma);
      if (style == 1) z = std::round(z);
      if (style == 4 && random.below(3) != 0) z = -kInfinity;
      if (style == 5) z *= 1e30F;
      if (style == 6) z = (i & 1) != 0 ? 0.0F : -0.0F;
      all.push_back(z);
    }
    all[begin + static_cast<size_t>(random.below(vocab))] = 3;  // a number in every row
    if (!broken) continue;
    const size_t at = begin + static_cast<size_t>(random.below(vocab));
    const int32_t kind = random.below(6);
    if (kind == 0) all[at] = std::numeric_limits<float>::quiet_NaN();
    if (kind == 1) all[at] = kInfinity;
    if (kind == 2) std::fill(all.begin() + static_cast<int64_t>(begin), all.end(), -kInfinity);
  }
  return all;
}

std::vector<int32_t> random_bans(Random& random, int32_t rows, int32_t max_banned, int32_t vocab) {
  std::vector<int32_t> all;
  for (int32_t i = 0; i < rows * max_banned; ++i)
    all.push_back(random.below(2) == 0 ? -1 : random.below(std::min(vocab, 40)));
  return all;
}

Problem token_problem(Random& random, int32_t rows, int32_t vocab, int32_t max_banned, bool broken) {
  Problem p;
  p.rows = rows;
  std::vector<RowFilter> filters;
  std::vector<double> uniforms;
  for (int32_t m = 0; m < rows; ++m) {
    filters.push_back(random_filter(random));
    const int32_t edge = random.below(8);
    uniforms.push_back(edge == 0 ? 1.0 : edge == 1 ? 0x1p-53 : random_uniform(random));
  }
  const int logits =
      p.input("logits", Kind::kF32, random_logits(random, rows, vocab, broken), static_cast<size_t>(vocab));
  const int filter = p.input("filter", Kind::kBytes, bytes_of(filters), sizeof(RowFilter));
  const int uniform = p.input("uniform", Kind::kBytes, bytes_of(uniforms), sizeof(double));
  const int banned =
      p.input("banned", Kind::kInt32, random_bans(random, rows, std::max(max_banned, 1), vocab),
              static_cast<size_t>(std::max(max_banned, 1)));
  const int token = p.output("token", Kind::kInt32, 1, kExact);
  p.issue = [=](const Call& call) {
    call.backend.select({.rows = call.rows,
                         .vocab = vocab,
                         .logits = call.data<float>(logits),
                         .filter = call.data<RowFilter>(filter),
                         .uniform = call.data<double>(uniform),
                         .max_banned = max_banned,
                         .banned = max_banned > 0 ? call.data<int32_t>(banned) : nullptr,
                         .token = call.data<int32_t>(token)});
  };
  return p;
}

// Drafts are drawn from proposals near the targets, so that all numbers of accepted drafts appear.
Problem verify_problem(Random& random, int32_t blocks, int32_t max_drafts, int32_t vocab, bool standard,
                       bool broken) {
  Problem p;
  p.rows = blocks;
  const int32_t places = max_drafts + 1;
  const std::vector<float> targets = random_logits(random, blocks * places, vocab, broken);
  std::vector<float> proposals;
  std::vector<RowFilter> filters;
  std::vector<int32_t> drafts, counts;
  std::vector<double> accept, last;
  for (int32_t b = 0; b < blocks; ++b) {
    filters.push_back(random_filter(random));
    if (filters.back().temperature == 0.0) filters.back().temperature = 0.7;
    counts.push_back(b % 4 == 3 ? random.below(places) : max_drafts);
    last.push_back(random_uniform(random));
    const double noise = b % 3 == 0 ? 0.0 : b % 3 == 1 ? 0.3 : 2.0;
    for (int32_t i = 0; i < max_drafts; ++i) {
      const size_t from = static_cast<size_t>(b * places + i) * static_cast<size_t>(vocab);
      int32_t draft = 0;
      float best = -kInfinity;
      for (int32_t v = 0; v < vocab; ++v) {
        const float t = targets[from + static_cast<size_t>(v)];
        const float z = std::isfinite(t) && std::fabs(t) < 1e20F ? t + random.normal(noise) : t;
        proposals.push_back(broken ? z : std::isfinite(z) ? z : -30.0F);
        const float drawn = z + random.normal(0.5);
        if (drawn > best) best = drawn, draft = v;
      }
      drafts.push_back(draft);
      accept.push_back(random_uniform(random));
    }
  }
  const auto n = static_cast<size_t>(max_drafts);
  const auto row = static_cast<size_t>(vocab);
  const int target = p.input("targets", Kind::kF32, targets, (n + 1) * row);
  const int proposal = p.input("proposals", Kind::kF32, proposals, n * row);
  const int draft = p.input("drafts", Kind::kInt32, drafts, n);
  const int count = p.input("count", Kind::kInt32, counts, 1);
  const int filter = p.input("filter", Kind::kBytes, bytes_of(filters), sizeof(RowFilter));
  const int banned = p.input("banned", Kind::kInt32, random_bans(random, blocks * places, 2, vocab),
                             static_cast<size_t>(2 * places));
  const int accepts = p.input("accept", Kind::kBytes, bytes_of(accept), n * sizeof(double));
  const int lasts = p.input("last", Kind::kBytes, bytes_of(last), sizeof(double));
  const int accepted = p.output("accepted", Kind::kInt32, 1, kExact);
  const int next = p.output("next", Kind::kInt32, 1, kExact);
  p.issue = [=](const Call& call) {
    call.backend.verify_drafts({.blocks = call.rows,
                                .max_drafts = max_drafts,
                                .vocab = vocab,
                                .standard = standard,
                                .drafts = call.data<int32_t>(draft),
                                .count = call.data<int32_t>(count),
                                .target_logits = call.data<float>(target),
                                .proposal_logits = call.data<float>(proposal),
                                .filter = call.data<RowFilter>(filter),
                                .max_banned = 2,
                                .banned = call.data<int32_t>(banned),
                                .accept = call.data<double>(accepts),
                                .last = call.data<double>(lasts),
                                .accepted = call.data<int32_t>(accepted),
                                .next = call.data<int32_t>(next)});
  };
  return p;
}

}  // namespace

void add_select_cases(std::vector<KernelCase>& cases) {
  const auto add = [&](const std::string& name, const std::function<Problem(Random&)>& make) {
    cases.push_back({name, [make] {
                       Random random(151);
                       return make(random);
                     }});
  };
  add("select/tiny", [](Random& r) { return token_problem(r, 9, 300, 0, false); });
  add("select/bans", [](Random& r) { return token_problem(r, 12, 40, 6, false); });
  add("select/no numbers", [](Random& r) { return token_problem(r, 12, 100, 2, true); });
  add("select/real", [](Random& r) { return token_problem(r, 2, 129280, 1, false); });
  add("verify_drafts/tiny", [](Random& r) { return verify_problem(r, 5, 3, 200, false, false); });
  add("verify_drafts/standard", [](Random& r) { return verify_problem(r, 4, 3, 100, true, false); });
  add("verify_drafts/no numbers", [](Random& r) { return verify_problem(r, 7, 2, 60, false, true); });
  add("verify_drafts/real", [](Random& r) { return verify_problem(r, 1, 2, 129280, false, false); });
  add_random_cases(cases, "select", [](Random& random) {
    const int32_t rows = 1 + random.below(8), vocab = 1 + random.below(700);
    return token_problem(random, rows, vocab, random.below(3), random.below(3) == 0);
  });
  add_random_cases(cases, "verify_drafts", [](Random& random) {
    const int32_t blocks = 1 + random.below(3), drafts = 1 + random.below(4);
    const int32_t vocab = 1 + random.below(300);
    const bool standard = random.below(3) == 0;
    return verify_problem(random, blocks, drafts, vocab, standard, random.below(4) == 0);
  });
}

}  // namespace spark::engine::cases
