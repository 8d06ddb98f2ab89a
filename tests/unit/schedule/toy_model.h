// A model for tests of what stands around a model: logits are a hash of the tokens so far, or favour what a
// script says. It checks the contract of StepModel on the way and throws std::logic_error when the caller
// breaks it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/error.h"
#include "engine/forward/step_model.h"

namespace spark::engine {

class ToyModel : public StepModel {
 public:
  struct Shape {
    int32_t vocab = 640;
    int32_t sequences = 4;
    int32_t context = 512;
    int32_t rows = 64;
  };
  // The token to favour after these, or -1 for none.
  using Script = std::function<int32_t(std::span<const int32_t>)>;

  ToyModel() : ToyModel(Shape{}) {}
  explicit ToyModel(Shape shape, Script script = {}) : shape_(shape), script_(std::move(script)) {}

  int32_t vocab_size() const override { return shape_.vocab; }
  int32_t max_sequences() const override { return shape_.sequences; }
  int32_t max_context() const override { return shape_.context; }
  int32_t max_step_rows() const override { return shape_.rows; }
  int32_t max_rollback() const override { return 31; }

  void open_sequence(int32_t slot) override {
    require(slot >= 0 && slot < shape_.sequences && !open_.contains(slot),
            "slot opened twice or out of range");
    if (fail_open.exchange(false)) throw Error("no room");
    open_[slot] = {};
    most_open_ = std::max(most_open_.load(), open_.size());
    ++opened_;
  }
  void close_sequence(int32_t slot) override {
    require(open_.erase(slot) == 1, "closed slot closed");
    ++closed_;
  }

  std::span<const float> run(std::span<const StepRow> rows) override {
    wait_while_held();
    if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
    require(!rows.empty() && rows.size() <= static_cast<size_t>(shape_.rows), "too many rows");
    logits_.clear();
    std::map<int32_t, size_t> last;
    for (size_t i = 0; i < rows.size(); ++i) {
      const StepRow& row = rows[i];
      require(open_.contains(row.sequence), "row of a closed slot");
      std::vector<int32_t>& history = open_[row.sequence];
      require(row.position <= static_cast<int32_t>(history.size()), "gap");
      require(row.position < shape_.context, "beyond the context");
      require(!last.contains(row.sequence) || last[row.sequence] + 1 == i, "rows of a sequence apart");
      require(row.token >= 0 && row.token < shape_.vocab, "token out of range");
      last[row.sequence] = i;
      history.resize(static_cast<size_t>(row.position));
      history.push_back(row.token);
      if (row.wants_logits) {
        const std::vector<float> row_logits = logits_after(history);
        logits_.insert(logits_.end(), row_logits.begin(), row_logits.end());
        if (poison) logits_[logits_.size() - row_logits.size()] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    ++steps_;
    if (fail_next.exchange(false)) throw Error("the disk is on fire");
    return logits_;
  }

  // What the model says after these tokens.
  std::vector<float> logits_after(std::span<const int32_t> history) const {
    uint64_t hash = 1;
    for (const int32_t token : history) hash = mix(hash * 31 + static_cast<uint64_t>(token) + 7);
    std::vector<float> logits;
    for (int32_t v = 0; v < shape_.vocab; ++v) {
      logits.push_back(static_cast<float>(mix(hash + static_cast<uint64_t>(v) * 0x9E3779B97F4A7C15u) >> 40) *
                       0x1p-21f);
    }
    const int32_t favourite = script_ ? script_(history) : -1;
    if (favourite >= 0) logits[static_cast<size_t>(favourite)] = 60.0f;
    return logits;
  }

  // While held, a step waits.
  void hold(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }
  bool step_waits() const { return waits_; }

  std::chrono::microseconds step_time{0};
  std::atomic<bool> fail_next{false};
  std::atomic<bool> fail_open{false};
  std::atomic<bool> poison{false};  // NaN logits

  int64_t steps() const { return steps_; }
  int64_t opened() const { return opened_; }
  int64_t closed() const { return closed_; }
  size_t most_open() const { return most_open_; }

 protected:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  void wait_while_held() {
    std::unique_lock lock(mutex_);
    waits_ = held_;
    changed_.wait(lock, [this] { return !held_; });
    waits_ = false;
  }
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  Shape shape_;
  Script script_;
  std::map<int32_t, std::vector<int32_t>> open_;
  std::vector<float> logits_;
  std::atomic<int64_t> steps_{0}, opened_{0}, closed_{0};
  std::atomic<size_t> most_open_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::atomic<bool> waits_{false};
};

}  // namespace spark::engine
