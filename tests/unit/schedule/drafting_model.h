// A model that drafts what a test wants: for acceptance of any length, at any place, with any model beneath.
//
//   DraftingModel model(inner, 5, [&](std::span<const int32_t> history, int32_t place) { return token; });
//
// `history` holds the tokens of the sequence up to the anchor; place 0 is the token after it.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <vector>

#include "engine/forward/step_model.h"
#include "engine/forward/wrapped_model.h"

namespace spark::engine {

class DraftingModel : public WrappedModel {
 public:
  using Chooser = std::function<int32_t(std::span<const int32_t> history, int32_t place)>;

  DraftingModel(StepModel& inner, int32_t drafts, Chooser chooser)
      : WrappedModel(inner), drafts_(drafts), chooser_(std::move(chooser)) {}

  void open_sequence(int32_t slot) override {
    inner_.open_sequence(slot);
    histories_[slot].clear();
  }
  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    const int32_t cached = inner_.start_sequence(slot, start);
    histories_[slot].assign(start.tokens.begin(), start.tokens.begin() + cached);
    return cached;
  }

  std::span<const float> run(std::span<const StepRow> rows) override {
    for (const StepRow& row : rows) {
      std::vector<int32_t>& history = histories_[row.sequence];
      history.resize(static_cast<size_t>(row.position));
      history.push_back(row.token);
    }
    return inner_.run(rows);
  }

  int32_t max_drafts() const override { return drafts_; }
  Drafts draft(std::span<const DraftRequest> requests) override {
    tokens_.clear();
    confidence.resize(static_cast<size_t>(drafts_), 0.0F);
    confidences_.clear();
    proposals_.clear();
    for (const DraftRequest& request : requests) {
      std::vector<int32_t> history = histories_.at(request.sequence);
      if (request.position < 0 || request.position >= static_cast<int32_t>(history.size())) {
        throw std::logic_error("draft at a position that has not run");
      }
      history.resize(static_cast<size_t>(request.position) + 1);
      history.push_back(request.anchor);
      for (int32_t place = 0; place < drafts_; ++place) {
        const int32_t token = chooser_(history, place);
        tokens_.push_back(token);
        if (request.filter.temperature > 0) proposals_.emplace_back().assign_certain(token);
      }
      confidences_.insert(confidences_.end(), confidence.begin(), confidence.end());
    }
    drafted_ += static_cast<int64_t>(requests.size());
    return {.tokens = tokens_, .confidence = confidences_, .proposals = proposals_};
  }

  std::vector<float> confidence;  // by place; 0 where there is none
  int64_t drafted() const { return drafted_; }

 private:
  int32_t drafts_;
  Chooser chooser_;
  std::map<int32_t, std::vector<int32_t>> histories_;
  std::vector<int32_t> tokens_;
  std::vector<float> confidences_;
  std::vector<TokenDistribution> proposals_;
  int64_t drafted_ = 0;
};

}  // namespace spark::engine
