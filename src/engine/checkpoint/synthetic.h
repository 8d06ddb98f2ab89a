// Whole checkpoints with invented weights, in the published layout, for tests, demonstrations and benchmarks.
//
//   write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, "/tmp/tiny");
//   // config.json, inference/config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
//   // model.safetensors.index.json, model-0000K-of-0000N.safetensors with the Engram tables alone in the
//   last shards
//
// The same preset and seed give the same bytes on every machine. Every mechanism of the model occurs: layers
// of ratio 0, 2 and 1, Full, Reuse and Reindex attention, the candidate source, an Engram layer that is also
// a source, drafter layers, FP8 and FP4 weights. All widths split over 1, 2, 3 and 4 ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"

namespace spark::engine {

enum class SyntheticPreset {
  kTiny,   // about 12 MB: tests
  kSmall,  // about 350 MB: throughput on a CPU
};

std::optional<SyntheticPreset> synthetic_preset(std::string_view name);  // "tiny", "small"

// The configuration and the tokenizer.json that belongs to it.
struct SyntheticModel {
  model::ModelConfig config;
  std::string tokenizer_json;
};
SyntheticModel synthetic_model(SyntheticPreset preset);

// Writes into the folder `dir`, which must exist and should be empty. Returns the bytes of all tensors.
// Throws Error; what was written by then stays.
int64_t write_synthetic_checkpoint(SyntheticPreset preset, uint64_t seed, const std::string& dir);

// The same into a new folder that appears under its name only when complete. An existing folder that is not
// empty is an Error unless `replace`; then the new one takes its place once it is complete, and the old one
// is removed. A folder that holds anything but a synthetic checkpoint's files is never replaced.
int64_t create_synthetic_checkpoint(SyntheticPreset preset, uint64_t seed, const std::string& dir,
                                    bool replace);

}  // namespace spark::engine
