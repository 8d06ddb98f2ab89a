// Rules 2 and 3 of the golden set: every layer from its recorded inputs (local), and the whole chain, with
// selections, experts and candidates compared by their margins.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace spark::engine {
namespace {

using golden::GoldenFile;

// Downloads every observed tensor; before a layer, puts the recorded inputs in place when asked to.
class Recorder : public Observer {
 public:
  Recorder(Decoder& model, const GoldenFile* inputs) : model_(model), inputs_(inputs) {}

  void before_layer(int32_t layer, const LayerState& state) override {
    if (inputs_ == nullptr) return;
    const std::string previous = "layers." + std::to_string(layer - 1);
    if (layer > 0) {
      put(state.h, inputs_->get<uint16_t>(previous + ".h"));
      put(state.pre, inputs_->get<float>(previous + ".pre"));
      replace_selection(previous + ".attn.", state);
    }
    if (on_layer_) on_layer_(layer);
  }

  void tensor(const ObservedTensor& t) override {
    const size_t element = t.type == ObservedType::kBf16 ? 2 : 4;
    Found& found = found_[t.name];
    found.cols = static_cast<size_t>(t.cols);
    found.bytes.resize(static_cast<size_t>(t.rows * t.cols) * element);
    model_.backend().download(found.bytes.data(), t.data, found.bytes.size());
  }

  template <typename T>
  std::vector<T> get(const std::string& name) const {
    const Found& found = found_.at(name);
    std::vector<T> values(found.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found.bytes.data(), found.bytes.size());
    return values;
  }
  size_t cols(const std::string& name) const { return found_.at(name).cols; }

  std::function<void(int32_t)> on_layer_;

 private:
  struct Found {
    size_t cols = 0;
    std::vector<uint8_t> bytes;
  };

  template <typename T>
  void put(T* to, const std::vector<T>& values) {
    model_.backend().upload(to, values.data(), values.size() * sizeof(T));
  }

  // What the layer before selected, as recorded, for the layers that reuse it.
  void replace_selection(const std::string& previous, const LayerState& state) {
    if (inputs_->has(previous + "selected"))
      put(state.selected, inputs_->get<int32_t>(previous + "selected"));
    const std::string blocks = previous + "indexer.candidate_blocks";
    if (inputs_->has(blocks)) put(state.candidate_blocks, inputs_->get<int32_t>(blocks));
  }

  Decoder& model_;
  const GoldenFile* inputs_;
  std::map<std::string, Found> found_;
};

// Reads and writes records of sequence 0 through the pool's own addressing.
std::vector<uint8_t> read_records(Decoder& model, const PagedCache& cache, int32_t count) {
  std::vector<int32_t> table(static_cast<size_t>(cache.table_stride));
  model.backend().download(table.data(), cache.block_table, table.size() * sizeof(int32_t));
  const size_t bytes = static_cast<size_t>(cache.record_bytes);
  std::vector<uint8_t> all(static_cast<size_t>(count) * bytes);
  for (int32_t j = 0; j < count; ++j) {
    const int32_t block = table[static_cast<size_t>(j / cache.records_per_block)];
    const int64_t index = int64_t{block} * cache.records_per_block + j % cache.records_per_block;
    model.backend().download(all.data() + static_cast<size_t>(j) * bytes,
                             cache.base + index * cache.record_bytes, bytes);
  }
  return all;
}

void write_records(Decoder& model, const PagedCache& cache, const std::vector<uint8_t>& all) {
  std::vector<int32_t> table(static_cast<size_t>(cache.table_stride));
  model.backend().download(table.data(), cache.block_table, table.size() * sizeof(int32_t));
  const size_t bytes = static_cast<size_t>(cache.record_bytes);
  for (size_t j = 0; j < all.size() / bytes; ++j) {
    const int32_t entry = static_cast<int32_t>(j);
    const int32_t block = table[static_cast<size_t>(entry / cache.records_per_block)];
    const int64_t index = int64_t{block} * cache.records_per_block + entry % cache.records_per_block;
    model.backend().upload(cache.base + index * cache.record_bytes, all.data() + j * bytes, bytes);
  }
}

struct RowFigures {
  double within = 0;  // share of rows within 1e-3
  double exact = 0;   // share of rows that are bit-identical
  double median = 0;  // relative L2 of the middle row
  double worst = 0;   // and of the worst
};

template <typename T>
RowFigures compare_rows(const std::vector<T>& got, const std::vector<T>& want, size_t cols) {
  EXPECT_EQ(got.size(), want.size());
  RowFigures f;
  std::vector<double> distances;
  const size_t rows = want.size() / cols;
  for (size_t r = 0; r < rows; ++r) {
    const T* a = got.data() + r * cols;
    const T* b = want.data() + r * cols;
    const double distance = golden::relative_l2(a, b, cols);
    f.within += distance <= 1e-3 ? 1 : 0;
    f.exact += std::equal(a, a + cols, b) ? 1 : 0;
    distances.push_back(distance);
  }
  std::sort(distances.begin(), distances.end());
  f.median = distances[rows / 2];
  f.worst = distances.back();
  f.within /= static_cast<double>(rows);
  f.exact /= static_cast<double>(rows);
  return f;
}

// Rows in which two integer arrays differ.
std::vector<size_t> differing_rows(const std::vector<int32_t>& a, const std::vector<int32_t>& b,
                                   size_t cols) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<size_t> rows;
  for (size_t r = 0; r * cols < b.size(); ++r) {
    const auto at = static_cast<std::ptrdiff_t>(r * cols);
    if (!std::equal(a.begin() + at, a.begin() + at + static_cast<std::ptrdiff_t>(cols), b.begin() + at)) {
      rows.push_back(r);
    }
  }
  return rows;
}

class GoldenDebug : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int32_t kTokens = 140;

  void SetUp() override {
    const std::string folder = golden::full_set();
    if (folder.empty()) GTEST_SKIP() << "the full golden set is not here (SPARK_GOLDEN_DIR)";
    file_ = std::make_unique<GoldenFile>(folder + "/debug.safetensors");
    facts_ = parse_json(read_file(folder + "/debug.json"), "debug.json").at("tensors");
    model_ = golden::load(folder + "/tiny-checkpoint", GetParam());
  }

  // One prefill of the recorded prompt.
  void run(Recorder& recorder) {
    model_->open_sequence(0);
    model_->set_observer(&recorder);
    logits_ = golden::run_tokens(*model_, 0, file_->get<int32_t>("prompt"));
    model_->set_observer(nullptr);
  }

  double noise(const std::string& tensor, const char* kind, const char* figure) const {
    return facts_.at(tensor).at(kind).at(figure).get<double>();
  }

  // The cache records that a layer wrote.
  double differing_records(const std::string& name, const PagedCache& cache) {
    const auto want = file_->get<uint8_t>(name);
    const size_t bytes = static_cast<size_t>(cache.record_bytes);
    const auto got = read_records(*model_, cache, static_cast<int32_t>(want.size() / bytes));
    size_t differing = 0;
    for (size_t at = 0; at < want.size(); at += bytes) {
      const auto begin = static_cast<std::ptrdiff_t>(at);
      differing += std::equal(got.begin() + begin, got.begin() + begin + static_cast<std::ptrdiff_t>(bytes),
                              want.begin() + begin)
                       ? 0U
                       : 1U;
    }
    return static_cast<double>(differing) / (static_cast<double>(want.size()) / static_cast<double>(bytes));
  }

  // Rows whose margin is more than one BF16 step of the row's largest score must agree exactly.
  void check_selection(const std::string& tensor, const std::string& margin_name, const std::string& layer,
                       const Recorder& recorder) {
    const auto margin = file_->get<float>(margin_name);
    const auto scores = file_->get<uint16_t>(layer + ".attn.indexer.scores");
    const size_t entries = scores.size() / margin.size();
    const auto rows =
        differing_rows(recorder.get<int32_t>(tensor), file_->get<int32_t>(tensor), recorder.cols(tensor));
    std::printf("  %-10s local %s: %zu of %zu rows differ\n", GetParam().c_str(), tensor.c_str(), rows.size(),
                margin.size());
    for (const size_t row : rows) {
      float largest = 0;
      for (size_t j = 0; j < entries; ++j) {
        const float score = std::fabs(bf16_to_float(scores[row * entries + j]));
        if (score < 1e30F) largest = std::max(largest, score);
      }
      EXPECT_LE(margin[row], std::ldexp(1.0F, std::ilogb(largest) - 7)) << tensor << " row " << row;
    }
  }

  std::unique_ptr<GoldenFile> file_;
  Json facts_;
  std::unique_ptr<Decoder> model_;
  golden::Rows logits_;
};

TEST_P(GoldenDebug, EveryLayerFromItsRecordedInputs) {
  Recorder recorder(*model_, file_.get());
  double worst_records = 0;
  // When layer L begins, compare the caches that layer L - 1 wrote and replace them by the recorded ones.
  const auto settle_caches = [&](int32_t layer) {
    const std::string attn = "layers." + std::to_string(layer) + ".attn.";
    const PagedCache window = model_->cache().window(layer);
    double differing = differing_records(attn + "window_bytes", window);
    write_records(*model_, window, file_->get<uint8_t>(attn + "window_bytes"));
    if (file_->has(attn + "main_bytes")) {
      const PagedCache main = model_->cache().main(layer);
      const PagedCache keys = model_->cache().keys(layer);
      differing = std::max({differing, differing_records(attn + "main_bytes", main),
                            differing_records(attn + "index_key_bytes", keys)});
      write_records(*model_, main, file_->get<uint8_t>(attn + "main_bytes"));
      write_records(*model_, keys, file_->get<uint8_t>(attn + "index_key_bytes"));
    }
    worst_records = std::max(worst_records, differing);
  };
  recorder.on_layer_ = [&](int32_t layer) {
    if (layer > 0) settle_caches(layer - 1);
  };
  run(recorder);
  settle_caches(static_cast<int32_t>(model_->plan().layers.size()) - 1);
  std::printf("  %-10s local: at most %.2f%% of a layer's cache records differ\n", GetParam().c_str(),
              100 * worst_records);
  EXPECT_LE(worst_records, 0.1);

  for (const model::LayerRole& role : model_->plan().layers) {
    const std::string layer = "layers." + std::to_string(role.layer);
    const auto figures = compare_rows(recorder.get<uint16_t>(layer + ".h"),
                                      file_->get<uint16_t>(layer + ".h"), recorder.cols(layer + ".h"));
    const double limit = std::max(4 * noise(layer + ".h", "local_rel_l2", "max"), 0.03);
    std::printf(
        "  %-10s local %s.h: %.1f%% of rows within 1e-3 (at least 60%%), %.1f%% identical, worst %.2e (limit "
        "%.2e)\n",
        GetParam().c_str(), layer.c_str(), 100 * figures.within, 100 * figures.exact, figures.worst, limit);
    EXPECT_GE(figures.within, 0.6) << layer;
    EXPECT_LE(figures.worst, limit) << layer;

    const auto margin = file_->get<float>(layer + ".ffn.margin");
    const size_t top_k = recorder.cols(layer + ".ffn.ids");
    for (const size_t row : differing_rows(recorder.get<int32_t>(layer + ".ffn.ids"),
                                           file_->get<int32_t>(layer + ".ffn.ids"), top_k)) {
      EXPECT_LE(margin[row], 1e-3F) << layer << " experts of row " << row;
    }
    if (!role.runs_indexer()) continue;
    check_selection(layer + ".attn.selected", layer + ".attn.indexer.margin", layer, recorder);
    if (role.is_candidate_source) {
      check_selection(layer + ".attn.indexer.candidate_blocks", layer + ".attn.indexer.candidate_margin",
                      layer, recorder);
    }
  }
}

TEST_P(GoldenDebug, TheChain) {
  Recorder recorder(*model_, nullptr);
  run(recorder);
  struct Discrete {
    double expected = 0;
    size_t found = 0;
  };
  std::map<std::string, Discrete> discrete;
  for (const auto& [name, facts] : facts_.items()) {
    if (!file_->has(name)) continue;
    if (facts.contains("chained_rel_l2") && name.ends_with(".h")) {
      const auto f =
          compare_rows(recorder.get<uint16_t>(name), file_->get<uint16_t>(name), recorder.cols(name));
      const double limit = 2 * noise(name, "chained_rel_l2", "max") + 0.01;
      std::printf(
          "  %-10s chain %s: median %.2e (worst order %.2e), worst row %.2e (limit %.2e), %.1f%% identical\n",
          GetParam().c_str(), name.c_str(), f.median, noise(name, "chained_rel_l2", "worst_order_median"),
          f.worst, limit, 100 * f.exact);
      EXPECT_LE(f.worst, limit) << name;
    }
    // Experts, selections and candidates of all layers together: single layers have few rows that differ.
    if (!facts.contains("chained_rows_differing") || name.ends_with("_bytes")) continue;
    const size_t cols = recorder.cols(name);
    const size_t rows = file_->get<int32_t>(name).size() / cols;
    Discrete& kind = discrete[name.substr(name.rfind('.') + 1)];
    kind.expected += facts.at("chained_rows_differing").get<double>() * static_cast<double>(rows);
    kind.found += differing_rows(recorder.get<int32_t>(name), file_->get<int32_t>(name), cols).size();
  }
  for (const auto& [kind, rows] : discrete) {
    std::printf("  %-10s chain %s: %zu rows differ (expected %.0f, at most twice that)\n", GetParam().c_str(),
                kind.c_str(), rows.found, rows.expected);
    EXPECT_LE(static_cast<double>(rows.found), 2 * rows.expected + 1) << kind;
  }
  const auto hidden =
      compare_rows(recorder.get<uint16_t>("final_hidden"), file_->get<uint16_t>("final_hidden"), 128);
  const auto aux =
      compare_rows(recorder.get<uint16_t>("drafter_aux"), file_->get<uint16_t>("drafter_aux"), 384);
  std::printf("  %-10s chain final hidden: worst row %.2e; drafter inputs: worst row %.2e\n",
              GetParam().c_str(), hidden.worst, aux.worst);
  const auto want = file_->get<float>("logits_last8");
  double worst = 0;
  for (size_t i = 0; i < 8; ++i) {
    worst = std::max(worst, golden::relative_l2(logits_[kTokens - 8 + i].data(), want.data() + i * 640, 640));
  }
  std::printf("  %-10s chain last logits: worst row %.2e\n", GetParam().c_str(), worst);
  EXPECT_LE(hidden.worst, 0.4);
  EXPECT_LE(aux.worst, 0.4);
  EXPECT_LE(worst, 0.344);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenDebug, testing::ValuesIn(backend_names()));

}  // namespace
}  // namespace spark::engine
