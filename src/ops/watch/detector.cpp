#include "ops/watch/detector.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "common/printable.h"
#include "common/units.h"

namespace spark::ops {
namespace {

constexpr int64_t kMarginKib = int64_t{1} << 20;  // above the guard's threshold: worth a warning
constexpr double kMemoryWindow_s = 30;            // falls are measured over, and foreseen for, so long
constexpr int64_t kFallKib = int64_t{1} << 20;    // less is no fall
constexpr double kPressure = 10;                  // percent of time in which all tasks waited for memory
constexpr double kSwapIn_kib_s = 16 << 10;
constexpr double kServingClockMhz = 1000;  // a latched GB10 stays at 500 to 720 MHz; normal is about 2,400
constexpr double kBusy = 20;               // percent: below, a low clock is what idle GPUs have
constexpr double kHotGpu_c = 87;
constexpr double kHandOver_s = 60;  // from a healthy API to the steady guard
constexpr double kPageKib = 4;      // pswpin counts at least this much per page

struct CheckRow {
  const char* id;
  WatchSeverity severity;
  int confirm;
};

constexpr CheckRow kChecks[] = {
    {"node.answer", WatchSeverity::kError, 1},
    {"container.engine", WatchSeverity::kError, 1},
    {"service.running", WatchSeverity::kError, 1},
    {"guard.armed", WatchSeverity::kError, 1},
    {"guard.phase", WatchSeverity::kWarning, 1},
    {"memory.margin", WatchSeverity::kWarning, 1},
    {"memory.pressure", WatchSeverity::kWarning, 2},
    {"gpu.answer", WatchSeverity::kError, 2},
    {"gpu.clock", WatchSeverity::kError, 3},
    {"gpu.heat", WatchSeverity::kWarning, 2},
    {"api.answer", WatchSeverity::kError, 2},
    {"tokens.moving", WatchSeverity::kError, 1},
    {"hold", WatchSeverity::kWarning, 1},
};

const CheckRow& row_of(std::string_view id) {
  const auto found = std::find_if(std::begin(kChecks), std::end(kChecks),
                                  [id](const CheckRow& row) { return row.id == id; });
  SPARK_CHECK(found != std::end(kChecks));
  return *found;
}

Look good() {
  return {LookState::kGood, {}, {}};
}
Look bad(std::string kind, std::string text) {
  return {LookState::kBad, std::move(kind), std::move(text)};
}
Look unknown() {
  return {};
}

std::string gib(int64_t kib) {
  return format_fixed(static_cast<double>(kib) / (1 << 20), 1) + " GiB";
}
std::string whole_seconds(double seconds) {
  return format_fixed(std::max(seconds, 0.0), 0) + " s";
}

std::string utc(double time_s) {
  const auto whole = static_cast<time_t>(std::floor(time_s));
  tm parts = {};
  ::gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string how_it_ended(const ServiceSample& service) {
  if (service.out_of_memory) return "was killed by the kernel for want of memory";
  if (!service.exit_code) return "has ended";
  std::string text = "ended with exit code " + std::to_string(*service.exit_code);
  if (*service.exit_code == 137) text += " (killed)";
  if (*service.exit_code == 143) text += " (asked to stop)";
  return text;
}

const char* severity_name(WatchSeverity severity) {
  constexpr const char* kNames[] = {"note", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

}  // namespace

WatchSettings watch_settings(const Site& site) {
  WatchSettings settings;
  if (const Node* head = site.nodes.head()) settings.head = head->name;
  settings.service = site.profile.service_name();
  settings.startup_s = static_cast<double>(site.profile.deployment.ready_timeout_seconds);
  settings.threshold_kib = site.profile.host.memguard_gib << 20;
  settings.spark_hardware = site.profile.host.hardware == "spark";
  return settings;
}

std::vector<WatchChange> WatchDetector::observe(const WatchSample& sample) {
  now_s_ = sample.monotonic_s;
  wall_s_ = sample.time_s;
  undecided_ = false;
  changes_.clear();
  // The head first: what the API says decides how clocks of all nodes are judged.
  std::vector<const NodeSample*> order;
  for (const NodeSample& node : sample.nodes) order.push_back(&node);
  std::stable_partition(order.begin(), order.end(),
                        [this](const NodeSample* node) { return node->node == settings_.head; });
  for (const NodeSample* node : order) observe_node(*node);
  return std::move(changes_);
}

std::vector<WatchChange> WatchDetector::standing() const {
  std::vector<WatchChange> all;
  for (const auto& [place, condition] : conditions_) {
    if (!condition.bad()) continue;
    all.push_back({wall_s_, place.first, place.second, row_of(place.second).severity, ConditionChange::kBegan,
                   condition.text(), 0});
  }
  return all;
}

void WatchDetector::look(const NodeSample& node, const char* check, const Look& seen) {
  const CheckRow& row = row_of(check);
  const auto place = std::make_pair(node.node, std::string(check));
  auto found = conditions_.find(place);
  if (found == conditions_.end()) {
    const ConditionRules rules{.confirm = settings_.at_once ? 1 : row.confirm};
    found = conditions_.emplace(place, Condition(rules)).first;
  }
  if (auto report = found->second.look(now_s_, seen)) {
    changes_.push_back(
        {wall_s_, node.node, check, row.severity, report->change, std::move(report->text), report->lasted_s});
  }
}

void WatchDetector::note(const NodeSample& node, const char* check, std::string text) {
  changes_.push_back(
      {wall_s_, node.node, check, WatchSeverity::kNote, ConditionChange::kBegan, std::move(text), 0});
}

void WatchDetector::observe_node(const NodeSample& node) {
  NodeState& state = nodes_[node.node];
  look(node, "node.answer", look_at_answer(node));
  if (node.node == settings_.head && (node.answer != WatchAnswer::kAnswered || !node.api))
    requests_run_ = false;
  if (node.answer != WatchAnswer::kAnswered) return;
  note_restarts(node, state);
  look(node, "container.engine",
       node.engine_problem.empty() ? good() : bad("silent", "the container engine " + node.engine_problem));
  look(node, "service.running", look_at_service(node, state));
  look(node, "guard.armed", look_at_guard(node));
  look(node, "memory.margin", look_at_memory(node, state));
  look(node, "memory.pressure", look_at_pressure(node, state));
  if (node.api) {
    look(node, "api.answer", look_at_api(node, state));
    look(node, "tokens.moving", look_at_tokens(node, state));
  }
  look(node, "guard.phase", look_at_phase(node, state));
  if (settings_.spark_hardware) {
    look(node, "gpu.answer", node.gpu ? good() : bad("silent", node.gpu_problem));
    look(node, "gpu.clock", look_at_clock(node));
    look(node, "gpu.heat", look_at_heat(node));
  }
  std::string holds;
  for (const std::string& file : node.holds) holds += (holds.empty() ? "" : ", ") + file;
  look(node, "hold", holds.empty() ? good() : bad(holds, "is held: " + holds));
}

void WatchDetector::note_restarts(const NodeSample& node, NodeState& state) {
  const bool rebooted = !state.boot.empty() && !node.boot.empty() && node.boot != state.boot;
  if (rebooted) note(node, "node.rebooted", "has booted again, " + whole_seconds(node.up_s) + " ago");
  if (!node.boot.empty()) state.boot = node.boot;
  const ServiceSample& service = node.service;
  if (service.state != ServiceState::kRunning) return;
  // Told by someone else than last time, say the guard while Docker hangs: the same process is no restart.
  const bool same = service.kind == state.service.kind ? service.started == state.service.started
                                                       : service.pid == state.service.pid;
  const bool other = state.ran && !same;
  if (other && !conditions_.at({node.node, "service.running"}).bad())
    note(node, "service.restarted", settings_.service + " was started anew between two looks");
  if (other || rebooted) {
    state.startup_since_s = state.healthy_since_s = state.progress_s = -1;
    state.progress.clear();
  }
  if (rebooted) state.swapped_at_s = -1;
  state.service = service;
  state.ran = true;
}

Look WatchDetector::look_at_answer(const NodeSample& node) const {
  switch (node.answer) {
    case WatchAnswer::kAnswered:
      return good();
    case WatchAnswer::kPending:
      return bad("silent", "has given no answer for " + format_fixed(node.pending_s, 1) + " s");
    case WatchAnswer::kFailed:
      return bad("silent", node.problem);
  }
  return unknown();
}

Look WatchDetector::look_at_service(const NodeSample& node, const NodeState& state) const {
  const ServiceSample& service = node.service;
  switch (service.state) {
    case ServiceState::kRunning:
      if (service.paused) return bad("paused", settings_.service + " is paused");
      return good();
    case ServiceState::kStopped:
      return bad("stopped", settings_.service + " " + how_it_ended(service));
    case ServiceState::kAbsent:
      return bad("absent", state.ran ? settings_.service + " is gone" : settings_.service + " is not there");
    case ServiceState::kUnknown: {
      // Who could tell does not answer, but its first process was known.
      if (!state.ran || state.service.pid <= 0) return unknown();
      const auto found = node.alive.find(state.service.pid);
      if (found == node.alive.end())
        return bad("process-gone", "the first process of " + settings_.service + ", " +
                                       std::to_string(state.service.pid) + ", is gone");
      return unknown();
    }
  }
  return unknown();
}

Look WatchDetector::look_at_guard(const NodeSample& node) const {
  if (!node.guard) {
    if (node.service.state != ServiceState::kRunning) return good();  // nothing to guard
    return bad("absent", "no memory guard runs beside " + settings_.service);
  }
  const GuardSample& guard = *node.guard;
  const std::string least =
      guard.minimum_kib ? "; the least available was " + gib(*guard.minimum_kib) : std::string();
  if (guard.state == "killed")
    return bad("killed", "the memory guard has killed " + settings_.service + ": " + guard.reason + least);
  if (guard.state == "kill-failed")
    return bad("kill-failed", "the memory guard could not kill " + settings_.service + least);
  const bool serving = node.service.state == ServiceState::kRunning;
  if (guard.state == "gave-up") {
    if (!serving) return bad("gave-up", "the memory guard gave up: " + guard.reason);
    return bad("absent",
               "the memory guard gave up (" + guard.reason + "), and " + settings_.service + " runs");
  }
  const bool at_work = guard.state == "watching" || guard.state == "waiting";
  if (!at_work || !guard.alive) {
    if (!serving) return good();
    return bad("absent", "no memory guard runs beside " + settings_.service + ": the last one " +
                             (at_work                    ? "died"
                              : guard.state == "stopped" ? "was stopped"
                                                         : guard.state));
  }
  const double patience = std::max(5.0, 3 * static_cast<double>(guard.interval_ms.value_or(0)) / 1000);
  if (guard.silent_s && *guard.silent_s > patience)
    return bad("hung", "the memory guard has taken no sample for " + whole_seconds(*guard.silent_s));
  return good();
}

Look WatchDetector::look_at_phase(const NodeSample& node, NodeState& state) {
  if (!node.guard || node.guard->phase != "startup" || node.service.state != ServiceState::kRunning) {
    state.startup_since_s = -1;
    return good();
  }
  if (state.startup_since_s < 0) state.startup_since_s = now_s_;
  const auto head = nodes_.find(settings_.head);
  const double healthy_since = head == nodes_.end() ? -1 : head->second.healthy_since_s;
  if (healthy_since >= 0 && now_s_ - std::max(healthy_since, state.startup_since_s) > kHandOver_s) {
    return bad("not-handed-over", "the memory guard is still in its startup phase, " +
                                      whole_seconds(now_s_ - healthy_since) + " after the API was healthy");
  }
  const double lasts = now_s_ - state.startup_since_s;
  if (settings_.startup_s > 0 && lasts > settings_.startup_s && healthy_since < 0)
    return bad("too-long", "has been starting for more than " + whole_seconds(settings_.startup_s));
  return good();
}

Look WatchDetector::look_at_memory(const NodeSample& node, NodeState& state) const {
  if (!node.available_kib) return unknown();
  const int64_t available = *node.available_kib;
  state.memory.emplace_back(now_s_, available);
  while (state.memory.front().first < now_s_ - kMemoryWindow_s) state.memory.pop_front();
  int64_t threshold = settings_.threshold_kib;
  bool starting = false;
  if (node.guard && node.guard->alive) {
    threshold = node.guard->threshold_kib.value_or(threshold);
    starting = node.guard->phase == "startup";
  }
  const auto place = conditions_.find({node.node, "memory.margin"});
  const bool was_bad = place != conditions_.end() && place->second.bad();
  const std::string limit = "the guard's threshold of " + gib(threshold);
  if (available < threshold) return bad("below", gib(available) + " available, below " + limit);
  // Half as much again before it is well: a value at the edge shall not come and go.
  const int64_t margin = was_bad ? kMarginKib + kMarginKib / 2 : kMarginKib;
  if (available < threshold + margin) return bad("near", gib(available) + " available, near " + limit);
  // Loading weights takes memory fast and then stops: only a service that has started is foreseen.
  const auto [then_s, then_kib] = state.memory.front();
  const double span = now_s_ - then_s;
  const int64_t fall = then_kib - available;
  if (starting || node.service.state != ServiceState::kRunning || span < 2 * settings_.interval_s ||
      fall < kFallKib)
    return good();
  const double left_s = static_cast<double>(available - threshold) / static_cast<double>(fall) * span;
  if (left_s > kMemoryWindow_s) return good();
  return bad("falling", gib(available) + " available, " + gib(fall) + " less than " + whole_seconds(span) +
                            " ago: at this rate " + limit + " is reached in " + whole_seconds(left_s));
}

Look WatchDetector::look_at_pressure(const NodeSample& node, NodeState& state) const {
  double rate_kib_s = 0;
  if (node.swapped_in_pages) {
    const double span = now_s_ - state.swapped_at_s;
    if (state.swapped_at_s >= 0 && span > 0 && *node.swapped_in_pages > state.swapped_pages)
      rate_kib_s = kPageKib * static_cast<double>(*node.swapped_in_pages - state.swapped_pages) / span;
    state.swapped_at_s = now_s_;
    state.swapped_pages = *node.swapped_in_pages;
  }
  if (node.pressure && *node.pressure >= kPressure)
    return bad("stalls", "everything waits for memory " + format_fixed(*node.pressure, 0) + " % of the time");
  if (rate_kib_s >= kSwapIn_kib_s)
    return bad("swaps", "reads " + format_fixed(rate_kib_s / 1024, 0) + " MiB/s back from swap");
  if (!node.pressure && !node.swapped_in_pages) return unknown();
  return good();
}

Look WatchDetector::look_at_clock(const NodeSample& node) const {
  if (!node.gpu || !node.gpu->clock_mhz || !requests_run_) return unknown();
  if (node.gpu->utilisation && *node.gpu->utilisation < kBusy) return unknown();
  if (*node.gpu->clock_mhz >= kServingClockMhz) return good();
  std::string text = "the GPU runs at " + format_fixed(*node.gpu->clock_mhz, 0) + " MHz";
  if (node.gpu->power_w) text += " and " + format_fixed(*node.gpu->power_w, 1) + " W";
  return bad("low", text + " while requests run: its clock is latched (take AC power off for some minutes)");
}

Look WatchDetector::look_at_heat(const NodeSample& node) const {
  if (!node.gpu || !node.gpu->temperature_c) return unknown();
  if (*node.gpu->temperature_c < kHotGpu_c) return good();
  return bad("hot", "the GPU has " + format_fixed(*node.gpu->temperature_c, 0) + " degrees Celsius");
}

Look WatchDetector::look_at_api(const NodeSample& node, NodeState& state) const {
  if (node.api->problem.empty()) {
    if (state.healthy_since_s < 0) state.healthy_since_s = now_s_;
    return good();
  }
  if (node.service.state != ServiceState::kRunning) return unknown();  // service.running says it
  // While it starts there is no API yet; guard.phase says when that takes too long.
  const bool starting = node.guard && node.guard->phase == "startup" && state.healthy_since_s < 0;
  if (starting) return unknown();
  return bad("silent", "the API " + node.api->problem);
}

Look WatchDetector::look_at_tokens(const NodeSample& node, NodeState& state) {
  const ApiSample& api = *node.api;
  requests_run_ = api.problem.empty() && api.running.value_or(0) > 0;
  if (!api.problem.empty() || !api.running) return unknown();
  const double requests = *api.running + api.waiting.value_or(0);
  const bool moved = api.progress != state.progress;
  if (requests <= 0 || state.progress_s < 0 || moved) {
    undecided_ = undecided_ || (requests > 0 && state.progress_s < 0);
    state.progress_s = now_s_;
    state.progress = api.progress;
    return good();
  }
  const double still_s = now_s_ - state.progress_s;
  if (still_s < settings_.frozen_s) {
    undecided_ = true;
    return good();
  }
  return bad("frozen", "frozen: " + format_fixed(*api.running, 0) + " requests run and " +
                           format_fixed(api.waiting.value_or(0), 0) + " wait, and no token for " +
                           whole_seconds(still_s));
}

std::string watch_line(const WatchChange& change) {
  std::string word, text;
  switch (change.change) {
    case ConditionChange::kBegan:
    case ConditionChange::kChanged:
      word = change.severity == WatchSeverity::kError     ? "ERROR"
             : change.severity == WatchSeverity::kWarning ? "WARN"
                                                          : "note";
      text = change.text;
      break;
    case ConditionChange::kEnded:
      word = "ok";
      text = "in order again after " + whole_seconds(change.lasted_s);
      break;
    case ConditionChange::kFlaps:
      word = change.severity == WatchSeverity::kError ? "ERROR" : "WARN";
      text = "comes and goes (" + change.text + "); silent until it stays";
      break;
  }
  return utc(change.time_s) + " " + word + " " + change.node + " " + change.check + ": " + one_line(text);
}

Json watch_json(const WatchChange& change) {
  constexpr const char* kChanges[] = {"began", "changed", "ended", "flaps"};
  Json line = {{"time", utc(change.time_s)},
               {"node", change.node},
               {"check", change.check},
               {"severity", severity_name(change.severity)},
               {"change", kChanges[static_cast<size_t>(change.change)]},
               {"text", change.text}};
  if (change.change == ConditionChange::kEnded) line["lasted_s"] = change.lasted_s;
  return line;
}

}  // namespace spark::ops
