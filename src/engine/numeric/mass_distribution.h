// What token_mass.h means for a whole row and for a block of drafts, on the host: the reference of the
// device's selection.
//
//   MassDistribution p;
//   p.assign(logits, {.temperature = 0.7, .top_p = 0.95}, banned);
//   int32_t token = p.draw(uniform);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/numeric/token_distribution.h"
#include "engine/numeric/token_mass.h"

namespace spark::engine {

class MassDistribution {
 public:
  // Filters as TokenDistribution has them. At most kMaxMassVocabulary logits.
  void assign(std::span<const float> logits, const TokenFilter& filter, std::span<const int32_t> banned = {});

  // 0, or why there is nothing to draw: kTokenNotANumber, kEveryTokenExcluded.
  int32_t trouble() const { return trouble_; }
  std::span<const uint64_t> masses() const { return masses_; }  // by token
  uint64_t total() const { return total_; }
  // Inverts the running sum of masses over ascending tokens; `uniform` in (0, 1].
  int32_t draw(double uniform) const;

 private:
  void keep_from(uint64_t rank, std::span<const float> logits);

  std::vector<uint64_t> masses_;
  uint64_t total_ = 0;
  int32_t trouble_ = 0;
};

struct BlockVerdict {
  int32_t accepted = 0;
  int32_t next = 0;  // or the trouble of one of the distributions
};

// verify_block of schedule/verification.h in masses. proposals: [drafts]; targets: [drafts + 1]; accept:
// [drafts]; `standard`: token by token instead of by block.
BlockVerdict verify_masses(std::span<const int32_t> drafts, std::span<const MassDistribution> proposals,
                           std::span<const MassDistribution> targets, std::span<const double> accept,
                           double last, bool standard);

}  // namespace spark::engine
