#include "engine/numeric/mass_distribution.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "common/error.h"

namespace spark::engine {
namespace {

uint64_t rank_of(std::span<const float> logits, size_t token) {
  const float logit = logits[token];
  return token_rank(ordered_logit(logit, std::bit_cast<uint32_t>(logit)), static_cast<uint32_t>(token));
}

// The first token, ascending, at which the running sum reaches `target`.
int32_t find_mass(std::span<const uint64_t> masses, uint64_t target) {
  uint64_t running = 0;
  int32_t last = 0;
  for (size_t i = 0; i < masses.size(); ++i) {
    if (masses[i] == 0) continue;
    running += masses[i];
    last = static_cast<int32_t>(i);
    if (running >= target) break;
  }
  return last;
}

uint64_t mass_sum(std::span<const uint64_t> masses) {
  return std::accumulate(masses.begin(), masses.end(), uint64_t{0});
}

std::vector<uint64_t> residual(double scale, const MassDistribution& target,
                               const MassDistribution& proposal) {
  const double target_unit = scale / static_cast<double>(target.total());
  const double proposal_unit = 1.0 / static_cast<double>(proposal.total());
  std::vector<uint64_t> rest;
  for (size_t i = 0; i < target.masses().size(); ++i)
    rest.push_back(residual_mass(target.masses()[i], target_unit, proposal.masses()[i], proposal_unit));
  return rest;
}

}  // namespace

void MassDistribution::assign(std::span<const float> logits, const TokenFilter& filter,
                              std::span<const int32_t> banned) {
  SPARK_CHECK(logits.size() <= static_cast<size_t>(kMaxMassVocabulary));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  masses_.assign(logits.size(), 0);
  total_ = 0;
  trouble_ = 0;
  std::vector<bool> excluded(logits.size(), false);
  for (const int32_t token : banned) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) excluded[static_cast<size_t>(token)] = true;
  }
  std::vector<size_t> order;  // what may be chosen
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < kInfinity)) trouble_ = kTokenNotANumber;
    if (!excluded[i]) order.push_back(i);
  }
  if (trouble_ != 0) return;
  const auto likelier = [&](size_t a, size_t b) { return rank_of(logits, a) > rank_of(logits, b); };
  const auto best = std::min_element(order.begin(), order.end(), likelier);
  if (best == order.end() || logits[*best] == -kInfinity) {
    trouble_ = kEveryTokenExcluded;
    return;
  }
  if (filter.temperature == 0.0) {
    total_ = static_cast<uint64_t>(kMassUnits);
    masses_[*best] = total_;
    return;
  }
  const float largest = logits[*best];
  for (const size_t i : order) masses_[i] = token_mass(logits[i], largest, filter.temperature, filter.min_p);
  std::erase_if(order, [&](size_t i) { return masses_[i] == 0; });
  std::sort(order.begin(), order.end(), likelier);
  if (filter.top_k > 0 && static_cast<size_t>(filter.top_k) < order.size()) {
    for (size_t i = static_cast<size_t>(filter.top_k); i < order.size(); ++i) masses_[order[i]] = 0;
    order.resize(static_cast<size_t>(filter.top_k));
  }
  if (filter.top_p < 1.0) {
    const uint64_t needed = mass_share(filter.top_p, mass_sum(masses_));
    uint64_t reached = 0;
    for (const size_t i : order) {
      if (reached >= needed) masses_[i] = 0;
      reached += masses_[i];
    }
  }
  total_ = mass_sum(masses_);
}

int32_t MassDistribution::draw(double uniform) const {
  return trouble_ != 0 ? trouble_ : find_mass(masses_, mass_share(uniform, total_));
}

BlockVerdict verify_masses(std::span<const int32_t> drafts, std::span<const MassDistribution> proposals,
                           std::span<const MassDistribution> targets, std::span<const double> accept,
                           double last, bool standard) {
  const size_t count = drafts.size();
  SPARK_CHECK(proposals.size() == count && targets.size() == count + 1 && accept.size() == count);
  for (size_t i = 0; i <= count; ++i) {
    if (targets[i].trouble() != 0) return {0, targets[i].trouble()};
    if (i < count && proposals[i].trouble() != 0) return {0, proposals[i].trouble()};
  }
  double prefix = 1;
  double accepted_prefix = 1;
  size_t accepted = 0;
  for (size_t i = 1; i <= count; ++i) {
    const auto draft = static_cast<size_t>(drafts[i - 1]);
    const double quotient = draft_quotient(targets[i - 1].masses()[draft], targets[i - 1].total(),
                                           proposals[i - 1].masses()[draft], proposals[i - 1].total());
    if (standard) {
      if (!(accept[i - 1] <= quotient)) break;
      accepted = i;
      continue;
    }
    prefix = std::min(prefix * quotient, 1.0);
    double threshold = prefix;
    if (i < count) {
      const uint64_t rest = prefix > 0 ? mass_sum(residual(prefix, targets[i], proposals[i])) : 0;
      threshold = acceptance_threshold(prefix, rest);
    }
    if (accept[i - 1] <= threshold) {
      accepted = i;
      accepted_prefix = prefix;
    }
  }
  const auto verdict = [&](int32_t next) { return BlockVerdict{static_cast<int32_t>(accepted), next}; };
  if (accepted == count) return verdict(targets[count].draw(last));
  const std::vector<uint64_t> rest = residual(accepted_prefix, targets[accepted], proposals[accepted]);
  const uint64_t total = mass_sum(rest);
  // Nothing is left when both are the same; a rejection is then a matter of rounding.
  return verdict(total == 0 ? targets[accepted].draw(last) : find_mass(rest, mass_share(last, total)));
}

}  // namespace spark::engine
