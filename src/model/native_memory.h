// What the native engine allocates beside its caches (model/cost.h has those): a rank's weights on a GPU,
// Engram rows in host memory, the arrays of a step, the scratch memory of its operations. `spark plan` counts
// with it; a test compares with the engine's own plan.
//
//   for (const ComponentWeight& part : native_gpu_weights(tensor_catalogue(config), split_for(config, 4)))
//     total += part.bytes;
#pragma once

#include "model/split.h"

namespace spark::model {

// BF16 weights with at least so many rows are packed to 12 bits.
inline constexpr int64_t kNativePackedFromRows = 16384;

// Engram tables stay on disk, and the vision tower is not loaded.
bool native_loads(const TensorEntry& tensor);

// Of rank 0's part.
int64_t native_gpu_bytes(const TensorEntry& tensor, const RankSplit& split);

struct ComponentWeight {
  Component component = Component::kEmbedding;
  int64_t bytes = 0;
};
std::vector<ComponentWeight> native_gpu_weights(const std::vector<TensorEntry>& tensors,
                                                const RankSplit& split);

// Host memory for rows of the Engram tables read lately, when all tables together may take `budget_bytes`: no
// table takes more than it has.
int64_t native_engram_cache_bytes(const ModelConfig& config, int64_t budget_bytes);

// Arrays of a step of up to `rows` rows of `sequences` sequences, those of the drafter included.
int64_t native_step_bytes(const ModelConfig& config, const RankSplit& split, int64_t rows, int64_t sequences);

struct NativeSteps {
  int64_t rows = 0;  // of a step
  int64_t sequences = 0;
  int64_t context = 0;
};
// What operations on a GPU leave for one another, after steps of all sizes: buffers grow in powers of two,
// and the smaller ones stay.
int64_t native_scratch_bytes(const ModelConfig& config, const RankSplit& split, const NativeSteps& steps);

}  // namespace spark::model
