#include "engine/schedule/verification.h"

#include <algorithm>
#include <vector>

#include "common/error.h"

namespace spark::engine {
namespace {

// max(scale * p - q, 0) over the tokens of p.
class Residual {
 public:
  Residual(double scale, const TokenDistribution& p, const TokenDistribution& q) : p_(p) {
    const auto tokens = p.tokens();
    const auto weights = p.weights();
    const auto other_tokens = q.tokens();
    const auto other_weights = q.weights();
    mass_.reserve(tokens.size());
    size_t other = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      while (other < other_tokens.size() && other_tokens[other] < tokens[i]) ++other;
      const bool both = other < other_tokens.size() && other_tokens[other] == tokens[i];
      const double taken = both ? other_weights[other] / q.total() : 0;
      mass_.push_back(std::max(scale * (weights[i] / p.total()) - taken, 0.0));
      total_ += mass_.back();
    }
  }

  double total() const { return total_; }

  int32_t draw(double uniform) const {
    // Nothing is left when p and q are the same; a rejection is then a matter of rounding.
    if (!(total_ > 0)) return p_.draw(uniform);
    const double threshold = uniform * total_;
    double running = 0;
    size_t last = 0;
    for (size_t i = 0; i < mass_.size(); ++i) {
      if (mass_[i] == 0) continue;
      running += mass_[i];
      last = i;
      if (running >= threshold) break;
    }
    return p_.tokens()[last];
  }

 private:
  const TokenDistribution& p_;
  std::vector<double> mass_;
  double total_ = 0;
};

// d was drawn from q, so q(d) > 0.
double ratio(int32_t draft, const TokenDistribution& p, const TokenDistribution& q) {
  return p.probability(draft) / q.probability(draft);
}

}  // namespace

Verdict verify_block(std::span<const int32_t> drafts, std::span<const TokenDistribution> proposals,
                     std::span<const TokenDistribution> targets, const VerificationNumbers& numbers,
                     RejectionMethod method) {
  const size_t count = drafts.size();
  SPARK_CHECK(proposals.size() == count && targets.size() == count + 1 && numbers.accept.size() == count);
  double prefix = 1;  // P_i
  size_t accepted = 0;
  double accepted_prefix = 1;  // P_i of the last draft that stands
  for (size_t i = 1; i <= count; ++i) {
    const double quotient = ratio(drafts[i - 1], targets[i - 1], proposals[i - 1]);
    const double u = numbers.accept[i - 1];
    if (method == RejectionMethod::kStandard) {
      if (!(u <= quotient)) break;
      accepted = i;
      continue;
    }
    prefix = std::min(prefix * quotient, 1.0);
    double threshold = prefix;
    if (i < count) {
      const double rest = prefix > 0 ? Residual(prefix, targets[i], proposals[i]).total() : 0;
      const double denominator = rest + 1 - prefix;
      threshold = denominator > 0 ? rest / denominator : 1;
    }
    if (u <= threshold) {
      accepted = i;
      accepted_prefix = prefix;
    }
  }
  const int32_t next =
      accepted == count
          ? targets[count].draw(numbers.last)
          : Residual(accepted_prefix, targets[accepted], proposals[accepted]).draw(numbers.last);
  return {static_cast<int32_t>(accepted), next};
}

}  // namespace spark::engine
