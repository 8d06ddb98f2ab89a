// The intermediate arrays of a step, allocated once for the most rows a step may have. All lie in the
// backend's memory; [rows] below is that number.
#pragma once

#include <cstdint>

#include "engine/collective/collective_dtype.h"
#include "engine/kernels/backend.h"
#include "model/config.h"
#include "model/split.h"

namespace spark::engine {

// Rows whose experts' results are held one by one, before they are added up.
inline constexpr int32_t kExpertSlice = 256;

struct MixBuffers {
  float* pre = nullptr;   // [rows][S]
  float* post = nullptr;  // [rows][S]
  float* comb = nullptr;  // [rows][S][S]
};

// Widths of a configuration as operations take them; config.cpp bounds them.
constexpr int32_t narrow(int64_t n) {
  return static_cast<int32_t>(n);
}

// What every block needs.
struct BlockScratch {
  uint16_t* h = nullptr;  // BF16 [rows][S][D], the residual streams
  MixBuffers attention_mix;
  MixBuffers
      expert_mix;  // its `pre` serves the next layer's attention, and the first layer's comes from embed
  uint16_t* x = nullptr;  // BF16 [rows][D], a sublayer's input
  QuantisedRows x_q;
  uint16_t* y = nullptr;      // BF16 [rows][D], a sublayer's output
  double* y_f64 = nullptr;    // the rank's part of it in FP64, [rows][D] or, of up to kExpertSlice rows,
                              // [top_k + 1][D] each; null when parts are summed as BF16
  uint16_t* q_kv = nullptr;   // BF16 [rows][q rank + width]
  QuantisedRows qr_q;         // [rows][q rank]
  uint16_t* q = nullptr;      // BF16 [rows][heads][width]
  uint16_t* kv = nullptr;     // BF16 [rows][width]
  uint16_t* o = nullptr;      // BF16 [rows][heads][width]
  uint16_t* o_low = nullptr;  // BF16 [rows][groups * o rank]
  QuantisedRows o_low_q;
  float* router_logits = nullptr;  // FP32 [rows][experts]
  int32_t* expert_ids = nullptr;   // [rows][top_k]
  float* expert_weights = nullptr;
};

// What layers with a compressed cache need beside it.
struct IndexScratch {
  float* kv = nullptr;          // FP32 [rows][width]
  float* score = nullptr;       // FP32 [rows][width]
  uint16_t* pooled = nullptr;   // BF16 [rows][width]
  uint16_t* latent = nullptr;   // BF16 [rows][width]
  uint16_t* key_raw = nullptr;  // BF16 [rows][key width]
  uint16_t* key = nullptr;
  uint16_t* q = nullptr;                // BF16 [rows][index heads][key width]
  uint8_t* q_packed = nullptr;          // E2M1
  uint8_t* q_scales = nullptr;          // UE8M0
  uint16_t* head_weight = nullptr;      // BF16 [rows][index heads]
  int32_t* selected = nullptr;          // [rows][index_topk]
  int32_t* candidate_blocks = nullptr;  // [rows][candidate_topk_blocks]
};

struct EngramScratch {
  uint16_t* x = nullptr;  // BF16 [rows][columns * head width]
  QuantisedRows x_q;
  uint16_t* part = nullptr;  // BF16 [rows][outputs of the rank]
  uint16_t* kv = nullptr;    // BF16 [rows][(S + 1) D]; `part` with one rank
};

// cos and sin at the rows' positions, [rows][pairs][2].
struct AngleBuffers {
  float* plain = nullptr;       // window layers
  float* compressed = nullptr;  // layers with a compressed cache
  float* pair = nullptr;        // the same table at the position before: first token of a ratio-2 entry
};

BlockScratch allocate_block_scratch(Backend& backend, const model::ModelConfig& config,
                                    const model::RankSplit& split, int64_t rows, CollectiveDtype sums);
IndexScratch allocate_index_scratch(Backend& backend, const model::ModelConfig& config, int64_t rows);
EngramScratch allocate_engram_scratch(Backend& backend, const model::ModelConfig& config,
                                      const model::RankSplit& split, int64_t rows);

// Counts elements, not bytes.
template <typename T>
T* allocate_array(Backend& backend, int64_t elements, const char* purpose = "intermediate results") {
  return static_cast<T*>(backend.allocate(static_cast<size_t>(elements) * sizeof(T), purpose));
}
QuantisedRows allocate_quantised(Backend& backend, int64_t rows, int64_t cols);

}  // namespace spark::engine
