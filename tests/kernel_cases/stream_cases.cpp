#include <algorithm>

#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

HostSteps plain_steps(Random& random, int32_t rows, int32_t vocab) {
  HostSteps steps;
  for (int32_t t = 0; t < rows; ++t) steps.add(t / 3, 5 + t % 3, random.below(vocab), 0, t % 5 == 4);
  return steps;
}

Problem embed_problem(int32_t rows, int32_t streams, int32_t hidden, bool overrides,
                      int64_t first_vocab_row) {
  Random random(11);
  Problem p;
  p.rows = rows;
  constexpr int32_t kVocab = 40;
  p.weights.push_back(random_weight(random, WeightFormat::kBf16, kVocab, hidden));
  p.steps = plain_steps(random, rows, kVocab + 10);  // some beyond the table
  const auto h_row = static_cast<size_t>(streams * hidden);
  const int h = p.output("h", Kind::kBf16, h_row, kExact);
  const int pre = p.output("pre", Kind::kF32, static_cast<size_t>(streams), kExact);
  std::vector<int32_t> override_rows(static_cast<size_t>(rows));
  for (int32_t t = 0; t < rows; ++t) override_rows[static_cast<size_t>(t)] = t % 4 == 1 ? t % 3 : -1;
  const int in = p.input("overrides", Kind::kBf16, bf16_values(random, static_cast<size_t>(3 * hidden)));
  const int which = p.input("override_rows", Kind::kInt32, override_rows, 1);
  p.issue = [=](const Call& call) {
    call.backend.embed({.step = call.step,
                        .streams = streams,
                        .hidden = hidden,
                        .table = call.weight(0),
                        .first_vocab_row = first_vocab_row,
                        .overrides = overrides ? call.data<uint16_t>(in) : nullptr,
                        .override_rows = overrides ? call.data<int32_t>(which) : nullptr,
                        .h = call.data<uint16_t>(h),
                        .pre = call.data<float>(pre)});
  };
  return p;
}

Problem mix_problem(int32_t rows, int32_t streams, int32_t hidden, int32_t iterations, double scale_size) {
  Random random(static_cast<uint64_t>(hidden + rows));
  Problem p;
  p.rows = rows;
  const int32_t mixes = 2 * streams + streams * streams;
  const int32_t width = streams * hidden;
  HostWeight fn = random_weight(random, WeightFormat::kF32, mixes, width);
  p.weights.push_back(fn);
  std::vector<uint16_t> x = bf16_rows(random, rows, static_cast<size_t>(width));
  const int h = p.input("h", Kind::kBf16, x, static_cast<size_t>(width));
  const int scale = p.input("scale", Kind::kF32, f32_values(random, 3, scale_size));
  const int base = p.input("base", Kind::kF32, f32_values(random, static_cast<size_t>(mixes)));
  // The logits have errors of a few units in the last place of their largest term; sigmoid and softmax have
  // slopes below one.
  const Check close{.absolute = 2e-5};
  const auto s = static_cast<size_t>(streams);
  const int pre = p.output("pre", Kind::kF32, s, close);
  const int post = p.output("post", Kind::kF32, s, close);
  const int comb = p.output("comb", Kind::kF32, s * s, close);
  p.issue = [=](const Call& call) {
    call.backend.mhc_mix({.rows = call.rows,
                          .streams = streams,
                          .hidden = hidden,
                          .iterations = iterations,
                          .h = call.data<uint16_t>(h),
                          .fn = call.weight(0),
                          .scale = call.data<float>(scale),
                          .base = call.data<float>(base),
                          .pre = call.data<float>(pre),
                          .post = call.data<float>(post),
                          .comb = call.data<float>(comb)});
  };
  return p;
}

Problem collapse_problem(int32_t rows, int32_t streams, int32_t hidden, bool keep_u, bool quantise) {
  Random random(static_cast<uint64_t>(hidden * 3 + rows));
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(hidden);
  const size_t h_row = n * static_cast<size_t>(streams);
  const int h = p.input("h", Kind::kBf16, bf16_rows(random, rows, h_row), h_row);
  const int pre = p.input("pre", Kind::kF32, f32_values(random, static_cast<size_t>(rows * streams)),
                          static_cast<size_t>(streams));
  const int weight = p.input("weight", Kind::kBf16, norm_weights(random, n));
  // Cancellation in the sum of four: relative to the row.
  const Check sum{.ulps = 1, .row_max = 1e-5, .fraction = 0.05};
  const int u = keep_u ? p.output("u", Kind::kBf16, n, sum) : -1;
  const int x = p.output("x", Kind::kBf16, n, {.ulps = 2, .row_max = 1e-5, .fraction = 0.05});
  const int codes = quantise ? p.output("codes", Kind::kBytes, n, {.skip = true}) : -1;
  const int scales = quantise ? p.output("scales", Kind::kBytes, n / 32, {.skip = true}) : -1;
  p.issue = [=](const Call& call) {
    MhcCollapseArgs args{.rows = call.rows,
                         .streams = streams,
                         .hidden = hidden,
                         .h = call.data<uint16_t>(h),
                         .pre = call.data<float>(pre),
                         .norm_weight = call.data<uint16_t>(weight),
                         .x = call.data<uint16_t>(x)};
    if (keep_u) args.u = call.data<uint16_t>(u);
    if (quantise) args.x_q = {call.data<uint8_t>(codes), call.data<uint8_t>(scales)};
    call.backend.mhc_collapse(args);
  };
  if (quantise) {
    p.verify = [=](const Problem&, const Results& r) -> std::string {
      const QuantisedHost q = quantised(values_of<uint16_t>(r[static_cast<size_t>(x)]));
      const bool same =
          q.codes == r[static_cast<size_t>(codes)] && q.scales == r[static_cast<size_t>(scales)];
      return same ? "" : "the codes are not those of x\n";
    };
  }
  return p;
}

Problem expand_problem(int32_t rows, int32_t streams, int32_t hidden) {
  Random random(static_cast<uint64_t>(hidden + 2 * rows));
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(hidden);
  const auto s = static_cast<size_t>(streams);
  const auto count = static_cast<size_t>(rows);
  const Check sum{.ulps = 1, .row_max = 1e-5, .fraction = 0.05};
  const int h = p.state("h", Kind::kBf16, bf16_rows(random, rows, n * s), sum, n * s);
  const int y = p.input("y", Kind::kBf16, bf16_rows(random, rows, n, 2), n);
  const int post = p.input("post", Kind::kF32, f32_values(random, count * s), s);
  const int comb = p.input("comb", Kind::kF32, f32_values(random, count * s * s), s * s);
  p.issue = [=](const Call& call) {
    call.backend.mhc_expand({.rows = call.rows,
                             .streams = streams,
                             .hidden = hidden,
                             .y = call.data<uint16_t>(y),
                             .post = call.data<float>(post),
                             .comb = call.data<float>(comb),
                             .h = call.data<uint16_t>(h)});
  };
  return p;
}

// An expansion and the collapse of its streams, which may share a launch.
Problem expand_collapse_problem(int32_t rows, int32_t hidden) {
  constexpr int32_t kStreams = 4;
  Random random(static_cast<uint64_t>(hidden + 5 * rows));
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(hidden);
  const auto count = static_cast<size_t>(rows);
  const Check sum{.ulps = 1, .row_max = 1e-5, .fraction = 0.05};
  const int h = p.state("h", Kind::kBf16, bf16_rows(random, rows, n * kStreams), sum, n * kStreams);
  const int y = p.input("y", Kind::kBf16, bf16_rows(random, rows, n, 2), n);
  const int post = p.input("post", Kind::kF32, f32_values(random, count * 4), 4);
  const int comb = p.input("comb", Kind::kF32, f32_values(random, count * 16), 16);
  const int pre = p.input("pre", Kind::kF32, f32_values(random, count * 4), 4);
  const int weight = p.input("weight", Kind::kBf16, norm_weights(random, n));
  // A stream that rounds the other way shows in the sum of four.
  const int x = p.output("x", Kind::kBf16, n, {.ulps = 2, .row_max = 4e-3, .fraction = 0.05});
  const int codes = p.output("codes", Kind::kBytes, n, {.skip = true});
  const int scales = p.output("scales", Kind::kBytes, n / 32, {.skip = true});
  p.issue = [=](const Call& call) {
    call.backend.mhc_expand({.rows = call.rows,
                             .streams = kStreams,
                             .hidden = hidden,
                             .y = call.data<uint16_t>(y),
                             .post = call.data<float>(post),
                             .comb = call.data<float>(comb),
                             .h = call.data<uint16_t>(h)});
    call.backend.mhc_collapse({.rows = call.rows,
                               .streams = kStreams,
                               .hidden = hidden,
                               .h = call.data<uint16_t>(h),
                               .pre = call.data<float>(pre),
                               .norm_weight = call.data<uint16_t>(weight),
                               .x = call.data<uint16_t>(x),
                               .x_q = {call.data<uint8_t>(codes), call.data<uint8_t>(scales)}});
  };
  p.verify = [=](const Problem&, const Results& r) -> std::string {
    const QuantisedHost q = quantised(values_of<uint16_t>(r[static_cast<size_t>(x)]));
    const bool same = q.codes == r[static_cast<size_t>(codes)] && q.scales == r[static_cast<size_t>(scales)];
    return same ? "" : "the codes are not those of x\n";
  };
  return p;
}

Problem mean_problem(int32_t rows, int32_t streams, int32_t hidden, int32_t stride) {
  Random random(21);
  Problem p;
  p.rows = rows;
  const auto h_row = static_cast<size_t>(streams * hidden);
  const int h = p.input("h", Kind::kBf16, bf16_rows(random, rows, h_row), h_row);
  const int out = p.output("out", Kind::kBf16, static_cast<size_t>(stride),
                           {.ulps = 1, .row_max = 1e-6, .fraction = 0.02});
  p.issue = [=](const Call& call) {
    call.backend.stream_mean({.rows = call.rows,
                              .streams = streams,
                              .hidden = hidden,
                              .h = call.data<uint16_t>(h),
                              .out = call.data<uint16_t>(out),
                              .out_stride = stride});
  };
  return p;
}

Problem gather_problem(int32_t rows, int32_t cols) {
  Random random(31);
  Problem p;
  p.rows = rows;
  constexpr int32_t kSource = 9;
  const int in = p.input("in", Kind::kBf16, bf16_values(random, static_cast<size_t>(kSource * cols)));
  std::vector<int32_t> index(static_cast<size_t>(rows));
  for (int32_t& i : index) i = random.below(kSource);
  const int row = p.input("row", Kind::kInt32, index, 1);
  const int out = p.output("out", Kind::kBf16, static_cast<size_t>(cols), kExact);
  p.issue = [=](const Call& call) {
    call.backend.gather_rows({.rows = call.rows,
                              .cols = cols,
                              .in = call.data<uint16_t>(in),
                              .row = call.data<int32_t>(row),
                              .out = call.data<uint16_t>(out)});
  };
  return p;
}

Problem dequantise_problem(int32_t rows, int32_t cols) {
  Random random(41);
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(cols);
  std::vector<uint8_t> codes(n * static_cast<size_t>(rows));
  std::vector<uint8_t> scales(codes.size() / 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i < 256 ? i : random.bits());
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(100 + random.below(40));
  const int in = p.input("codes", Kind::kBytes, codes, n);
  const int scale = p.input("scales", Kind::kBytes, scales, n / 32);
  const int x = p.output("x", Kind::kBf16, n, kExact);
  p.issue = [=](const Call& call) {
    call.backend.engram_dequantise({.rows = call.rows,
                                    .cols = cols,
                                    .codes = call.data<uint8_t>(in),
                                    .scales = call.data<uint8_t>(scale),
                                    .x = call.data<uint16_t>(x)});
  };
  return p;
}

Problem inject_problem(int32_t rows, int32_t streams, int32_t hidden) {
  Random random(static_cast<uint64_t>(51 + hidden));
  Problem p;
  p.rows = rows;
  p.steps = plain_steps(random, rows, 10);
  const auto n = static_cast<size_t>(hidden);
  const auto s = static_cast<size_t>(streams);
  const int kv = p.input("kv", Kind::kBf16, bf16_rows(random, rows, (s + 1) * n), (s + 1) * n);
  const int q = p.input("q_weight", Kind::kBf16, bf16_values(random, s * n));
  const int k = p.input("k_weight", Kind::kBf16, bf16_values(random, s * n));
  const int h = p.state("h", Kind::kBf16, bf16_rows(random, rows, s * n, 3),
                        {.ulps = 1, .row_max = 1e-6, .fraction = 0.02}, s * n);
  const int gate = p.output("gate", Kind::kF32, s, {.absolute = 1e-5});
  p.issue = [=](const Call& call) {
    call.backend.engram_inject({.step = call.step,
                                .streams = streams,
                                .hidden = hidden,
                                .kv = call.data<uint16_t>(kv),
                                .q_weight = call.data<uint16_t>(q),
                                .k_weight = call.data<uint16_t>(k),
                                .h = call.data<uint16_t>(h),
                                .gate = call.data<float>(gate)});
  };
  return p;
}

}  // namespace

void add_stream_cases(std::vector<KernelCase>& cases) {
  cases.push_back({"embed/plain", [] { return embed_problem(7, 4, 128, false, 0); }});
  cases.push_back({"embed/overrides", [] { return embed_problem(13, 4, 96, true, 0); }});
  cases.push_back({"embed/second rank", [] { return embed_problem(20, 4, 64, true, 12); }});
  cases.push_back({"mhc_mix/tiny", [] { return mix_problem(13, 4, 128, 20, 1); }});
  cases.push_back({"mhc_mix/one row", [] { return mix_problem(1, 4, 128, 20, 1); }});
  cases.push_back({"mhc_mix/real width", [] { return mix_problem(3, 4, 5120, 20, 1); }});
  cases.push_back({"mhc_mix/steep", [] { return mix_problem(9, 4, 64, 20, 12); }});
  cases.push_back({"mhc_mix/one iteration", [] { return mix_problem(8, 4, 96, 1, 1); }});
  cases.push_back({"mhc_mix/two streams", [] { return mix_problem(5, 2, 160, 20, 1); }});
  cases.push_back({"mhc_collapse/tiny", [] { return collapse_problem(7, 4, 128, false, true); }});
  cases.push_back({"mhc_collapse/u too", [] { return collapse_problem(9, 4, 96, true, false); }});
  cases.push_back({"mhc_collapse/all outputs", [] { return collapse_problem(40, 4, 512, true, true); }});
  cases.push_back({"mhc_collapse/real width", [] { return collapse_problem(2, 4, 5120, false, true); }});
  cases.push_back({"mhc_expand/tiny", [] { return expand_problem(7, 4, 128); }});
  cases.push_back({"mhc_expand/many rows", [] { return expand_problem(96, 4, 96); }});
  cases.push_back({"mhc_expand/collapse", [] { return expand_collapse_problem(7, 128); }});
  cases.push_back({"mhc_expand/collapse in clusters", [] { return expand_collapse_problem(8, 2560); }});
  cases.push_back({"mhc_expand/collapse, more rows", [] { return expand_collapse_problem(10, 2560); }});
  cases.push_back({"mhc_expand/three streams", [] { return expand_problem(4, 3, 64); }});
  cases.push_back({"stream_mean/tiny", [] { return mean_problem(7, 4, 128, 128); }});
  cases.push_back({"stream_mean/strided", [] { return mean_problem(12, 4, 64, 192); }});
  cases.push_back({"gather_rows/tiny", [] { return gather_problem(11, 128); }});
  cases.push_back({"engram_dequantise/all codes", [] { return dequantise_problem(9, 192); }});
  cases.push_back({"engram_dequantise/real width", [] { return dequantise_problem(3, 6144); }});
  cases.push_back({"engram_inject/tiny", [] { return inject_problem(13, 4, 128); }});
  cases.push_back({"engram_inject/real width", [] { return inject_problem(6, 4, 5120); }});
  add_random_cases(cases, "embed", [](Random& random) {
    const int32_t rows = random_rows(random), hidden = random_multiple(random, 32, 256);
    return embed_problem(rows, 4, hidden, random.below(2) == 0, 8 * random.below(3));
  });
  add_random_cases(cases, "mhc_mix", [](Random& random) {
    const int32_t rows = 1 + random.below(20), hidden = random_multiple(random, 32, 256);
    return mix_problem(rows, 1 + random.below(4), hidden, 1 + random.below(20), 0.5 + random.uniform() * 8);
  });
  add_random_cases(cases, "mhc_collapse", [](Random& random) {
    const int32_t rows = random_rows(random), hidden = random_multiple(random, 32, 256);
    return collapse_problem(rows, 4, hidden, random.below(2) == 0, random.below(2) == 0);
  });
  add_random_cases(cases, "mhc_expand", [](Random& random) {
    return expand_problem(random_rows(random), 1 + random.below(4), random_multiple(random, 32, 256));
  });
  add_random_cases(cases, "stream_mean", [](Random& random) {
    const int32_t rows = random_rows(random), hidden = random_multiple(random, 32, 256);
    return mean_problem(rows, 4, hidden, hidden * (1 + random.below(3)));
  });
  add_random_cases(cases, "gather_rows", [](Random& random) {
    return gather_problem(random_rows(random), random_multiple(random, 32, 256));
  });
  add_random_cases(cases, "engram_dequantise", [](Random& random) {
    return dequantise_problem(random_rows(random), random_multiple(random, 32, 512));
  });
  add_random_cases(cases, "engram_inject", [](Random& random) {
    return inject_problem(random_rows(random), 4, random_multiple(random, 32, 192));
  });
}

}  // namespace spark::engine::cases
