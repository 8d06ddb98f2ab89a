// The catalogue of every tensor that a checkpoint of a given configuration holds.
//
//   const std::vector<TensorEntry> tensors = tensor_catalogue(config);
//   tensors[0].name;                 // "embed.weight"
//   const auto totals = component_totals(tensors);
//
// Three storage forms, all row-major [out, in]:
//   FP8 dense    X.weight F8_E4M3 [o, i]     X.scale F8_E8M0 [o/32, i/32]   one scale per 32 x 32 tile
//   FP4 expert   X.weight I8 [o, i/2]        X.scale F8_E8M0 [o, i/32]      low nibble = even input channel
//   Engram table X.weight F8_E4M3 [rows, w]  X.scale F8_E8M0 [rows, w/32]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/dtype.h"

namespace spark::model {

enum class Component : uint8_t {
  kEmbedding,
  kHead,
  kFinalNorm,
  kAttention,  // projections, norms, sinks
  kCompressor,
  kIndexer,
  kStreams,  // mHC
  kRouter,   // and the norm before it
  kSharedExpert,
  kRoutedExperts,
  kEngramProjection,
  kEngramTable,
  kDrafterAttention,
  kDrafterStreams,
  kDrafterRouter,
  kDrafterSharedExpert,
  kDrafterRoutedExperts,
  kDrafterHeads,  // main projection, norms, Markov head, confidence head
  kVision,        // tower, aligner, delimiters
};
inline constexpr size_t kComponents = 19;

std::string_view name_of(Component component);

// Along what a tensor is cut for tensor parallelism (see model/split.h).
enum class SplitOver : uint8_t {
  kNothing,       // every rank has a full copy
  kGroups,        // output groups with their heads
  kExpertWidth,   // 32-blocks of the expert width
  kVocabulary,    // rows of the vocabulary
  kEngramOutput,  // 32-blocks of the Engram projection's outputs
  kMainOutput,    // 32-blocks of the drafter's main projection's outputs
};

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kBf16;
  std::vector<int64_t> shape;
  Component component = Component::kAttention;
  SplitOver split_over = SplitOver::kNothing;
  uint8_t split_axis = 0;
  int32_t layer = -1;    // of the backbone or, for drafter components, of the drafter; -1: none
  bool required = true;  // false: text-only checkpoints may or may not carry it

  int64_t elements() const;
  int64_t bytes() const { return elements() * static_cast<int64_t>(dtype_bytes(dtype)); }
  // Weights it stands for: packed FP4 counts twice, scales not at all.
  int64_t parameters() const;
};

// Every tensor, in the order embedding, layers, final norm, head, drafter, vision.
std::vector<TensorEntry> tensor_catalogue(const ModelConfig& config);

struct ComponentTotal {
  Component component = Component::kEmbedding;
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t parameters = 0;
};

// One entry per component that has tensors, in the enumeration's order.
std::vector<ComponentTotal> component_totals(const std::vector<TensorEntry>& tensors);

}  // namespace spark::model
