// select() and verify_drafts() for backends whose memory is the host's.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/kernels/select.h"
#include "engine/numeric/mass_distribution.h"

namespace spark::engine {

inline TokenFilter token_filter(const RowFilter& f) {
  return {.temperature = f.temperature, .top_p = f.top_p, .top_k = f.top_k, .min_p = f.min_p};
}

inline MassDistribution row_distribution(const float* logits, int64_t row, int32_t vocab,
                                         const RowFilter& filter, const int32_t* banned, int32_t max_banned) {
  std::span<const int32_t> excluded;
  if (banned != nullptr) excluded = {banned + row * max_banned, static_cast<size_t>(max_banned)};
  MassDistribution distribution;
  distribution.assign({logits + row * vocab, static_cast<size_t>(vocab)}, token_filter(filter), excluded);
  return distribution;
}

inline void select_on_host(const SelectArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    args.token[row] =
        row_distribution(args.logits, row, args.vocab, args.filter[row], args.banned, args.max_banned)
            .draw(args.uniform[row]);
  }
}

inline void verify_on_host(const VerifyArgs& args) {
  for (int64_t block = 0; block < args.blocks; ++block) {
    const auto count = static_cast<size_t>(args.count[block]);
    const int64_t proposal0 = block * args.max_drafts;
    std::vector<MassDistribution> proposals, targets;
    for (size_t i = 0; i <= count; ++i) {
      const auto place = static_cast<int64_t>(i);
      targets.push_back(row_distribution(args.target_logits, block * (args.max_drafts + 1) + place,
                                         args.vocab, args.filter[block], args.banned, args.max_banned));
      if (i < count) {
        proposals.push_back(row_distribution(args.proposal_logits, proposal0 + place, args.vocab,
                                             args.filter[block], nullptr, 0));
      }
    }
    const BlockVerdict verdict =
        verify_masses({args.drafts + proposal0, count}, proposals, targets, {args.accept + proposal0, count},
                      args.last[block], args.standard);
    args.accepted[block] = verdict.accepted;
    args.next[block] = verdict.next;
  }
}

}  // namespace spark::engine
