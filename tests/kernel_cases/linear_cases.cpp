#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

// FP32 sums in another order than the reference's.
constexpr Check kSumF32{.row_max = 1e-5};
constexpr Check kSumBf16{.ulps = 1, .row_max = 1e-5, .fraction = 0.05};
constexpr Check kNormBf16{.ulps = 1, .fraction = 0.02};

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kFp4:
      return "fp4";
  }
  return "";
}

std::string shape_name(int32_t rows, int64_t out, int64_t in) {
  return std::to_string(rows) + "x" + std::to_string(out) + "x" + std::to_string(in);
}

Problem linear_problem(WeightFormat format, int32_t rows, int64_t out, int64_t in, bool f32, int64_t extra,
                       bool edges = false) {
  Random random(static_cast<uint64_t>(rows * 7919 + out * 31 + in) + static_cast<uint64_t>(format));
  Problem p;
  p.rows = rows;
  p.weights.push_back(random_weight(random, format, out, in));
  const auto cols = static_cast<size_t>(in);
  const bool quantised_input = format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
  const std::vector<uint16_t> x = bf16_rows(random, rows, cols, rows == 1 ? 2 : 0);
  int x_in = 0;
  int scales_in = 0;
  if (quantised_input) {
    QuantisedHost q = quantised(x);
    if (edges) add_edges(random, q.codes, q.scales);
    x_in = p.input("codes", Kind::kBytes, q.codes, cols);
    scales_in = p.input("scales", Kind::kBytes, q.scales, cols / 32);
  } else {
    x_in = p.input("x", Kind::kBf16, x, cols);
  }
  const int64_t stride = out + extra;
  const int y =
      p.output("y", f32 ? Kind::kF32 : Kind::kBf16, static_cast<size_t>(stride), f32 ? kSumF32 : kSumBf16);
  p.issue = [=](const Call& call) {
    LinearArgs args{.rows = call.rows, .weight = call.weight(0), .y_stride = stride};
    if (quantised_input) {
      args.x_q = {call.data<uint8_t>(x_in), call.data<uint8_t>(scales_in)};
    } else {
      args.x = call.data<uint16_t>(x_in);
    }
    (f32 ? reinterpret_cast<void*&>(args.y_f32) : reinterpret_cast<void*&>(args.y)) = call.data<void>(y);
    call.backend.linear(args);
  };
  return p;
}

Problem grouped_problem(int32_t rows, int32_t groups, int64_t out, int64_t in) {
  Random random(static_cast<uint64_t>(rows * 131 + groups));
  Problem p;
  p.rows = rows;
  p.weights.push_back(random_weight(random, WeightFormat::kFp8, groups * out, in));
  const auto cols = static_cast<size_t>(groups * in);
  const int x = p.input("x", Kind::kBf16, bf16_rows(random, rows, cols), cols);
  const int y = p.output("y", Kind::kBf16, static_cast<size_t>(groups * out), kSumBf16);
  p.issue = [=](const Call& call) {
    call.backend.grouped_linear({.rows = call.rows,
                                 .groups = groups,
                                 .x = call.data<uint16_t>(x),
                                 .weight = call.weight(0),
                                 .y = call.data<uint16_t>(y)});
  };
  return p;
}

Problem quantise_problem(int32_t rows, int32_t cols) {
  Random random(static_cast<uint64_t>(rows * 17 + cols));
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(cols);
  std::vector<uint16_t> x = bf16_rows(random, rows, n);
  // The borders of the scale rule, a value per block: 448 and its neighbours, powers of two, the floor.
  const float borders[] = {448, 450, 446, 1, 3.5F, 224, 1e-4F, 1.0001e-4F, 0.9e-4F, 3e38F, 1e-38F, -448};
  for (size_t b = 0; b < n / 32 && b < std::size(borders); ++b) {
    for (size_t i = 0; i < 32; ++i) x[b * 32 + i] = float_to_bf16(borders[b] * (i == 5 ? 1.0F : 0.3F));
  }
  const int in = p.input("x", Kind::kBf16, x, n);
  const int codes = p.output("codes", Kind::kBytes, n, kExact);
  const int scales = p.output("scales", Kind::kBytes, n / 32, kExact);
  p.issue = [=](const Call& call) {
    call.backend.quantise({.rows = call.rows,
                           .cols = cols,
                           .x = call.data<uint16_t>(in),
                           .out = {call.data<uint8_t>(codes), call.data<uint8_t>(scales)}});
  };
  return p;
}

enum class NormOutputs : uint8_t { kRow, kRowAndCodes, kCodes };

Problem norm_problem(int32_t rows, int32_t cols, int32_t gap, NormOutputs outputs) {
  Random random(static_cast<uint64_t>(rows * 3 + cols));
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(cols);
  const size_t stride = n + static_cast<size_t>(gap);
  const int x = p.input("x", Kind::kBf16, bf16_rows(random, rows, stride), stride);
  const int w = p.input("weight", Kind::kBf16, norm_weights(random, n));
  const bool with_row = outputs != NormOutputs::kCodes;
  const bool with_codes = outputs != NormOutputs::kRow;
  const int y = with_row ? p.output("y", Kind::kBf16, n, kNormBf16) : -1;
  // Codes follow y; where y is not given a few may differ.
  const Check codes_check = with_row ? Check{.skip = true} : Check{.absolute = 1, .fraction = 0.02};
  const int codes = with_codes ? p.output("codes", Kind::kBytes, n, codes_check) : -1;
  const int scales = with_codes ? p.output("scales", Kind::kBytes, n / 32, codes_check) : -1;
  p.issue = [=](const Call& call) {
    RmsNormArgs args{.rows = call.rows,
                     .cols = cols,
                     .x = call.data<uint16_t>(x),
                     .x_stride = static_cast<int64_t>(stride),
                     .weight = call.data<uint16_t>(w)};
    if (with_row) args.y = call.data<uint16_t>(y);
    if (with_codes) args.y_q = {call.data<uint8_t>(codes), call.data<uint8_t>(scales)};
    call.backend.rms_norm(args);
  };
  if (outputs == NormOutputs::kRowAndCodes) {
    p.verify = [=](const Problem&, const Results& r) -> std::string {
      const QuantisedHost q = quantised(values_of<uint16_t>(r[static_cast<size_t>(y)]));
      const bool same =
          q.codes == r[static_cast<size_t>(codes)] && q.scales == r[static_cast<size_t>(scales)];
      return same ? "" : "the codes are not those of y\n";
    };
  }
  return p;
}

Problem norm_in_place_problem(int32_t rows, int32_t cols) {
  Random random(5);
  Problem p;
  p.rows = rows;
  const auto n = static_cast<size_t>(cols);
  const int x = p.state("x", Kind::kBf16, bf16_rows(random, rows, n), kNormBf16, n);
  const int w = p.input("weight", Kind::kBf16, norm_weights(random, n));
  p.issue = [=](const Call& call) {
    call.backend.rms_norm({.rows = call.rows,
                           .cols = cols,
                           .x = call.data<uint16_t>(x),
                           .x_stride = cols,
                           .weight = call.data<uint16_t>(w),
                           .y = call.data<uint16_t>(x)});
  };
  return p;
}

}  // namespace

void add_linear_cases(std::vector<KernelCase>& cases) {
  struct Shape {
    int32_t rows;
    int64_t out, in;
  };
  // Tiny and real widths, edges of every tile size, rows from one to a small prefill.
  const std::vector<Shape> shapes = {{1, 64, 128},  {1, 512, 64},   {2, 128, 192},  {3, 33, 96},
                                     {5, 31, 32},   {6, 160, 1280}, {8, 32, 2304},  {9, 1, 160},
                                     {17, 96, 64},  {40, 100, 352}, {96, 128, 128}, {13, 48, 2304},
                                     {20, 48, 2304}};
  for (const WeightFormat format :
       {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16, WeightFormat::kF32}) {
    for (const Shape& s : shapes) {
      const bool f32 = format == WeightFormat::kF32 || s.rows == 5 || s.rows == 8;
      const int64_t gap = s.rows % 3 == 0 ? 8 : 0;
      cases.push_back({std::string("linear/") + name_of(format) + "/" + shape_name(s.rows, s.out, s.in),
                       [=] { return linear_problem(format, s.rows, s.out, s.in, f32, gap); }});
    }
  }
  // Widths that no block of 32 divides exist for BF16 and F32 only (confidence head, Markov head).
  cases.push_back(
      {"linear/bf16/ragged", [] { return linear_problem(WeightFormat::kBf16, 7, 45, 77, true, 0); }});
  cases.push_back(
      {"linear/f32/ragged", [] { return linear_problem(WeightFormat::kF32, 4, 24, 50, true, 0); }});
  cases.push_back(
      {"linear/fp8/long", [] { return linear_problem(WeightFormat::kFp8, 2, 64, 8192, false, 0); }});
  // Products of a warpgroup: rows of every width of the instruction, and of two launches; a shard in one
  // block and in several, tiles of weight rows that are not there, a last shard that is short or empty.
  for (const Shape& s : {Shape{9, 70, 1056}, Shape{16, 320, 640}, Shape{20, 70, 1056}, Shape{24, 128, 512},
                         Shape{25, 200, 288}, Shape{48, 64, 2080}, Shape{70, 320, 640}}) {
    cases.push_back({"linear/fp8/teams " + shape_name(s.rows, s.out, s.in), [=] {
                       return linear_problem(WeightFormat::kFp8, s.rows, s.out, s.in, s.rows == 25, 8, true);
                     }});
  }
  // A prompt's rows: blocks of rows, of weight rows and of columns that are not whole.
  for (const auto& s : {Shape{257, 136, 96}, Shape{258, 40, 160}, Shape{260, 40, 288}}) {
    for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kBf16}) {
      cases.push_back(
          {std::string("linear/") + name_of(format) + "/prompt " + shape_name(s.rows, s.out, s.in), [=] {
             return linear_problem(format, s.rows, s.out, s.in, s.rows == 258, s.rows == 257 ? 8 : 0, true);
           }});
    }
  }
  // Where they are packed, products of warps that own all columns: rows of every width of the instruction and
  // of two launches, shards of an odd number of blocks and short ones, tiles that are not there, and more
  // weight rows than the device takes at once.
  for (const Shape& s : {Shape{8, 200, 1056}, Shape{16, 70, 2080}, Shape{23, 33, 1312}, Shape{50, 100, 1056},
                         Shape{2, 34000, 96}}) {
    const std::string name = s.out > 10000 ? "linear/bf16/tall, long " : "linear/bf16/tall ";
    cases.push_back({name + shape_name(s.rows, s.out, s.in), [=] {
                       return linear_problem(WeightFormat::kBf16, s.rows, s.out, s.in, s.rows != 16, 8);
                     }});
  }
  cases.push_back({"grouped_linear/tiny", [] { return grouped_problem(5, 4, 32, 128); }});
  cases.push_back({"grouped_linear/narrow groups", [] { return grouped_problem(3, 4, 16, 64); }});
  cases.push_back({"grouped_linear/ragged groups", [] { return grouped_problem(9, 3, 40, 96); }});
  cases.push_back({"grouped_linear/wide", [] { return grouped_problem(2, 8, 64, 1024); }});
  cases.push_back({"grouped_linear/many rows", [] { return grouped_problem(15, 2, 64, 1024); }});
  cases.push_back({"grouped_linear/teams 24 rows", [] { return grouped_problem(24, 2, 128, 512); }});
  cases.push_back({"grouped_linear/teams 12 rows", [] { return grouped_problem(12, 2, 128, 512); }});
  // Three shards a block of the cluster, the last block with fewer.
  cases.push_back({"grouped_linear/teams 48 rows", [] { return grouped_problem(48, 2, 128, 2048); }});
  cases.push_back({"grouped_linear/prompt", [] { return grouped_problem(257, 2, 128, 64); }});
  cases.push_back({"grouped_linear/teams 52 rows", [] { return grouped_problem(52, 3, 64, 1056); }});
  cases.push_back({"quantise/one block", [] { return quantise_problem(7, 32); }});
  cases.push_back({"quantise/borders", [] { return quantise_problem(13, 384); }});
  cases.push_back({"quantise/wide", [] { return quantise_problem(70, 5120); }});
  cases.push_back({"rms_norm/tiny", [] { return norm_problem(13, 64, 0, NormOutputs::kRow); }});
  cases.push_back({"rms_norm/strided", [] { return norm_problem(9, 96, 32, NormOutputs::kRow); }});
  cases.push_back(
      {"rms_norm/row and codes", [] { return norm_problem(30, 1280, 0, NormOutputs::kRowAndCodes); }});
  cases.push_back({"rms_norm/codes", [] { return norm_problem(12, 512, 64, NormOutputs::kCodes); }});
  cases.push_back({"rms_norm/in place", [] { return norm_in_place_problem(11, 128); }});
  cases.push_back({"rms_norm/wide", [] { return norm_problem(4, 5120, 0, NormOutputs::kRow); }});
  for (const WeightFormat format :
       {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16, WeightFormat::kF32}) {
    add_random_cases(cases, std::string("linear/") + name_of(format), [format](Random& random) {
      const bool blocks = format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
      const int32_t in = blocks ? random_multiple(random, 32, 480) : 1 + random.below(300);
      const bool f32 = format == WeightFormat::kF32 || random.below(2) == 0;
      const int32_t rows = random_rows(random);
      return linear_problem(format, rows, 1 + random.below(150), in, f32, 8 * random.below(3), true);
    });
  }
  add_random_cases(cases, "grouped_linear", [](Random& random) {
    const int32_t rows = random_rows(random), groups = 1 + random.below(5);
    return grouped_problem(rows, groups, 1 + random.below(48), random_multiple(random, 32, 256));
  });
  add_random_cases(cases, "quantise", [](Random& random) {
    return quantise_problem(random_rows(random), random_multiple(random, 32, 700));
  });
  add_random_cases(cases, "rms_norm", [](Random& random) {
    const int32_t rows = random_rows(random), cols = random_multiple(random, 32, 700);
    return norm_problem(rows, cols, 32 * random.below(3), static_cast<NormOutputs>(random.below(3)));
  });
}

}  // namespace spark::engine::cases
