// The tiny checkpoints of the tests, and ways to run tokens through a model.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/synthetic.h"
#include "engine/forward/load_model.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine::golden {

// The full set of golden vectors: $SPARK_GOLDEN_DIR, or shared/golden beside the source; empty when absent.
// What must run everywhere lies in tests/data.
inline std::string full_set() {
  const char* named = std::getenv("SPARK_GOLDEN_DIR");
  const std::vector<std::string> places = {named == nullptr ? "" : named,
                                           std::string(SPARK_SOURCE_DIR) + "/../shared/golden",
                                           std::string(SPARK_SOURCE_DIR) + "/../../shared/golden"};
  for (const std::string& place : places) {
    if (!place.empty() && std::filesystem::exists(place + "/tiny-checkpoint/config.json")) return place;
  }
  return {};
}

// A synthetic checkpoint with every mechanism, written once per program.
inline const std::string& synthetic_checkpoint() {
  static const TemporaryFolder folder;
  static const int64_t bytes = write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, folder.path());
  static const std::string path = bytes > 0 ? folder.path() : "";
  return path;
}

inline std::unique_ptr<Decoder> load(const std::string& folder, const std::string& backend, int threads = 1,
                                     const CacheLimits& limits = {
                                         .max_sequences = 6, .max_context = 1024, .max_step_rows = 512}) {
  return load_model({.folder = folder, .backend = backend, .threads = threads, .limits = limits});
}

using Rows = std::vector<std::vector<float>>;  // logits of each row

// Runs `tokens` from `position` on in steps of `chunk` rows (0: one step) and returns the logits of all rows.
inline Rows run_tokens(Decoder& model, int32_t sequence, const std::vector<int32_t>& tokens,
                       int32_t position = 0, size_t chunk = 0) {
  const size_t vocab = static_cast<size_t>(model.vocab_size());
  if (chunk == 0) chunk = tokens.size();
  Rows result;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    std::vector<StepRow> rows;
    for (size_t t = begin; t < std::min(begin + chunk, tokens.size()); ++t) {
      rows.push_back({.sequence = sequence,
                      .token = tokens[t],
                      .position = position + static_cast<int32_t>(t),
                      .wants_logits = true});
    }
    const auto logits = model.run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      result.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                          logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
    }
  }
  return result;
}

inline int32_t argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Prefill of the prompt, then one token per step.
inline std::vector<int32_t> generate(Decoder& model, int32_t sequence, const std::vector<int32_t>& prompt,
                                     size_t count) {
  model.open_sequence(sequence);
  std::vector<int32_t> ids = {argmax(run_tokens(model, sequence, prompt).back())};
  while (ids.size() < count) {
    const int32_t position = static_cast<int32_t>(prompt.size() + ids.size()) - 1;
    ids.push_back(argmax(run_tokens(model, sequence, {ids.back()}, position).back()));
  }
  model.close_sequence(sequence);
  return ids;
}

}  // namespace spark::engine::golden
