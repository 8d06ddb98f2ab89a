// Every operation of the backend as a plain function over host memory, and the inner steps of those that need
// more than one. This is the contract in code and the oracle of the other backends' tests:
//
//   reference::rms_norm({.rows = 3, .cols = 512, .x = x, .x_stride = 512, .weight = w, .y = y});
//
// Every sum is formed in double and rounded once to FP32; exp, log1p and sqrt are evaluated in double and
// rounded to FP32. What is FP32 or BF16 in between is said by the comments on the argument structs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/kernels/draft.h"
#include "engine/kernels/experts.h"
#include "engine/kernels/index.h"
#include "engine/kernels/linear.h"
#include "engine/kernels/streams.h"

namespace spark::engine::reference {

void quantise(const QuantiseArgs& args);
void linear(const LinearArgs& args);
void grouped_linear(const GroupedLinearArgs& args);
void rms_norm(const RmsNormArgs& args);

void embed(const EmbedArgs& args);
void mhc_mix(const MhcMixArgs& args);
void mhc_collapse(const MhcCollapseArgs& args);
void mhc_expand(const MhcExpandArgs& args);
void stream_mean(const StreamMeanArgs& args);
void gather_rows(const GatherRowsArgs& args);
void engram_dequantise(const EngramDequantiseArgs& args);
void engram_inject(const EngramInjectArgs& args);

void rope_angles(const RopeAnglesArgs& args);
void rope(const RopeArgs& args);
void window_write(const WindowWriteArgs& args);
void pool_pairs(const PoolPairsArgs& args);
void entry_write(const EntryWriteArgs& args);
void sparse_attention(const SparseAttentionArgs& args);

void index_query(const IndexQueryArgs& args);
void index_select(const IndexSelectArgs& args);

void route(const RouteArgs& args);
void experts(const ExpertsArgs& args);

void draft(const DraftArgs& args);

// Row n of a weight as FP32 values, scales applied (exact).
void decode_weight_row(const Weight& weight, int64_t n, std::span<float> out);

// One row's mHC coefficients from its dot products, already multiplied by the reciprocal norm.
struct MhcCoefficients {
  std::vector<float> pre;   // [S]
  std::vector<float> post;  // [S]
  std::vector<float> comb;  // [S][S], source stream first
};
MhcCoefficients mhc_coefficients(std::span<const float> m, std::span<const float> scale,
                                 std::span<const float> base, int32_t streams, int32_t iterations, float eps);

// One head over a list of slots (null = empty), each a vector of q's width; the result before the inverse
// rotation.
void attend(std::span<const float> q, std::span<const float* const> slots, float scale, float sink,
            std::span<uint16_t> out);

// Rotates the last 2*pairs channels of one BF16 vector in place; cos_sin holds (cos, sin) per pair.
void rotate(std::span<uint16_t> x, std::span<const float> cos_sin, bool inverse);

// sqrt(softplus(z)).
float router_score(float z);

// round_bf16(weight * (silu(gate) * up)), both clamped.
uint16_t swiglu(uint16_t gate, uint16_t up, float weight, float limit);

// The score of one index entry: FP32 q [heads][width], FP32 key [width], already rounded head weights
// [heads].
float index_score(std::span<const float> q, std::span<const float> key, std::span<const float> head_weight);

// Positions of the `count` largest scores (ties: lowest position; -infinity never), ascending.
std::vector<int32_t> select_best(std::span<const float> scores, int32_t count);

// Blocks kept for a row with these visible scores: the newest always, the others by their best score.
std::vector<int32_t> candidate_blocks(std::span<const float> scores, int32_t block_size, int32_t max_blocks);

}  // namespace spark::engine::reference
