// Which operations share a launch: the CUDA backend holds some back until the next call shows whether it can
// take them along. Counted on the emulator; the bits are those of the separate kernels.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "cuda_emulation/recording.h"
#include "engine/kernels/cuda/plan/linear_plan.h"
#include "kernel_cases/cache_layout.h"
#include "kernel_cases/random.h"
#include "unit/cuda_kernels/emulated_backend.h"

namespace spark::engine {
namespace {

class SharedLaunches : public EmulatedBackend {};

// A step that is run a second time is recorded, and from then on replayed: with the arguments of the
// recording, on what its memory holds then.
TEST_F(SharedLaunches, ARecordedStepIsReplayed) {
  constexpr int32_t kOut = 64, kIn = 96, kRows = 3;
  const Weight weight = place(cases::random_weight(random_, WeightFormat::kFp8, kOut, kIn));
  uint16_t* const x = rows(kRows, kIn);
  const QuantisedRows q = {room<uint8_t>(kRows * kIn), room<uint8_t>(kRows * 3)};
  uint16_t* const y = room<uint16_t>(kRows * kOut);
  uint16_t* const other = room<uint16_t>(kRows * kOut);
  int issued = 0;
  const auto step = [&](uint16_t* out) {
    return [&, out] {
      ++issued;
      cuda_->quantise({.rows = kRows, .cols = kIn, .x = x, .out = q});
      cuda_->linear({.rows = kRows, .x_q = q, .weight = &weight, .y = out, .y_stride = kOut});
    };
  };
  const uint64_t alone = launches(step(other));
  for (int run = 0; run < 5; ++run) {
    const std::vector<uint16_t> values = cases::bf16_values(random_, kRows * kIn);
    cuda_->upload(x, values.data(), values.size() * sizeof(uint16_t));
    EXPECT_EQ(launches([&] { cuda_->run_recorded(7, step(y)); }), alone) << run;
    step(other)();
    EXPECT_EQ(read(y, kRows * kOut), read(other, kRows * kOut)) << run;
  }
  // Once alone, five times to compare, and in the recorded step's first two runs.
  EXPECT_EQ(issued, 1 + 5 + 2);
}

TEST_F(SharedLaunches, QuantiserRunsInsideTheProductOfFewRows) {
  constexpr int32_t kOut = 64, kIn = 96;
  const Weight weight = place(cases::random_weight(random_, WeightFormat::kFp8, kOut, kIn));
  for (const int32_t count : {1, cuda::kDirectRows, cuda::kDirectRows + 1, 16, 17}) {
    uint16_t* x = rows(count, kIn);
    const QuantisedRows q = {room<uint8_t>(static_cast<size_t>(count * kIn)),
                             room<uint8_t>(static_cast<size_t>(count * 3))};
    const QuantisedRows q2 = {room<uint8_t>(static_cast<size_t>(count * kIn)),
                              room<uint8_t>(static_cast<size_t>(count * 3))};
    uint16_t* y = room<uint16_t>(static_cast<size_t>(count * kOut));
    uint16_t* y2 = room<uint16_t>(static_cast<size_t>(count * kOut));
    const auto product = [&](const QuantisedRows& in, uint16_t* out) {
      cuda_->linear({.rows = count, .x_q = in, .weight = &weight, .y = out, .y_stride = kOut});
    };
    EXPECT_EQ(launches([&] {
                cuda_->quantise({.rows = count, .cols = kIn, .x = x, .out = q});
                product(q, y);
              }),
              count <= cuda::kDirectRows ? 1U : 2U);
    // A transfer launches what waits.
    EXPECT_EQ(launches([&] {
                cuda_->quantise({.rows = count, .cols = kIn, .x = x, .out = q2});
                read(q2.codes, 1);
                product(q2, y2);
              }),
              2U);
    EXPECT_EQ(read(q.codes, static_cast<size_t>(count * kIn)),
              read(q2.codes, static_cast<size_t>(count * kIn)));
    EXPECT_EQ(read(q.scales, static_cast<size_t>(count * 3)),
              read(q2.scales, static_cast<size_t>(count * 3)));
    EXPECT_EQ(read(y, static_cast<size_t>(count * kOut)), read(y2, static_cast<size_t>(count * kOut)));
  }
}

TEST_F(SharedLaunches, AQuantiserOfOtherRowsStaysAlone) {
  const Weight weight = place(cases::random_weight(random_, WeightFormat::kFp8, 32, 64));
  uint16_t* x = rows(4, 64);
  const QuantisedRows q = {room<uint8_t>(256), room<uint8_t>(8)},
                      other = {room<uint8_t>(256), room<uint8_t>(8)};
  uint16_t* y = room<uint16_t>(128);
  EXPECT_EQ(launches([&] {
              cuda_->quantise({.rows = 4, .cols = 64, .x = x, .out = q});
              cuda_->linear({.rows = 4, .x_q = other, .weight = &weight, .y = y, .y_stride = 32});
            }),
            2U);
}

TEST_F(SharedLaunches, TwoNormsOfTheSameRows) {
  constexpr int32_t kRows = 5;
  uint16_t* a = rows(kRows, 64);
  uint16_t* b = rows(kRows, 96);
  uint16_t* weight = make(cases::norm_weights(random_, 96));
  uint16_t* y = room<uint16_t>(kRows * 64);
  uint16_t* z = room<uint16_t>(kRows * 96);
  const auto norm = [&](int32_t count, int32_t cols, const uint16_t* x, uint16_t* out) {
    cuda_->rms_norm({.rows = count, .cols = cols, .x = x, .x_stride = cols, .weight = weight, .y = out});
  };
  EXPECT_EQ(launches([&] { norm(kRows, 64, a, y), norm(kRows, 96, b, z); }), 1U);
  EXPECT_EQ(launches([&] { norm(kRows, 64, a, y), norm(kRows - 1, 96, b, z); }), 2U) << "other rows";
  EXPECT_EQ(launches([&] { norm(kRows, 64, a, y), norm(kRows, 64, y, a); }), 2U) << "the first one's output";
  EXPECT_EQ(launches([&] { norm(kRows, 64, a, y); }), 1U);
}

TEST_F(SharedLaunches, RotationAndWindowWrite) {
  constexpr int32_t kRows = 3, kWidth = 64, kPairs = 8;
  const StepRows step = steps(kRows);
  uint16_t* q = rows(kRows, 2 * kWidth);
  uint16_t* kv = rows(kRows, kWidth);
  float* angles = make(cases::random_angles(random_, kRows, kPairs));
  const int32_t record = window_record_bytes(kWidth);
  const PagedCache cache = {room<uint8_t>(static_cast<size_t>(kRows * 256 * record)),
                            make(std::vector<int32_t>{0, 1, 2}), 1, 256, record};
  const auto rotate = [&](uint16_t* x) {
    cuda_->rope({.rows = kRows,
                 .heads = x == q ? 2 : 1,
                 .width = kWidth,
                 .pairs = kPairs,
                 .cos_sin = angles,
                 .x = x});
  };
  const auto write = [&] {
    cuda_->window_write(
        {.step = step, .width = kWidth, .pairs = kPairs, .cos_sin = angles, .kv = kv, .cache = cache});
  };
  EXPECT_EQ(launches([&] { rotate(q), write(); }), 1U);
  EXPECT_EQ(launches([&] { rotate(kv), write(); }), 2U) << "the write reads what is rotated";
  EXPECT_EQ(launches([&] { write(); }), 1U);
}

// A query's way: two norms, the product of the first, the rotation of its output, the second one's window
// records.
TEST_F(SharedLaunches, NormsAndWhatFollowsTheProductOfFewRows) {
  constexpr int32_t kWidth = 64, kPairs = 8, kRank = 96, kOut = 2 * kWidth;
  const Weight weight = place(cases::random_weight(random_, WeightFormat::kFp8, kOut, kRank));
  uint16_t* norm_weight = make(cases::norm_weights(random_, kRank));
  for (const int32_t count : {1, 5, cuda::kDirectRows, cuda::kDirectRows + 1}) {
    const auto n = static_cast<size_t>(count);
    const StepRows step = steps(count);
    uint16_t* x = rows(count, kRank + kWidth);
    float* angles = make(cases::f32_values(random_, n * kPairs * 2));
    const size_t record = static_cast<size_t>(window_record_bytes(kWidth));
    struct Outputs {
      QuantisedRows q;
      uint16_t *kv, *y;
      uint8_t* records;
    };
    const auto run = [&](bool apart) {
      const Outputs out = {{room<uint8_t>(n * kRank), room<uint8_t>(n * kRank / 32)},
                           room<uint16_t>(n * kWidth),
                           room<uint16_t>(n * kOut),
                           room<uint8_t>(n * record)};
      const auto part = [&] {
        if (apart) read(out.q.codes, 1);  // a transfer launches what waits
      };
      cuda_->rms_norm({.rows = count,
                       .cols = kRank,
                       .x = x,
                       .x_stride = kRank + kWidth,
                       .weight = norm_weight,
                       .y_q = out.q});
      part();
      cuda_->rms_norm({.rows = count,
                       .cols = kWidth,
                       .x = x + kRank,
                       .x_stride = kRank + kWidth,
                       .weight = norm_weight,
                       .y = out.kv});
      part();
      cuda_->linear({.rows = count, .x_q = out.q, .weight = &weight, .y = out.y, .y_stride = kOut});
      part();
      cuda_->rope(
          {.rows = count, .heads = 2, .width = kWidth, .pairs = kPairs, .cos_sin = angles, .x = out.y});
      part();
      cuda_->window_write({.step = step,
                           .width = kWidth,
                           .pairs = kPairs,
                           .cos_sin = angles,
                           .kv = out.kv,
                           .records = out.records});
      return out;
    };
    Outputs together = {}, apart = {};
    EXPECT_EQ(launches([&] { together = run(false); }), count <= cuda::kDirectRows ? 1U : 3U) << count;
    EXPECT_EQ(launches([&] { apart = run(true); }), 5U);
    EXPECT_EQ(read(together.q.codes, n * kRank), read(apart.q.codes, n * kRank));
    EXPECT_EQ(read(together.q.scales, n * kRank / 32), read(apart.q.scales, n * kRank / 32));
    EXPECT_EQ(read(together.kv, n * kWidth), read(apart.kv, n * kWidth));
    EXPECT_EQ(read(together.y, n * kOut), read(apart.y, n * kOut));
    EXPECT_EQ(read(together.records, n * record), read(apart.records, n * record));
  }
}

TEST_F(SharedLaunches, ExpansionAndCollapse) {
  constexpr int32_t kRows = 4, kHidden = 64, kStreams = 4;
  uint16_t* h = rows(kRows, kStreams * kHidden);
  uint16_t* y = rows(kRows, kHidden);
  const auto floats = [&](size_t count) { return make(cases::f32_values(random_, count)); };
  float *post = floats(kRows * 4), *comb = floats(kRows * 16), *pre = floats(kRows * 4);
  uint16_t* norm = make(cases::norm_weights(random_, kHidden));
  uint16_t* x = room<uint16_t>(kRows * kHidden);
  uint16_t* other = rows(kRows, kStreams * kHidden);
  const auto expand = [&] {
    cuda_->mhc_expand(
        {.rows = kRows, .streams = kStreams, .hidden = kHidden, .y = y, .post = post, .comb = comb, .h = h});
  };
  const auto collapse = [&](const uint16_t* from) {
    cuda_->mhc_collapse({.rows = kRows,
                         .streams = kStreams,
                         .hidden = kHidden,
                         .h = from,
                         .pre = pre,
                         .norm_weight = norm,
                         .x = x});
  };
  EXPECT_EQ(launches([&] { expand(), collapse(h); }), 1U);
  EXPECT_EQ(launches([&] { expand(), collapse(other); }), 2U) << "other streams";
  EXPECT_EQ(launches([&] { expand(); }), 1U);
}

// A row in one block, or in a cluster of them: the same bits.
TEST_F(SharedLaunches, ExpansionAndCollapseOfOneRowByManyBlocks) {
  constexpr int32_t kMost = cuda::kDirectRows + 1, kHidden = 1280, kStreams = 4;
  constexpr size_t kN = static_cast<size_t>(kMost) * kHidden;
  const std::vector<uint16_t> old = cases::bf16_values(random_, kN * kStreams);
  uint16_t* y = rows(kMost, kHidden);
  const auto floats = [&](size_t count) { return make(cases::f32_values(random_, count)); };
  float *post = floats(kMost * 4), *comb = floats(kMost * 16), *pre = floats(kMost * 4);
  uint16_t* norm = make(cases::norm_weights(random_, kHidden));
  for (const int32_t count : {1, 6, kMost}) {
    struct Outputs {
      uint16_t *h, *x;
      QuantisedRows q;
    };
    const auto run = [&](bool apart) {
      const Outputs out = {make(old), room<uint16_t>(kN), {room<uint8_t>(kN), room<uint8_t>(kN / 32)}};
      cuda_->mhc_expand({.rows = count,
                         .streams = kStreams,
                         .hidden = kHidden,
                         .y = y,
                         .post = post,
                         .comb = comb,
                         .h = out.h});
      if (apart) read(out.h, 1);
      cuda_->mhc_collapse({.rows = count,
                           .streams = kStreams,
                           .hidden = kHidden,
                           .h = out.h,
                           .pre = pre,
                           .norm_weight = norm,
                           .x = out.x,
                           .x_q = out.q});
      return out;
    };
    Outputs together = {}, apart = {};
    EXPECT_EQ(launches([&] { together = run(false); }), 1U);
    EXPECT_EQ(launches([&] { apart = run(true); }), 2U);
    const auto n = static_cast<size_t>(count) * kHidden;
    EXPECT_EQ(read(together.h, kN * kStreams), read(apart.h, kN * kStreams)) << count;
    EXPECT_EQ(read(together.x, n), read(apart.x, n)) << count;
    EXPECT_EQ(read(together.q.codes, n), read(apart.q.codes, n)) << count;
    EXPECT_EQ(read(together.q.scales, n / 32), read(apart.q.scales, n / 32)) << count;
  }
}

// Blocks of three row tiles, where two would make more blocks than there are multiprocessors: the bits of the
// product that follows its quantiser.
TEST_F(SharedLaunches, AQuantiserInsideBlocksOfThreeTiles) {
  constexpr int32_t kRows = 3, kCols = 2048, kOut = 4288;
  const Weight weight = place(cases::random_weight(random_, WeightFormat::kFp8, kOut, kCols));
  const cuda::LinearShape shape = {.rows = kOut, .cols = kCols, .activation_bytes = 1};
  ASSERT_EQ(cuda::plan_direct_rows(shape, cuda::split_linear(shape), kRows, {})->warps,
            cuda::kMoreDirectWarps);
  uint16_t* x = rows(kRows, kCols);
  const auto run = [&](bool apart) {
    const QuantisedRows q = {room<uint8_t>(kRows * kCols), room<uint8_t>(kRows * kCols / 32)};
    auto* y = room<uint16_t>(kRows * kOut);
    cuda_->quantise({.rows = kRows, .cols = kCols, .x = x, .out = q});
    if (apart) read(q.codes, 1);
    cuda_->linear({.rows = kRows, .x_q = q, .weight = &weight, .y = y, .y_stride = kOut});
    return std::pair{read(q.codes, kRows * kCols), read(y, kRows * kOut)};
  };
  EXPECT_EQ(run(false), run(true));
}

// Few rows: coefficients that are asked for between expansion and collapse are made later, from the same
// streams.
TEST_F(SharedLaunches, LateCoefficients) {
  constexpr int32_t kRows = 3, kHidden = 64, kStreams = 4;
  const std::vector<uint16_t> old = cases::bf16_values(random_, kRows * kStreams * kHidden);
  const Weight fn = place(cases::random_weight(random_, WeightFormat::kF32, 24, kStreams * kHidden));
  const float* scale = make(std::vector<float>(3, 0.1F));
  const float* base = make(std::vector<float>(24, 0.1F));
  uint16_t* y = rows(kRows, kHidden);
  const auto floats = [&](size_t count) { return make(cases::f32_values(random_, count)); };
  float *old_post = floats(kRows * 4), *old_comb = floats(kRows * 16), *old_pre = floats(kRows * 4);
  uint16_t* norm = make(cases::norm_weights(random_, kHidden));
  const auto run = [&](bool apart) {
    uint16_t* h = make(old);
    auto *pre = room<float>(kRows * 4), *post = room<float>(kRows * 4), *comb = room<float>(kRows * 16);
    auto *x = room<uint16_t>(kRows * kHidden), *last = room<uint16_t>(kRows * kHidden);
    const auto expand = [&](const float* by_post, const float* by_comb) {
      cuda_->mhc_expand({.rows = kRows,
                         .streams = kStreams,
                         .hidden = kHidden,
                         .y = y,
                         .post = by_post,
                         .comb = by_comb,
                         .h = h});
    };
    const auto collapse = [&](const float* by, uint16_t* to) {
      cuda_->mhc_collapse({.rows = kRows,
                           .streams = kStreams,
                           .hidden = kHidden,
                           .h = h,
                           .pre = by,
                           .norm_weight = norm,
                           .x = to});
    };
    expand(old_post, old_comb);
    if (apart) read(h, 1);
    cuda_->mhc_mix({.rows = kRows,
                    .streams = kStreams,
                    .hidden = kHidden,
                    .iterations = 2,
                    .h = h,
                    .fn = &fn,
                    .scale = scale,
                    .base = base,
                    .pre = pre,
                    .post = post,
                    .comb = comb});
    if (apart) read(pre, 1);
    collapse(old_pre, x);
    expand(post, comb);  // with what was to be made
    collapse(pre, last);
    return std::tuple{read(h, kRows * kStreams * kHidden), read(x, kRows * kHidden),
                      read(last, kRows * kHidden), read(pre, kRows * 4), read(comb, kRows * 16)};
  };
  EXPECT_EQ(run(false), run(true));
}

// In a recorded step a fork forgets what its stream ran before, but only if the main chain has waited for
// that, and only for few rows.
TEST_F(SharedLaunches, AForkOfFewRowsHasOnePredecessor) {
  constexpr int32_t kMost = 12, kHidden = 64, kStreams = 4;
  uint16_t* h = rows(kMost, kStreams * kHidden);
  const Weight fn = place(cases::random_weight(random_, WeightFormat::kF32, 24, kStreams * kHidden));
  const float* scale = make(std::vector<float>(3, 0.1F));
  const float* base = make(std::vector<float>(24, 0.1F));
  auto *pre = room<float>(kMost * 4), *post = room<float>(kMost * 4), *comb = room<float>(kMost * 16);
  uint16_t* norm = make(cases::norm_weights(random_, kHidden));
  uint16_t* x = room<uint16_t>(kMost * kHidden);
  const auto mix = [&](int32_t count) {
    cuda_->mhc_mix({.rows = count,
                    .streams = kStreams,
                    .hidden = kHidden,
                    .iterations = 2,
                    .h = h,
                    .fn = &fn,
                    .scale = scale,
                    .base = base,
                    .pre = pre,
                    .post = post,
                    .comb = comb});
  };
  const auto collapse = [&] {  // waits for the coefficients
    cuda_->mhc_collapse(
        {.rows = 1, .streams = kStreams, .hidden = kHidden, .h = h, .pre = pre, .norm_weight = norm, .x = x});
  };
  emulation::Recording& recording = emulation::recording();
  const auto dropped = [&](const std::function<void()>& work) {
    cuda_->synchronise();
    collapse();
    recording = {.on = true};
    work();
    cuda_->synchronise();
    return std::exchange(recording, {}).dropped;
  };
  EXPECT_EQ(dropped([&] { mix(4), collapse(), mix(4); }), 2U);
  EXPECT_EQ(dropped([&] { mix(4), mix(4); }), 1U) << "nobody has waited for the first";
  EXPECT_EQ(dropped([&] { mix(kMost), collapse(), mix(kMost); }), 0U) << "many rows";
}

}  // namespace
}  // namespace spark::engine
