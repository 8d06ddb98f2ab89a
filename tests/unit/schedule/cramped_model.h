// A toy model with caches of so many blocks of 16 tokens: sequences run out of them, and what has been
// computed may be taken up by later sequences. It checks that the scheduler asks for room before it takes it.
#pragma once

#include <algorithm>

#include "unit/schedule/toy_model.h"

namespace spark::engine {

class CrampedModel : public ToyModel {
 public:
  static constexpr int32_t kBlock = 16;

  CrampedModel(Shape shape, int32_t blocks, bool caching = false)
      : ToyModel(shape), blocks_(blocks), caching_(caching) {}

  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    open_sequence(slot);
    require(!start.tokens.empty() && start.prompt_tokens >= 1, "nothing known of a sequence");
    require(start.prompt_tokens <= static_cast<int32_t>(start.tokens.size()),
            "a prompt longer than its tokens");
    ++started_;
    size_t cached = 0;
    for (const std::vector<int32_t>& text : caching_ ? computed_ : std::vector<std::vector<int32_t>>()) {
      size_t same = 0;
      while (same < text.size() && same + 1 < start.tokens.size() && text[same] == start.tokens[same]) ++same;
      cached = std::max(cached, same / kBlock * kBlock);
    }
    open_[slot].assign(start.tokens.begin(), start.tokens.begin() + static_cast<std::ptrdiff_t>(cached));
    cached_tokens_ += static_cast<int64_t>(cached);
    return static_cast<int32_t>(cached);
  }
  void close_sequence(int32_t slot) override {
    if (caching_) computed_.push_back(open_[slot]);
    ToyModel::close_sequence(slot);
  }
  bool has_room(std::span<const SequenceLength> lengths) const override {
    for (const SequenceLength& wanted : lengths) {
      const bool denied =
          open_.contains(wanted.sequence) && wanted.sequence == deny_slot && wanted.tokens == deny_at;
      if (denied && deny_once.exchange(false)) return false;
    }
    int32_t used = 0;
    for (const auto& [slot, text] : open_) {
      auto tokens = static_cast<int32_t>(text.size());
      for (const SequenceLength& wanted : lengths) {
        if (wanted.sequence == slot) tokens = std::max(tokens, wanted.tokens);
      }
      used += blocks_for(tokens);
    }
    for (const SequenceLength& wanted : lengths) {
      if (!open_.contains(wanted.sequence)) used += blocks_for(wanted.tokens);
    }
    return used <= blocks_;
  }
  int32_t longest_sequence() const override { return std::min(max_context(), blocks_ * kBlock); }
  CacheOccupancy cache_occupancy() const override {
    CacheOccupancy out{.blocks = blocks_};
    for (const auto& [slot, text] : open_) out.held += blocks_for(static_cast<int32_t>(text.size()));
    return out;
  }
  std::span<const float> run(std::span<const StepRow> rows) override {
    if (before_step) before_step(rows);
    const auto logits = ToyModel::run(rows);
    int32_t used = 0;
    for (const auto& [slot, text] : open_) used += blocks_for(static_cast<int32_t>(text.size()));
    require(used <= blocks_, "a step took blocks that are not there");
    return logits;
  }

  std::function<void(std::span<const StepRow>)> before_step;  // on the engine's thread
  // Says once that there is no room for this open slot to reach this length.
  int32_t deny_slot = -1, deny_at = -1;
  mutable std::atomic<bool> deny_once{false};

  int64_t started() const { return started_; }
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  static int32_t blocks_for(int32_t tokens) { return (tokens + kBlock - 1) / kBlock; }

  int32_t blocks_;
  bool caching_;
  std::vector<std::vector<int32_t>> computed_;
  std::atomic<int64_t> started_{0}, cached_tokens_{0};
};

}  // namespace spark::engine
