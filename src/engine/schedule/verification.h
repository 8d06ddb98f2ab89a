// Which drafts of a block stand, and what comes after them, when drafts were drawn from distributions of
// their own. Pure; the answer's distribution is exactly the target's.
//
//   Verdict v = verify_block(drafts, proposals, targets, {uniforms, last});
//   // drafts[0 .. v.accepted - 1], then v.next
//
// Drafts d_1 .. d_k were drawn from proposals q_1 .. q_k, each given the drafts before it; targets p_1 ..
// p_k+1 are the model's distributions given the same. k may depend on the drafts, as long as whether d_i is
// in the block was settled without looking at d_i or anything after it. (Then the induction of the proof,
// from the last draft back, goes through with leaves at different depths.)
//
//   standard: d_i stands while u_i q_i(d_i) <= p_i(d_i); then one from max(p - q, 0)
//             (Leviathan, Kalman, Matias: "Fast inference from transformers via speculative decoding", 2023)
//   block:    P_0 = 1, P_i = min(P_{i-1} p_i(d_i) / q_i(d_i), 1)
//             h_i = R / (R + 1 - P_i), R = sum_x max(P_i p_{i+1}(x) - q_{i+1}(x), 0); h_k = P_k
//             the last i with u_i <= h_i stands; then one from max(P_i p_{i+1} - q_{i+1}, 0), or from p_{k+1}
//             (Sun et al.: "Block verification accelerates speculative decoding", 2024); it accepts the most
//
// Greedy drafts need neither. A draft that is certain (q one-hot) is accepted with at most its probability
// under the target, and drawing the target's token as without drafts, then comparing, accepts it with just
// that: so the engine does that, and a seed's answer stays the same, token by token, with and without drafts.
#pragma once

#include <cstdint>
#include <span>

#include "engine/numeric/token_distribution.h"

namespace spark::engine {

enum class RejectionMethod { kBlock, kStandard };

struct Verdict {
  int32_t accepted = 0;  // drafts
  int32_t next = 0;      // the token after them
};

// Independent of each other and of what the drafts were drawn with; all in (0, 1].
struct VerificationNumbers {
  std::span<const double> accept;  // [k]
  double last = 1;                 // draws Verdict::next
};

// proposals: [k]; targets: [k + 1].
Verdict verify_block(std::span<const int32_t> drafts, std::span<const TokenDistribution> proposals,
                     std::span<const TokenDistribution> targets, const VerificationNumbers& numbers,
                     RejectionMethod method = RejectionMethod::kBlock);

}  // namespace spark::engine
