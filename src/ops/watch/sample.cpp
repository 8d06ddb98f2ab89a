#include "ops/watch/sample.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "api/metric_names.h"
#include "api/prometheus.h"
#include "common/error.h"
#include "common/printable.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

namespace metric = api::metric;

constexpr size_t kMaxLine = 1000;

std::optional<double> real_number(std::string_view text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> count_of(std::string_view text) {
  return whole_number(std::string(text));
}

std::string_view take_word(std::string_view& rest) {
  const size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

// "watching" of "state=watching" when the key is `key`.
std::optional<std::string_view> value_for(std::string_view line, std::string_view key) {
  if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != '=') return std::nullopt;
  return line.substr(key.size() + 1);
}

class WatchReader {
 public:
  explicit WatchReader(const std::string& node) { sample_.node = node; }

  NodeSample read(std::string_view text) {
    const std::string clean = clean_text(text);
    bool begun = false, ended = false;
    for (size_t at = 0; at < clean.size();) {
      const size_t end = std::min(clean.find('\n', at), clean.size());
      const std::string_view line = std::string_view(clean).substr(at, std::min(end - at, kMaxLine));
      at = end + 1;
      begun |= line == "spark-watch 1";
      ended |= begun && line == "end";
      if (begun) take(line);
    }
    sample_.reachable = true;
    if (!begun || !ended) {
      NodeSample damaged{.node = sample_.node, .reachable = true};
      damaged.problem = "its answer is damaged";
      return damaged;
    }
    sample_.answer = WatchAnswer::kAnswered;
    settle_guard();
    settle_service();
    settle_api();
    return std::move(sample_);
  }

 private:
  void take(std::string_view line) {
    std::string_view rest = line;
    const std::string_view key = take_word(rest);
    if (key == "boot") sample_.boot = rest;
    if (key == "up") sample_.up_s = real_number(rest).value_or(0);
    if (key == "available") sample_.available_kib = count_of(rest);
    if (key == "total") sample_.total_kib = count_of(rest);
    if (key == "swapped") sample_.swapped_in_pages = count_of(rest);
    if (key == "pressure") sample_.pressure = real_number(rest);
    if (key == "hold") sample_.holds.emplace_back(rest);
    if (key == "container") container(rest);
    if (key == "unit") unit(rest);
    if (key == "gpu") gpu(rest);
    if (key == "guard") guard(rest);
    if (key == "api") api(rest);
    if (key == "process") {
      if (const auto pid = count_of(take_word(rest))) sample_.alive[*pid] = std::string(rest);
    }
  }

  void container(std::string_view rest) {
    const std::string_view what = take_word(rest);
    if (what == "fault") sample_.engine_problem = rest.empty() ? "does not answer" : std::string(rest);
    if (what == "absent") container_.state = ServiceState::kAbsent;
    if (what != "state") return;
    const std::string_view status = take_word(rest);
    const bool runs = status == "running" || status == "paused";
    container_.kind = "container";
    container_.state = runs ? ServiceState::kRunning : ServiceState::kStopped;
    container_.paused = status == "paused";
    container_.pid = count_of(take_word(rest)).value_or(0);
    const auto exit_code = count_of(take_word(rest));
    if (!runs) container_.exit_code = exit_code;
    container_.out_of_memory = take_word(rest) == "true";
    container_.started = rest;
  }

  void unit(std::string_view line) {
    if (const auto value = value_for(line, "LoadState"); value && *value == "not-found")
      unit_.state = ServiceState::kAbsent;
    if (const auto value = value_for(line, "MainPID")) unit_.pid = count_of(*value).value_or(0);
    if (const auto value = value_for(line, "ExecMainStatus")) unit_.exit_code = count_of(*value);
    if (const auto value = value_for(line, "ActiveEnterTimestampMonotonic")) unit_.started = *value;
    if (const auto value = value_for(line, "Result")) unit_.out_of_memory = *value == "oom-kill";
    if (const auto value = value_for(line, "ActiveState"); value && unit_.state != ServiceState::kAbsent) {
      unit_.kind = "unit";
      const bool runs = *value == "active" || *value == "activating" || *value == "reloading";
      unit_.state = runs ? ServiceState::kRunning : ServiceState::kStopped;
    }
  }

  void gpu(std::string_view rest) {
    if (take_word(rest) != "values") {
      sample_.gpu_problem = std::string(rest);
      return;
    }
    std::optional<double> values[4];
    for (auto& value : values) {
      const size_t comma = std::min(rest.find(','), rest.size());
      std::string_view field = rest.substr(0, comma);
      while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
      value = real_number(field);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    sample_.gpu = GpuSample{values[0], values[1], values[2], values[3]};
  }

  void guard(std::string_view line) {
    if (!sample_.guard) sample_.guard.emplace();
    GuardSample& guard = *sample_.guard;
    if (line == "alive") guard.alive = true;
    if (const auto value = value_for(line, "state")) guard.state = *value;
    if (const auto value = value_for(line, "reason")) guard.reason = *value;
    if (const auto value = value_for(line, "phase")) guard.phase = *value;
    if (const auto value = value_for(line, "threshold_kib")) guard.threshold_kib = count_of(*value);
    if (const auto value = value_for(line, "interval_ms")) guard.interval_ms = count_of(*value);
    if (const auto value = value_for(line, "minimum_kib")) guard.minimum_kib = count_of(*value);
    if (const auto value = value_for(line, "sampled_ms")) sampled_ms_ = count_of(*value);
    if (const auto value = value_for(line, "pid")) guarded_pid_ = count_of(*value).value_or(0);
    if (const auto value = value_for(line, "boot")) guard_boot_ = *value;
  }

  void api(std::string_view rest) {
    if (rest.starts_with("unasked ")) return;
    if (!sample_.api) sample_.api.emplace();
    if (rest.starts_with("fault ")) sample_.api->problem = std::string(rest.substr(6));
    if (rest.starts_with("http ")) {
      status_ = std::string(rest.substr(5));
    } else if (!rest.starts_with("fault ")) {
      page_ += std::string(rest) + "\n";
    }
  }

  // A status of an earlier boot says nothing; so does one without a sample.
  void settle_guard() {
    if (!sample_.guard) return;
    if (sample_.guard->state.empty() || (!guard_boot_.empty() && guard_boot_ != sample_.boot)) {
      sample_.guard.reset();
      guarded_pid_ = 0;
      return;
    }
    if (sampled_ms_ && sample_.up_s > 0)
      sample_.guard->silent_s = std::max(0.0, sample_.up_s - static_cast<double>(*sampled_ms_) / 1000);
  }

  // A container or unit that is there; else the process that the guard holds, which is how a service without
  // either is known; else whatever is certain.
  void settle_service() {
    if (unit_.state == ServiceState::kRunning) unit_.exit_code.reset();
    const bool running = container_.state == ServiceState::kRunning;
    if (!running && unit_.state == ServiceState::kRunning) {
      sample_.service = unit_;
    } else if (!container_.kind.empty()) {
      sample_.service = container_;
    } else if (const auto held = sample_.alive.find(guarded_pid_); held != sample_.alive.end()) {
      sample_.service = {.state = ServiceState::kRunning, .kind = "process", .started = held->second};
      sample_.service.pid = guarded_pid_;
    } else if (!unit_.kind.empty()) {
      sample_.service = unit_;
    } else if (container_.state == ServiceState::kAbsent || unit_.state == ServiceState::kAbsent) {
      // An engine that does not answer may hold the container.
      if (sample_.engine_problem.empty()) sample_.service.state = ServiceState::kAbsent;
    } else if (guarded_pid_ > 0 && sample_.engine_problem.empty()) {
      sample_.service = {.state = ServiceState::kStopped, .kind = "process"};
    } else if (sample_.engine_problem.empty()) {
      sample_.service.state = ServiceState::kAbsent;
    }
  }

  void settle_api() {
    if (!sample_.api || !sample_.api->problem.empty()) return;
    ApiSample& api = *sample_.api;
    if (status_ != "200") {
      api.problem = status_.empty() ? "its answer is damaged" : "answers with HTTP status " + status_;
      if (status_ == "401" || status_ == "403")
        api.problem += ": it wants another key; set SPARK_API_KEY, or engine.secret_environment_file";
      return;
    }
    try {
      const api::MetricsPage page = api::parse_metrics(page_);
      api.running = page.sum(metric::kRequestsRunning);
      api.waiting = page.sum(metric::kRequestsWaiting);
      const std::string steps = std::string(metric::kIterationTokens) + "_count";
      for (const std::string& name :
           {std::string(metric::kGenerationTokens), std::string(metric::kPromptTokens),
            std::string(metric::kPrefillBacklog), steps}) {
        if (const auto value = page.sum(name)) api.progress[name] = *value;
      }
    } catch (const Error& error) {
      api.problem = "its metrics cannot be read: " + error.describe();
    }
  }

  NodeSample sample_;
  ServiceSample container_, unit_;
  std::optional<int64_t> sampled_ms_;
  int64_t guarded_pid_ = 0;
  std::string guard_boot_, status_, page_;
};

}  // namespace

NodeSample read_watch_answer(const std::string& node, std::string_view text) {
  return WatchReader(node).read(text);
}

}  // namespace spark::ops
