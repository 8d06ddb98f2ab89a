#include "model/layer_plan.h"

#include <gtest/gtest.h>

#include "unit/model/published_config.h"

namespace spark::model {
namespace {

// "mode kv index" per layer, with marks for candidates (source *, user c), Engram (e) and drafter inputs (a).
std::string line(const LayerRole& role) {
  std::string text = std::string(name_of(role.mode)) + " r" + std::to_string(role.compress_ratio) + " " +
                     std::to_string(role.kv_source) + " " + std::to_string(role.index_source);
  if (role.is_candidate_source) text += " *";
  if (role.uses_candidates) text += " c";
  if (role.engram >= 0) text += " e" + std::to_string(role.engram);
  if (role.aux >= 0) text += " a" + std::to_string(role.aux);
  return text;
}

TEST(LayerPlan, MatchesThePublishedTable) {
  const LayerPlan plan = make_layer_plan(published_config());
  ASSERT_EQ(plan.layers.size(), 40u);
  ASSERT_EQ(plan.drafter.size(), 3u);
  const auto expect = [&](int layer, const std::string& text) {
    EXPECT_EQ(line(plan.layers[static_cast<size_t>(layer)]), text) << "layer " << layer;
  };
  expect(0, "window r0 -1 -1");
  expect(1, "window r0 -1 -1 e0");
  expect(2, "full r2 2 2");
  for (int l = 3; l <= 7; ++l) expect(l, "reuse r2 2 2");
  expect(8, "full r2 8 8");
  for (int l = 9; l <= 13; ++l) expect(l, "reuse r2 8 8");
  expect(14, "full r2 14 14 e1");
  for (int l = 15; l <= 19; ++l) expect(l, "reuse r2 14 14");
  expect(20, "full r1 20 20 *");
  for (int l = 21; l <= 23; ++l) expect(l, "reuse r1 20 20");
  for (int l = 24; l < 40; l += 4) {
    const std::string source = std::to_string(l);
    expect(l, "reindex r1 20 " + source + " c");
    for (int k = l + 1; k < l + 4; ++k) {
      expect(k, "reuse r1 20 " + source + (k >= 37 ? " a" + std::to_string(k - 37) : ""));
    }
  }
  for (const LayerRole& role : plan.drafter) EXPECT_EQ(line(role), "window r0 -1 -1");
}

TEST(LayerPlan, WithoutADrafterNothingIsKeptForIt) {
  Json json = published_nested();
  json["text_config"]["num_nextn_predict_layers"] = 0;
  Json& ratios = json["text_config"]["compress_ratios"];
  ratios.erase(ratios.end() - 3, ratios.end());
  const LayerPlan plan = make_layer_plan(read_model_config(json, "config"));
  EXPECT_TRUE(plan.drafter.empty());
  EXPECT_EQ(plan.layers[38].aux, -1);
}

}  // namespace
}  // namespace spark::model
