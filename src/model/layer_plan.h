// What each layer does, derived from the hyper-parameters once.
//
//   const LayerPlan plan = make_layer_plan(config);
//   plan.layers[24].mode;          // AttentionMode::kReindex
//   plan.layers[24].kv_source;     // 20: reads that layer's compressed cache
//   plan.drafter[0].mode;          // AttentionMode::kWindow
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace spark::model {

enum class AttentionMode {
  kWindow,   // ratio 0: the sliding window only
  kFull,     // owns a compressor, its caches and an indexer
  kReindex,  // scores a source's index keys with queries of its own
  kReuse,    // takes cache and selection of earlier layers
};

std::string_view name_of(AttentionMode mode);  // "window", "full", "reindex", "reuse"

struct LayerRole {
  int64_t layer = 0;  // index within its list
  int64_t compress_ratio = 0;
  AttentionMode mode = AttentionMode::kWindow;
  int64_t kv_source = -1;            // layer whose compressed cache is read; -1 for window layers
  int64_t index_source = -1;         // layer whose selection is used; -1 for window layers
  bool is_candidate_source = false;  // chooses the candidate blocks
  bool uses_candidates = false;      // a Reindex layer that scores candidates only
  int64_t engram = -1;               // ordinal of the Engram table before this layer; -1: none
  int64_t aux = -1;                  // position of this layer's input among the drafter's inputs; -1: none

  bool owns_kv() const { return mode == AttentionMode::kFull; }
  bool runs_indexer() const { return mode == AttentionMode::kFull || mode == AttentionMode::kReindex; }
};

struct LayerPlan {
  std::vector<LayerRole> layers;   // the backbone
  std::vector<LayerRole> drafter;  // window layers with a draft block each
  // The layer from which on nothing outlives the window: the last one that owns a compressed cache, whose
  // entries come from its input alone. The layers before it are the encoder; from it on, the decoder, which a
  // prompt needs for its last rows only. -1 when an Engram table or an input of the drafter stands in the
  // way.
  int64_t first_decoder_layer = -1;
};

LayerPlan make_layer_plan(const ModelConfig& config);

}  // namespace spark::model
