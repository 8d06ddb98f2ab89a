#include "engine/forward/step_calls.h"

#include <gtest/gtest.h>

#include <random>

namespace spark::engine {
namespace {

std::vector<uint8_t> written(const StepCall& call) {
  ByteWriter out;
  write_call(out, call);
  return {out.bytes().begin(), out.bytes().end()};
}

std::vector<StepCall> every_call() {
  DraftRequest drawn{
      .sequence = 3, .anchor = 7, .position = 99, .filter = {.temperature = 0.7, .top_p = 0.9}};
  drawn.filter.top_k = 5;
  drawn.filter.min_p = 0.01;
  for (size_t i = 0; i < drawn.uniforms.size(); ++i) drawn.uniforms[i] = 0.25 + static_cast<double>(i) / 100;
  const DraftRequest greedy{.sequence = 4, .anchor = 8, .position = 100};
  return {StopCall{},
          OpenCall{5},
          StartCall{6, {1, 2, 3}, 2, 77},
          CloseCall{5},
          PrefetchCall{{4, 5}, 6},
          RunCall{{{.sequence = 1, .token = 2, .position = 3, .wants_logits = true},
                   {.sequence = 4, .token = 5, .position = 6, .wants_logits = false, .encoder_only = true}}},
          DraftCall{{drawn, greedy}}};
}

TEST(StepCalls, ComeBackAsTheyWere) {
  const auto calls = every_call();
  ASSERT_EQ(calls.size(), std::variant_size_v<StepCall>);
  for (const StepCall& call : calls) {
    const StepCall back = read_call(written(call));
    EXPECT_EQ(back.index(), call.index());
    EXPECT_EQ(written(back), written(call));
  }
  const auto run = std::get<RunCall>(read_call(written(calls[5])));
  ASSERT_EQ(run.rows.size(), 2U);
  EXPECT_EQ(run.rows[1].token, 5);
  EXPECT_TRUE(run.rows[0].wants_logits);
  EXPECT_TRUE(run.rows[1].encoder_only);
  const auto drafts = std::get<DraftCall>(read_call(written(calls[6])));
  EXPECT_EQ(drafts.requests[0].uniforms[63], 0.25 + 0.63);
  EXPECT_EQ(drafts.requests[0].filter.top_k, 5);
  EXPECT_EQ(drafts.requests[1].anchor, 8);
}

TEST(StepCalls, BrokenBytesAreAnError) {
  EXPECT_THROW(read_call({}), Error);
  const std::vector<uint8_t> unknown = {250};
  EXPECT_THROW(read_call(unknown), Error);
  std::mt19937 random(5);
  for (const StepCall& call : every_call()) {
    const std::vector<uint8_t> bytes = written(call);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_THROW(read_call(std::span(bytes).first(length)), Error);
    }
    std::vector<uint8_t> longer = bytes;
    longer.push_back(0);
    EXPECT_THROW(read_call(longer), Error);
    for (int i = 0; i < 200; ++i) {
      std::vector<uint8_t> changed = bytes;
      changed[random() % changed.size()] = static_cast<uint8_t>(random());
      try {
        read_call(changed);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace spark::engine
