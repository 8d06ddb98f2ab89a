#include "model/cost.h"

#include <gtest/gtest.h>

#include "unit/model/published_config.h"

namespace spark::model {
namespace {

constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;
constexpr int64_t k128 = 131072;

TEST(CacheCost, ReproducesThePublishedRecords) {
  const CacheCost cost = cache_cost(published_config());
  EXPECT_EQ(cost.window_record, 528);
  EXPECT_EQ(cost.main_record, 288);
  EXPECT_EQ(cost.index_record, 68);
  EXPECT_EQ(cost.growth_per_token, 890);
  EXPECT_EQ(cost.fixed_per_sequence, 43 * 128 * 528 + 3 * 4096);
}

TEST(ExpectedExperts, MatchesThePublishedFigures) {
  EXPECT_NEAR(expected_experts(384, 6, 1), 6, 1e-9);
  EXPECT_NEAR(expected_experts(384, 6, 6), 34.6, 0.05);
  EXPECT_NEAR(expected_experts(384, 6, 48), 203.7, 0.05);
  EXPECT_NEAR(expected_experts(128, 3, 5), 14.3, 0.05);
  EXPECT_NEAR(expected_experts(128, 3, 40), 78.4, 0.05);
}

TEST(CostModel, ReproducesTheBytesPerLayer) {
  const ModelConfig config = published_config();
  const CostModel cost(config, split_for(config, 1));
  struct Row {
    int64_t layer, streams, rows_per_stream;
    double replicated, split, routed, kv, index_keys, total;
  };
  for (const Row& row :
       {Row{0, 1, 1, 17.1, 153.0, 113, 0.07, 0, 283}, Row{0, 1, 6, 17.1, 153.0, 651, 0.07, 0, 821},
        Row{0, 8, 6, 17.1, 153.0, 3829, 0.54, 0, 4000}, Row{1, 1, 1, 17.1, 310.5, 113, 0.07, 0, 440},
        Row{2, 1, 1, 33.3, 153.0, 113, 0.22, 4.5, 304}, Row{8, 1, 6, 33.3, 153.0, 651, 0.95, 4.5, 843},
        Row{8, 8, 6, 33.3, 153.0, 3829, 7.62, 35.7, 4059}, Row{14, 8, 6, 33.3, 310.5, 3829, 7.62, 35.7, 4216},
        Row{21, 8, 6, 17.1, 153.0, 3829, 7.62, 0, 4007}, Row{20, 1, 6, 28.0, 153.0, 651, 0.95, 8.9, 842},
        Row{20, 8, 6, 28.0, 153.0, 3829, 7.62, 71.3, 4089}, Row{24, 1, 1, 22.7, 153.0, 113, 0.22, 1.1, 290},
        Row{36, 8, 6, 22.7, 153.0, 3829, 7.62, 53.5, 4066}}) {
    const LayerBytes bytes = cost.layer(
        row.layer, {.streams = row.streams, .rows_per_stream = row.rows_per_stream, .context = k128});
    EXPECT_NEAR(bytes.replicated / kMega, row.replicated, 0.1) << row.layer;
    EXPECT_NEAR(bytes.split / kMega, row.split, 0.1) << row.layer;
    EXPECT_NEAR(bytes.routed / kMega, row.routed, 0.51) << row.layer;
    EXPECT_NEAR(bytes.kv / kMega, row.kv, 0.0051) << row.layer;
    EXPECT_NEAR(bytes.index_keys / kMega, row.index_keys, 0.051) << row.layer;
    EXPECT_NEAR(bytes.total() / kMega, row.total, 0.51) << row.layer;
  }
}

TEST(CostModel, ReproducesTheStepFloors) {
  const ModelConfig config = published_config();
  struct Row {
    int64_t streams, rows_per_stream, ranks;
    double target, draft;
  };
  for (const Row& row : {Row{1, 1, 1, 12.72, 0}, Row{1, 1, 2, 6.75, 0}, Row{1, 1, 3, 4.96, 0},
                         Row{1, 1, 4, 3.77, 0}, Row{1, 6, 1, 34.30, 2.71}, Row{1, 6, 2, 17.57, 1.42},
                         Row{1, 6, 3, 12.18, 0.99}, Row{1, 6, 4, 9.20, 0.77}, Row{8, 6, 1, 161.92, 6.33},
                         Row{8, 6, 2, 81.62, 3.23}, Row{8, 6, 3, 55.04, 2.19}, Row{8, 6, 4, 41.46, 1.68}}) {
    const RankSplit split = split_for(config, row.ranks);
    const StepBytes bytes =
        CostModel(config, split)
            .step({.streams = row.streams, .rows_per_stream = row.rows_per_stream, .context = 32768});
    EXPECT_NEAR(bytes.target / kGiga, row.target, 0.006) << row.ranks;
    if (row.draft == 0) continue;
    // The published column keeps a full copy of the main projection on every rank and leaves the padding of
    // the drafter's attention out.
    const double main_bytes = 5120.0 * 15360 + 160.0 * 480;
    const double main_elsewhere = main_bytes * (1 - static_cast<double>(split.main_output) / 5120);
    const double padding = row.ranks == 3 ? 3 * (41984000.0 * 2 + 33587200.0) / 24 : 0;
    // It cuts the Markov head, of which every rank has all here, and which each of the five drafts reads.
    const double markov_bytes = 129280.0 * 256 * 2;
    const double markov_extra = 5 * markov_bytes * (1 - static_cast<double>(split.vocabulary) / 129280);
    EXPECT_NEAR((bytes.draft + main_elsewhere - padding - markov_extra) / kGiga, row.draft, 0.0051)
        << row.ranks;
  }
}

TEST(LayerFlops, ReproduceThePublishedTable) {
  const ModelConfig config = published_config();
  const LayerPlan plan = make_layer_plan(config);
  const auto at = [&](size_t layer, int64_t context) {
    return layer_flops(config, plan.layers[layer], context);
  };
  EXPECT_NEAR(at(3, k128).total() / kMega, 839, 0.51);
  EXPECT_NEAR(at(0, k128).total() / kMega, 772, 0.51);
  EXPECT_NEAR(at(1, k128).total() / kMega, 1086, 0.51);
  EXPECT_NEAR(at(2, k128).total() / kMega, 1397, 0.51);
  EXPECT_NEAR(at(2, k128).index_scores / kMega, 537, 0.51);
  EXPECT_NEAR(at(14, k128).total() / kMega, 1712, 0.51);
  EXPECT_NEAR(at(20, k128).total() / kMega, 1929, 0.51);
  EXPECT_NEAR(at(24, k128).total() / kMega, 984, 0.51);
  LayerFlops sum;
  double totals[3] = {};
  double scores[3] = {};
  const int64_t contexts[3] = {4096, k128, 1048576};
  for (size_t layer = 0; layer < 40; ++layer) {
    for (int i = 0; i < 3; ++i) {
      totals[i] += at(layer, contexts[i]).total();
      scores[i] += at(layer, contexts[i]).index_scores;
    }
    const LayerFlops flops = at(layer, k128);
    sum.projections += flops.projections;
    sum.core += flops.core;
    sum.experts += flops.experts;
    sum.router += flops.router;
    sum.streams += flops.streams;
    sum.compressor += flops.compressor;
    sum.index_queries += flops.index_queries;
    sum.engram += flops.engram;
  }
  EXPECT_NEAR(sum.projections / kGiga, 10.13, 0.0051);
  EXPECT_NEAR(sum.core / kGiga, 3.22, 0.0051);
  EXPECT_NEAR(sum.experts / kGiga, 19.82, 0.0051);
  EXPECT_NEAR(sum.router / kGiga, 0.16, 0.0051);
  EXPECT_NEAR(sum.streams / kGiga, 0.10, 0.0051);
  EXPECT_NEAR(sum.compressor / kGiga, 0.04, 0.0051);
  EXPECT_NEAR(sum.index_queries / kGiga, 0.09, 0.0051);
  EXPECT_NEAR(sum.engram / kGiga, 0.63, 0.0051);
  EXPECT_NEAR(head_flops(config) / kGiga, 1.32, 0.0051);
  EXPECT_NEAR(scores[0] / kGiga, 0.22, 0.0051);
  EXPECT_NEAR(scores[1] / kGiga, 3.22, 0.0051);
  EXPECT_NEAR(scores[2] / kGiga, 22.0, 0.051);
  EXPECT_NEAR((totals[0] + head_flops(config)) / kGiga, 35.7, 0.051);
  EXPECT_NEAR((totals[1] + head_flops(config)) / kGiga, 38.7, 0.051);
  EXPECT_NEAR((totals[2] + head_flops(config)) / kGiga, 57.5, 0.051);
  EXPECT_NEAR(drafter_row_flops(config) / kGiga, 1.67, 0.0051);
}

}  // namespace
}  // namespace spark::model
