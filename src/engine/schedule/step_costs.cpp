#include "engine/schedule/step_costs.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "common/clock.h"
#include "common/error.h"

namespace spark::engine {
namespace {

constexpr int32_t kPrompt = 8;  // tokens of a sequence before what is measured

// 1, 2, 3, 4, 6, 8, 12, 16, ... and the end itself.
std::vector<int32_t> ladder(int32_t end) {
  std::vector<int32_t> sizes;
  for (int32_t power = 1; power <= end; power *= 2) {
    sizes.push_back(power);
    if (power >= 2 && power + power / 2 < end) sizes.push_back(power + power / 2);
  }
  if (!sizes.empty() && sizes.back() != end) sizes.push_back(end);
  return sizes;
}

class Measurement {
 public:
  Measurement(StepModel& model, const CostMeasurement& options) : model_(model), options_(options) {
    options_.max_sequences = std::min(options.max_sequences, model.max_sequences());
    options_.max_drafts = std::min({options.max_drafts, model.max_drafts(), model.max_rollback() - 1,
                                    model.max_context() - kPrompt - 1});
  }
  ~Measurement() {
    for (int32_t slot = 0; slot < open_; ++slot) model_.close_sequence(slot);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  StepCosts take() {
    StepCosts costs;
    if (options_.max_drafts < 1) return costs;
    const int32_t each = 1 + options_.max_drafts;
    costs.verify = curve(std::min(options_.max_sequences * each, model_.max_step_rows()), [&](int32_t rows) {
      open((rows + each - 1) / each);
      return [this, step = step_of(rows, each)] { model_.run(step); };
    });
    costs.draft = curve(options_.max_sequences, [&](int32_t count) {
      open(count);
      return [this, requests = requests_of(count)] { model_.draft(requests); };
    });
    return costs;
  }

 private:
  template <class Prepare>
  CostCurve curve(int32_t end, const Prepare& prepare) {
    std::vector<CostPoint> points;
    for (const int32_t size : ladder(end)) {
      try {
        points.push_back({static_cast<double>(size), least_seconds(prepare(size))});
      } catch (const Error&) {
        if (points.empty()) throw;
        break;
      }
    }
    return CostCurve(std::move(points));
  }

  double least_seconds(const std::function<void()>& work) const {
    work();  // what the first call of a size sets up is not its cost
    double least = 0, spent = 0;
    for (int32_t i = 0; i < 3 || (i < options_.repetitions && spent < options_.seconds_a_size); ++i) {
      const double begin = monotonic_s();
      work();
      const double seconds = monotonic_s() - begin;
      least = i == 0 ? seconds : std::min(least, seconds);
      spent += seconds;
    }
    return least;
  }

  void open(int32_t count) {
    for (; open_ < count; ++open_) {
      model_.open_sequence(open_);
      try {
        std::vector<StepRow> rows;
        for (int32_t i = 0; i < kPrompt; ++i) {
          rows.push_back({.sequence = open_, .token = token(open_, i), .position = i});
          if (i + 1 < kPrompt && static_cast<int32_t>(rows.size()) < model_.max_step_rows()) continue;
          model_.run(rows);
          rows.clear();
        }
      } catch (...) {
        model_.close_sequence(open_);
        throw;
      }
    }
  }

  // Different everywhere, so that rows go to different experts.
  int32_t token(int32_t sequence, int32_t position) const {
    return static_cast<int32_t>((int64_t{sequence} * 7919 + int64_t{position} * 104729 + 13) %
                                model_.vocab_size());
  }

  std::vector<StepRow> step_of(int32_t rows, int32_t each) const {
    std::vector<StepRow> step;
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t sequence = i / each, position = kPrompt + i % each;
      step.push_back({.sequence = sequence,
                      .token = token(sequence, position),
                      .position = position,
                      .wants_logits = true});
    }
    return step;
  }

  std::vector<DraftRequest> requests_of(int32_t count) const {
    std::vector<DraftRequest> requests;
    for (int32_t sequence = 0; sequence < count; ++sequence) {
      DraftRequest request{.sequence = sequence, .anchor = token(sequence, kPrompt), .position = kPrompt - 1};
      if (options_.drawn) {
        request.filter.temperature = 1;
        request.uniforms.fill(0.5);
      }
      requests.push_back(request);
    }
    return requests;
  }

  StepModel& model_;
  CostMeasurement options_;
  int32_t open_ = 0;
};

std::string list_of(const CostCurve& curve) {
  std::string out = "[";
  for (const CostPoint& point : curve.points()) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s[%.0f, %.3f]", out.size() > 1 ? ", " : "", point.size,
                  point.seconds * 1e3);
    out += text;
  }
  return out + "]";
}

}  // namespace

CostCurve::CostCurve(std::vector<CostPoint> points) : points_(std::move(points)) {
  std::sort(points_.begin(), points_.end(),
            [](const CostPoint& a, const CostPoint& b) { return a.size < b.size; });
  for (size_t i = points_.size(); i > 1; --i) {
    points_[i - 2].seconds = std::min(points_[i - 2].seconds, points_[i - 1].seconds);
  }
}

double CostCurve::at(double size) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || size <= points_.front().size) return points_.front().seconds;
  const auto after = std::find_if(points_.begin() + 1, points_.end() - 1,
                                  [size](const CostPoint& point) { return point.size >= size; });
  const CostPoint& high = *after;
  const CostPoint& low = *(after - 1);
  const double share = (size - low.size) / std::max(high.size - low.size, 1e-9);
  return low.seconds + share * (high.seconds - low.seconds);
}

std::string StepCosts::describe() const {
  return "verify " + list_of(verify) + " draft " + list_of(draft) + " (tokens or requests, ms)";
}

StepCosts measure_step_costs(StepModel& model, const CostMeasurement& options) {
  return Measurement(model, options).take();
}

}  // namespace spark::engine
