// The indexer: FP4 query against FP4 keys, three BF16 roundings, exact top-k, candidate blocks.
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// Rotates the last 2*pairs channels of every index head and quantises it FP4 block 32 UE8M0.
struct IndexQueryArgs {
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t width = 0;
  int32_t pairs = 0;
  const float* cos_sin = nullptr;  // [rows][pairs][2]
  const uint16_t* q = nullptr;     // BF16 [rows][heads][width], from wq_b
  uint8_t* packed = nullptr;       // E2M1 [rows][heads][width/2]
  uint8_t* scales = nullptr;       // UE8M0 [rows][heads][width/32]
};

enum class CandidateMode : uint8_t {
  kNone,      // select among all visible entries
  kProduce,   // the same, and write the candidate blocks (the candidate source layer)
  kRestrict,  // entries outside the candidate blocks do not take part
};

// Per row, n = (position + 1) / ratio visible entries, j < n:
//   s_j = round_bf16( FP32 sum over heads ascending of round_bf16( max(0, round_bf16(q_h . k_j)) * w_h ) )
//   w_h = round_bf16( head_weight[t][h] * weight_factor )
// Candidates: B[b] = max s over entries of block b; the block of entry n-1 is always kept; the max_blocks
// best by B (ties: lowest block), -inf dropped, ascending. Selection: the min(top_k, n) best by s (ties:
// lowest entry), ascending, then -1. With kRestrict only entries of the row's candidate blocks are eligible.
struct IndexSelectArgs {
  StepRows step = {};
  int32_t heads = 0;
  int32_t width = 0;
  int32_t ratio = 1;
  int32_t top_k = 0;
  const uint8_t* q_packed = nullptr;
  const uint8_t* q_scales = nullptr;
  const uint16_t* head_weight = nullptr;  // BF16 [rows][heads], output of weights_proj
  float weight_factor = 0;                // FP32(width^-0.5 * heads^-0.5)
  PagedCache key_cache = {};              // records of index_key_record_bytes(width)
  int32_t max_entries = 0;  // upper bound of n over the step's rows, for workspaces and launch sizes
  CandidateMode mode = CandidateMode::kNone;
  int32_t block_size = 0;
  int32_t max_blocks = 0;
  int32_t* candidate_blocks = nullptr;  // [rows][max_blocks], ascending, then -1; written or read by mode
  int32_t* selected = nullptr;          // [rows][top_k]
  // For tests and the debugger: BF16 [rows][max_entries], before any candidate mask; null in production.
  uint16_t* scores = nullptr;
};

}  // namespace spark::engine
