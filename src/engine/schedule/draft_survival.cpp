#include "engine/schedule/draft_survival.h"

#include <algorithm>
#include <cmath>

namespace spark::engine {
namespace {

constexpr double kHighestLogit = 8;  // bins cover -8 .. 8
constexpr double kBinWeight = 8;     // trials that a less specific source counts for
constexpr double kMeanWeight = 2;
constexpr double kRequestWeight = 4;
constexpr double kFade = 0.999;        // per trial: about the last thousand count
constexpr double kRequestFade = 0.98;  // about the last fifty
constexpr double kBlockShare = 0.3;    // of the newest block in a request's average

double sigmoid(double logit) {
  return 1 / (1 + std::exp(-logit));
}

double bounded(float confidence) {
  if (std::isnan(confidence)) return -kHighestLogit;
  return std::clamp(static_cast<double>(confidence), -kHighestLogit, kHighestLogit);
}

}  // namespace

AcceptanceModel::AcceptanceModel(int32_t places)
    : bins_by_place_(static_cast<size_t>(places)), places_(static_cast<size_t>(places)) {}

void AcceptanceModel::Count::add(bool success, double fade) {
  trials = trials * fade + 1;
  accepted = accepted * fade + (success ? 1 : 0);
}

size_t AcceptanceModel::bin_of(float confidence) {
  const double share = (bounded(confidence) + kHighestLogit) / (2 * kHighestLogit);
  return std::min(static_cast<size_t>(share * kBins), kBins - 1);
}

double AcceptanceModel::acceptance(int32_t place, float confidence) const {
  const size_t bin = bin_of(confidence);
  const double of_bin = bins_[bin].share(sigmoid(bounded(confidence)), kBinWeight);
  return bins_by_place_[static_cast<size_t>(place)][bin].share(of_bin, kBinWeight);
}

double AcceptanceModel::mean_acceptance(int32_t place) const {
  return places_[static_cast<size_t>(place)].share(1, kMeanWeight);
}

void AcceptanceModel::observe(int32_t place, float confidence, bool accepted) {
  const size_t bin = bin_of(confidence);
  bins_[bin].add(accepted, kFade);
  bins_by_place_[static_cast<size_t>(place)][bin].add(accepted, kFade);
  places_[static_cast<size_t>(place)].add(accepted, kFade);
}

double RequestSurvival::adjusted(double acceptance) const {
  const double skill = (trials_accepted_ + kRequestWeight) / (trials_predicted_ + kRequestWeight);
  return std::clamp(acceptance * skill, 0.0, 1.0);
}

void RequestSurvival::observe(double predicted, bool accepted) {
  trials_predicted_ = trials_predicted_ * kRequestFade + predicted;
  trials_accepted_ = trials_accepted_ * kRequestFade + (accepted ? 1 : 0);
}

std::vector<double> RequestSurvival::expected(const AcceptanceModel& engine, int32_t places) const {
  if (!average_.empty()) return average_;
  std::vector<double> survival;
  double product = 1;
  for (int32_t place = 0; place < places; ++place) {
    survival.push_back(product *= engine.mean_acceptance(place));
  }
  return survival;
}

void RequestSurvival::note_block(std::span<const double> survival) {
  if (average_.empty()) {
    average_.assign(survival.begin(), survival.end());
    return;
  }
  for (size_t i = 0; i < average_.size(); ++i) average_[i] += kBlockShare * (survival[i] - average_[i]);
}

}  // namespace spark::engine
