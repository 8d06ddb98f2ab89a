// Building blocks against vectors of an independent implementation (tests/data/golden/ops.safetensors). Every
// test prints its figure; the limits are those published with the vectors.
#include <gtest/gtest.h>

#include <cstdio>

#include "engine/kernels/reference/operations.h"
#include "engine/numeric/numeric.h"
#include "golden/golden_file.h"

namespace spark::engine {
namespace {

using golden::Bf16Distance;
using golden::compare_bf16;
using golden::GoldenFile;

class GoldenOps : public testing::Test {
 protected:
  std::vector<float> f32(const std::string& name) const { return file_.get<float>(name); }
  std::vector<uint16_t> bf16(const std::string& name) const { return file_.get<uint16_t>(name); }
  std::vector<int32_t> i32(const std::string& name) const { return file_.get<int32_t>(name); }
  std::vector<uint8_t> u8(const std::string& name) const { return file_.get<uint8_t>(name); }

  // At most `few` of the elements differ, and by one step.
  static void expect_close(const char* what, const std::vector<uint16_t>& got,
                           const std::vector<uint16_t>& want, size_t few) {
    const Bf16Distance d = compare_bf16(got, want);
    std::printf("  %-22s %zu of %zu BF16 values differ, by at most %d step(s)\n", what, d.differing, d.count,
                d.largest_steps);
    EXPECT_LE(d.largest_steps, 1) << what;
    EXPECT_LE(d.differing, few) << what;
  }
  static void expect_close(const char* what, const std::vector<float>& got, const std::vector<float>& want,
                           double limit) {
    const double worst = golden::largest_difference(got, want);
    std::printf("  %-22s largest difference %.2e, %zu of %zu not identical\n", what, worst,
                golden::count_differing(got, want), want.size());
    EXPECT_LE(worst, limit) << what;
  }

  GoldenFile file_{golden::data_path("ops.safetensors")};
};

TEST_F(GoldenOps, QuantisedProducts) {
  constexpr int32_t kRows = 5, kCols = 256, kOut = 96;
  const auto x = bf16("gemm.x");
  std::vector<uint8_t> codes(kRows * kCols), scales(kRows * kCols / 32);
  reference::quantise({.rows = kRows, .cols = kCols, .x = x.data(), .out = {codes.data(), scales.data()}});
  for (const bool fp8 : {true, false}) {
    const auto data = u8(fp8 ? "gemm.fp8_weight" : "gemm.fp4_weight");
    const auto weight_scales = u8(fp8 ? "gemm.fp8_scale" : "gemm.fp4_scale");
    const Weight weight{.format = fp8 ? WeightFormat::kFp8 : WeightFormat::kFp4,
                        .rows = kOut,
                        .cols = kCols,
                        .data = data.data(),
                        .scales = weight_scales.data()};
    std::vector<float> y_f32(kRows * kOut);
    std::vector<uint16_t> y(kRows * kOut);
    LinearArgs args{.rows = kRows, .x_q = {codes.data(), scales.data()}, .weight = &weight, .y_stride = kOut};
    args.y_f32 = y_f32.data();
    reference::linear(args);
    args.y_f32 = nullptr;
    args.y = y.data();
    reference::linear(args);
    const auto want = f32(fp8 ? "gemm.fp8_y_fp32" : "gemm.fp4_y_fp32");
    float largest = 0;
    for (const float v : want) largest = std::max(largest, std::fabs(v));
    expect_close(fp8 ? "FP8 x FP8" : "FP8 x FP4", y_f32, want, 1e-5 * static_cast<double>(largest));
    expect_close(fp8 ? "FP8 x FP8" : "FP8 x FP4", y, bf16(fp8 ? "gemm.fp8_y" : "gemm.fp4_y"), 2);
  }
}

TEST_F(GoldenOps, RmsNorm) {
  const auto x = bf16("rmsnorm.x");
  const auto w = bf16("rmsnorm.w");
  std::vector<uint16_t> y(x.size());
  reference::rms_norm(
      {.rows = 6, .cols = 512, .x = x.data(), .x_stride = 512, .weight = w.data(), .y = y.data()});
  expect_close("rms norm", y, bf16("rmsnorm.y"), 2);
}

TEST_F(GoldenOps, MhcCoefficients) {
  const auto m = f32("mhc.m"), scale = f32("mhc.scale"), base = f32("mhc.base");
  std::vector<float> pre, post, comb;
  for (size_t row = 0; row < 24; ++row) {
    const auto c = reference::mhc_coefficients({m.data() + row * 24, 24}, scale, base, 4, 20, 1e-6F);
    pre.insert(pre.end(), c.pre.begin(), c.pre.end());
    post.insert(post.end(), c.post.begin(), c.post.end());
    comb.insert(comb.end(), c.comb.begin(), c.comb.end());
  }
  expect_close("mHC pre", pre, f32("mhc.pre"), 2e-6);
  expect_close("mHC post", post, f32("mhc.post"), 2e-6);
  expect_close("mHC comb", comb, f32("mhc.comb"), 2e-6);
}

TEST_F(GoldenOps, MhcCollapseAndExpand) {
  const auto pre = f32("mhc.pre"), post = f32("mhc.post"), comb = f32("mhc.comb");
  auto h = bf16("mhc.h");
  const auto y = bf16("mhc.y");
  const std::vector<uint16_t> ones(64, float_to_bf16(1.0F));
  std::vector<uint16_t> u(24 * 64), x(24 * 64);
  reference::mhc_collapse({.rows = 24,
                           .streams = 4,
                           .hidden = 64,
                           .h = h.data(),
                           .pre = pre.data(),
                           .norm_weight = ones.data(),
                           .u = u.data(),
                           .x = x.data()});
  expect_close("mHC collapse", u, bf16("mhc.collapsed"), 2);
  reference::mhc_expand({.rows = 24,
                         .streams = 4,
                         .hidden = 64,
                         .y = y.data(),
                         .post = post.data(),
                         .comb = comb.data(),
                         .h = h.data()});
  expect_close("mHC expand", h, bf16("mhc.expanded"), 2);
}

TEST_F(GoldenOps, Rope) {
  const auto positions = i32("rope.positions");
  for (const std::string table : {"plain", "yarn"}) {
    const auto freq = f32("rope." + table + "_freq");
    std::vector<float> cos_sin(12 * 32 * 2), cosine, sine;
    reference::rope_angles({.step = {.rows = 12, .position = positions.data()},
                            .pairs = 32,
                            .freq = freq.data(),
                            .cos_sin = cos_sin.data()});
    for (size_t i = 0; i < cos_sin.size(); i += 2) {
      cosine.push_back(cos_sin[i]);
      sine.push_back(cos_sin[i + 1]);
    }
    expect_close("rope cos", cosine, f32("rope." + table + "_cos"), 2e-7);
    expect_close("rope sin", sine, f32("rope." + table + "_sin"), 2e-7);
    auto x = bf16("rope.x");
    RopeArgs args{
        .rows = 12, .heads = 1, .width = 512, .pairs = 32, .cos_sin = cos_sin.data(), .x = x.data()};
    reference::rope(args);
    expect_close("rope forward", x, bf16("rope." + table + "_y"), 2);
    args.inverse = true;
    reference::rope(args);
    expect_close("rope inverse", x, bf16("rope." + table + "_back"), 2);
  }
}

TEST_F(GoldenOps, AttentionCore) {
  const auto keys = bf16("core.keys"), q = bf16("core.q");
  const auto valid = u8("core.valid");
  const auto sink = f32("core.sink");
  std::vector<std::vector<float>> decoded(200, std::vector<float>(512));
  for (size_t i = 0; i < 200 * 512; ++i) decoded[i / 512][i % 512] = bf16_to_float(keys[i]);
  std::vector<uint16_t> o(q.size());
  std::vector<float> query(512);
  const float scale = static_cast<float>(std::pow(512.0, -0.5));
  for (size_t row = 0; row < 4; ++row) {
    std::vector<const float*> slots(200);
    for (size_t i = 0; i < 200; ++i) slots[i] = valid[row * 200 + i] != 0 ? decoded[i].data() : nullptr;
    for (size_t head = 0; head < 4; ++head) {
      const size_t at = (row * 4 + head) * 512;
      for (size_t i = 0; i < 512; ++i) query[i] = bf16_to_float(q[at + i]);
      reference::attend(query, slots, scale, sink[head], {o.data() + at, 512});
    }
  }
  expect_close("attention core", o, bf16("core.o"), 8);
}

TEST_F(GoldenOps, Router) {
  const auto z = f32("router.z"), bias = f32("router.bias"), score = f32("router.score");
  double worst = 0;
  for (size_t i = 0; i < z.size(); ++i) {
    const double want = static_cast<double>(score[i]);
    const double got = static_cast<double>(reference::router_score(z[i]));
    worst = std::max(worst, std::fabs(got - want) / std::max(std::fabs(want), 1e-30));
  }
  std::printf("  %-22s largest relative difference %.2e\n", "router score", worst);
  EXPECT_LE(worst, 1e-6);
  std::vector<int32_t> ids(12 * 6);
  std::vector<float> weights(12 * 6);
  reference::route({.step = {.rows = 12},
                    .experts = 384,
                    .top_k = 6,
                    .logits = z.data(),
                    .bias = bias.data(),
                    .ids = ids.data(),
                    .weights = weights.data()});
  EXPECT_EQ(ids, i32("router.ids"));
  expect_close("router weights", weights, f32("router.weights"), 1e-6);
}

TEST_F(GoldenOps, SwiGlu) {
  const auto gate = bf16("swiglu.gate"), up = bf16("swiglu.up");
  const auto weight = f32("swiglu.weight");
  std::vector<uint16_t> t(8 * 64);
  for (size_t i = 0; i < t.size(); ++i) t[i] = reference::swiglu(gate[i], up[i], weight[i / 64], 10.0F);
  expect_close("swiglu", t, bf16("swiglu.t"), 2);
}

TEST_F(GoldenOps, IndexScoresAndSelections) {
  const auto q = bf16("index.q"), k = bf16("index.k"), w = bf16("index.w"), want = bf16("index.score");
  const auto top = i32("index.top64"), blocks = i32("index.best20_blocks_of_8");
  std::vector<uint16_t> scores(4 * 300);
  for (size_t row = 0; row < 4; ++row) {
    std::vector<float> query(32 * 128), key(128), weight(32);
    for (size_t i = 0; i < query.size(); ++i) query[i] = bf16_to_float(q[row * query.size() + i]);
    for (size_t h = 0; h < 32; ++h) weight[h] = round_to_bf16(bf16_to_float(w[row * 32 + h]));
    std::vector<float> row_scores;
    for (size_t j = 0; j < 300; ++j) {
      for (size_t i = 0; i < 128; ++i) key[i] = bf16_to_float(k[j * 128 + i]);
      row_scores.push_back(reference::index_score(query, key, weight));
      scores[row * 300 + j] = float_to_bf16(row_scores.back());
    }
    const std::vector<int32_t> want_top(top.begin() + static_cast<std::ptrdiff_t>(row * 64),
                                        top.begin() + static_cast<std::ptrdiff_t>(row * 64 + 64));
    EXPECT_EQ(reference::select_best(row_scores, 64), want_top) << "row " << row;
    std::vector<int32_t> want_blocks(blocks.begin() + static_cast<std::ptrdiff_t>(row * 20),
                                     blocks.begin() + static_cast<std::ptrdiff_t>(row * 20 + 20));
    EXPECT_EQ(reference::candidate_blocks(row_scores, 8, 20), want_blocks) << "row " << row;
  }
  expect_close("index score", scores, want, 0);
}

}  // namespace
}  // namespace spark::engine
