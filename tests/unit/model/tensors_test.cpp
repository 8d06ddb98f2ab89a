#include "model/tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "unit/model/published_config.h"

namespace spark::model {
namespace {

const std::vector<TensorEntry>& published() {
  static const std::vector<TensorEntry> tensors = tensor_catalogue(published_config());
  return tensors;
}

TEST(TensorCatalogue, ReproducesThePublishedTotals) {
  int64_t bytes = 0;
  std::set<std::string> names;
  for (const TensorEntry& tensor : published()) {
    bytes += tensor.bytes();
    names.insert(tensor.name);
  }
  EXPECT_EQ(published().size(), 96085u);
  EXPECT_EQ(names.size(), 96085u);
  EXPECT_EQ(bytes, 510286023000);
}

TEST(TensorCatalogue, ReproducesTheComponentTable) {
  const std::map<Component, std::pair<int64_t, int64_t>> expected = {
      {Component::kEmbedding, {1, 1323827200}},
      {Component::kHead, {1, 1323827200}},
      {Component::kFinalNorm, {1, 10240}},
      {Component::kAttention, {560, 5070131200}},
      {Component::kCompressor, {11, 36704256}},
      {Component::kIndexer, {32, 45130752}},
      {Component::kStreams, {240, 157295040}},
      {Component::kRouter, {160, 157818880}},
      {Component::kSharedExpert, {240, 1416960000}},
      {Component::kRoutedExperts, {92160, 288777830400}},
      {Component::kEngramProjection, {8, 315043840}},
      {Component::kEngramTable, {4, 202758032400}},
      {Component::kDrafterAttention, {42, 380259840}},
      {Component::kDrafterStreams, {18, 11797128}},
      {Component::kDrafterRouter, {12, 3965952}},
      {Component::kDrafterSharedExpert, {18, 106272000}},
      {Component::kDrafterRoutedExperts, {2304, 7219445760}},
      {Component::kDrafterHeads, {7, 211133952}},
      {Component::kVision, {266, 970536960}}};
  const auto totals = component_totals(published());
  ASSERT_EQ(totals.size(), expected.size());
  for (const ComponentTotal& total : totals) {
    EXPECT_EQ(total.tensors, expected.at(total.component).first) << name_of(total.component);
    EXPECT_EQ(total.bytes, expected.at(total.component).second) << name_of(total.component);
  }
}

TEST(TensorCatalogue, ReproducesTheTableByDtype) {
  std::map<Dtype, std::pair<int64_t, int64_t>> seen;
  for (const TensorEntry& tensor : published()) {
    seen[tensor.dtype].first += 1;
    seen[tensor.dtype].second += tensor.bytes();
  }
  const std::map<Dtype, std::pair<int64_t, int64_t>> expected = {{Dtype::kI8, {47232, 278585671680}},
                                                                 {Dtype::kF8E4m3, {357, 204015223296}},
                                                                 {Dtype::kF8E8m0, {47589, 23563015184}},
                                                                 {Dtype::kBf16, {520, 3952883712}},
                                                                 {Dtype::kF32, {387, 169229128}}};
  EXPECT_EQ(seen, expected);
}

TEST(TensorCatalogue, ReproducesTheParameterCounts) {
  int64_t backbone = 0, tables = 0, drafter = 0, vision = 0;
  for (const ComponentTotal& total : component_totals(published())) {
    if (total.component == Component::kEngramTable)
      tables += total.parameters;
    else if (total.component == Component::kVision)
      vision += total.parameters;
    else if (total.component >= Component::kDrafterAttention)
      drafter += total.parameters;
    else
      backbone += total.parameters;
  }
  EXPECT_EQ(backbone, 551880835184);
  EXPECT_EQ(tables, 196613849600);
  EXPECT_EQ(drafter, 14225362530);
  EXPECT_EQ(vision, 485268480);
}

TEST(TensorCatalogue, GivesTheDocumentedShapes) {
  std::map<std::string, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : published()) by_name[tensor.name] = &tensor;
  const auto expect = [&](const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
    ASSERT_TRUE(by_name.count(name)) << name;
    EXPECT_EQ(by_name[name]->dtype, dtype) << name;
    EXPECT_EQ(by_name[name]->shape, shape) << name;
  };
  expect("layers.0.attn.wq_b.scale", Dtype::kF8E8m0, {1024, 40});
  expect("layers.3.attn.wo_a.weight", Dtype::kF8E4m3, {8192, 4096});
  expect("mtp.2.attn.attn_sink", Dtype::kF32, {64});
  expect("layers.39.hc_ffn_fn", Dtype::kF32, {24, 20480});
  expect("layers.7.ffn.experts.383.w2.weight", Dtype::kI8, {5120, 1152});
  expect("mtp.1.ffn.experts.127.w2.scale", Dtype::kF8E8m0, {5120, 72});
  expect("layers.14.attn.compressor.wgate.weight", Dtype::kBf16, {512, 5120});
  expect("layers.20.attn.indexer.wk.weight", Dtype::kBf16, {128, 512});
  expect("layers.36.attn.indexer.wq_b.weight", Dtype::kF8E4m3, {4096, 1280});
  expect("layers.14.engram.embed.scale", Dtype::kF8E8m0, {384016682, 8});
  expect("layers.1.engram.wkv.scale", Dtype::kF8E8m0, {800, 192});
  expect("mtp.0.main_proj.scale", Dtype::kF8E8m0, {160, 480});
  expect("mtp.2.confidence_head.proj.weight", Dtype::kBf16, {1, 5376});
  expect("vision.blocks.31.mlp.w1.weight", Dtype::kBf16, {5632, 1024});
  expect("aligner.w1.weight", Dtype::kBf16, {5120, 9216});
  EXPECT_FALSE(by_name.count("layers.20.attn.compressor.wgate.weight"));
  EXPECT_FALSE(by_name.count("layers.24.attn.indexer.wk.weight"));
}

TEST(TensorCatalogue, TextOnlyCheckpointsMayLackImageTensors) {
  Json json = published_nested();
  json.erase("vision_config");
  int64_t optional = 0;
  for (const TensorEntry& tensor : tensor_catalogue(read_model_config(json, "config"))) {
    if (!tensor.required) ++optional;
    EXPECT_EQ(tensor.name.rfind("vision.", 0), std::string::npos);
  }
  EXPECT_EQ(optional, 43 + 3);
}

}  // namespace
}  // namespace spark::model
