// A prompt with a span of injected embeddings: image routing bias, closed Engram gates, dead n-grams.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

class Gates : public Observer {
 public:
  explicit Gates(Backend& backend) : backend_(backend) {}
  void tensor(const ObservedTensor& t) override {
    if (!t.name.ends_with("engram_gate") && t.name != "layers.8.h") return;
    const size_t element = t.type == ObservedType::kBf16 ? 2 : 4;
    std::vector<uint8_t>& bytes = found[t.name];
    bytes.resize(static_cast<size_t>(t.rows * t.cols) * element);
    backend_.download(bytes.data(), t.data, bytes.size());
  }
  std::map<std::string, std::vector<uint8_t>> found;

 private:
  Backend& backend_;
};

class GoldenImageSpan : public testing::TestWithParam<std::string> {};

TEST_P(GoldenImageSpan, LogitsGatesHashesAndGreedyIds) {
  const std::string folder = golden::full_set();
  if (folder.empty()) GTEST_SKIP() << "the full golden set is not here (SPARK_GOLDEN_DIR)";
  const golden::GoldenFile file(folder + "/image-span.safetensors");
  const Json facts = parse_json(read_file(folder + "/image-span.json"), "image-span.json");
  const auto model = golden::load(folder + "/tiny-checkpoint", GetParam());
  const auto prompt = file.get<int32_t>("prompt");
  const auto is_image = file.get<uint8_t>("is_image");
  const auto embeddings = file.get<uint16_t>("image_embeddings");

  std::vector<StepRow> rows;
  std::vector<int32_t> injected;
  int32_t next = 0;
  for (size_t t = 0; t < prompt.size(); ++t) {
    rows.push_back(
        {.sequence = 0, .token = prompt[t], .position = static_cast<int32_t>(t), .wants_logits = true});
    injected.push_back(is_image[t] != 0 ? next++ : -1);
  }
  Gates gates(model->backend());
  model->open_sequence(0);
  model->set_observer(&gates);
  const auto logits = model->run(rows, {.row = injected, .embeddings = embeddings});
  model->set_observer(nullptr);

  const auto want_ids = file.get<int64_t>("engram_ids");
  std::vector<int64_t> ids(6);
  for (size_t t = 0; t < prompt.size(); ++t) {
    for (size_t table = 0; table < 2; ++table) {
      model->engram().row_ids(static_cast<int64_t>(table),
                              {.sequence = 0, .position = static_cast<int32_t>(t)}, ids);
      if (is_image[t] != 0) continue;  // gate 0: whatever an image row reads has no effect
      const auto begin = want_ids.begin() + static_cast<std::ptrdiff_t>((t * 2 + table) * 6);
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), begin)) << "row " << t << " table " << table;
    }
  }
  const auto want_rows = file.get<int32_t>("logit_rows");
  const auto want = file.get<float>("logits");
  std::vector<double> distance;
  for (size_t i = 0; i < want_rows.size(); ++i) {
    distance.push_back(golden::relative_l2(logits.data() + static_cast<size_t>(want_rows[i]) * 640,
                                           want.data() + i * 640, 640));
  }
  const Json& noise = facts.at("noise").at("logits_rel_l2");
  const double median_limit = 1.4 * noise.at("worst_order_median").get<double>() + 0.004;
  const double row_limit = 2 * noise.at("max").get<double>();
  std::sort(distance.begin(), distance.end());
  std::printf("  %-10s image span logits: median %.2e (limit %.4f), worst row %.2e (limit %.4f)\n",
              GetParam().c_str(), distance[distance.size() / 2], median_limit, distance.back(), row_limit);
  EXPECT_LE(distance[distance.size() / 2], median_limit);
  EXPECT_LE(distance.back(), row_limit);
  for (const std::string layer : {"layers.1", "layers.4"}) {
    const auto want_gates = file.get<float>(layer + ".engram_gate");
    const auto& bytes = gates.found.at(layer + ".engram_gate");
    std::vector<float> got(want_gates.size());
    std::memcpy(got.data(), bytes.data(), bytes.size());
    const double worst = golden::largest_difference(got, want_gates);
    std::printf("  %-10s %s gates: largest difference %.2e\n", GetParam().c_str(), layer.c_str(), worst);
    EXPECT_LE(worst, 0.1) << layer;
    for (size_t t = 0; t < prompt.size(); ++t) {
      if (is_image[t] != 0) {
        EXPECT_EQ(got[t * 4], 0.0F) << layer;
      }
    }
  }

  const auto greedy = file.get<int32_t>("greedy");
  std::vector<int32_t> got = {golden::argmax({logits.end() - 640, logits.end()})};
  while (got.size() < greedy.size()) {
    const int32_t position = static_cast<int32_t>(prompt.size() + got.size()) - 1;
    got.push_back(golden::argmax(golden::run_tokens(*model, 0, {got.back()}, position).back()));
  }
  EXPECT_EQ(got, greedy);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenImageSpan, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
