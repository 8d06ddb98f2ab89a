// How likely drafts are to be accepted: the drafter's confidences, corrected by what came true.
// Deterministic.
//
//   AcceptanceModel model(5);
//   double a = model.acceptance(2, confidence);    // P(third draft accepted | the first two were)
//   model.observe(2, confidence, true);
//
// A confidence is a logit. It counts as said until experience with its place and size outweighs it: the share
// accepted in each of 16 bins of logits, of all places together and then of the place itself, each weighed
// against what the less specific source says. Old experience fades.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace spark::engine {

class AcceptanceModel {
 public:
  explicit AcceptanceModel(int32_t places);

  double acceptance(int32_t place, float confidence) const;
  // The same of a block that is not drafted yet; 1 before anything is known.
  double mean_acceptance(int32_t place) const;
  // A draft that was verified, when all before it were accepted.
  void observe(int32_t place, float confidence, bool accepted);

 private:
  static constexpr size_t kBins = 16;
  struct Count {
    double trials = 0;
    double accepted = 0;
    double share(double before, double weight) const {
      return (accepted + weight * before) / (trials + weight);
    }
    void add(bool success, double fade);
  };
  static size_t bin_of(float confidence);

  std::array<Count, kBins> bins_{};
  std::vector<std::array<Count, kBins>> bins_by_place_;
  std::vector<Count> places_;
};

// One request's own history: whether its drafts do better or worse than predicted, and what to expect next.
class RequestSurvival {
 public:
  // Corrects P(accepted | all before it accepted).
  double adjusted(double acceptance) const;
  void observe(double predicted, bool accepted);

  // The survival of each place in the next block, before it is drafted: an average of the last blocks', or
  // the engine's when there is none.
  std::vector<double> expected(const AcceptanceModel& engine, int32_t places) const;
  void note_block(std::span<const double> survival);

 private:
  double trials_predicted_ = 0;  // sum of predictions
  double trials_accepted_ = 0;
  std::vector<double> average_;
};

}  // namespace spark::engine
