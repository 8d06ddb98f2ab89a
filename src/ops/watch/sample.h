// One look at a cluster as typed values: what the watch script printed on every node, or why it did not.
//
//   NodeSample sample = read_watch_answer("node2", text);      // never throws
//   if (sample.answer == WatchAnswer::kAnswered && sample.service.state == ServiceState::kStopped) ...
//
// An empty optional means unknown, never "no".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spark::ops {

enum class WatchAnswer {
  kAnswered,
  kPending,  // asked, and nothing came yet
  kFailed,   // no session, or the script could not be run to its end
};

enum class ServiceState { kUnknown, kAbsent, kStopped, kRunning };

// The rank on a node: a container, a systemd unit, or the process that the guard holds.
struct ServiceSample {
  ServiceState state = ServiceState::kUnknown;
  std::string kind = {};     // "container", "unit", "process"; empty: none of them is known
  std::string started = {};  // differs between two starts
  int64_t pid = 0;           // its first process; 0: unknown
  std::optional<int64_t> exit_code = {};
  bool out_of_memory = false;  // ended by the kernel's OOM killer
  bool paused = false;
};

struct GuardSample {
  std::string state = {};  // as its status says: "watching", "killed", ...; empty: there is no status
  std::string reason = {}, phase = {};
  std::optional<int64_t> threshold_kib = {}, interval_ms = {}, minimum_kib = {};
  std::optional<double> silent_s = {};  // since its last sample
  bool alive = false;                   // its process exists
};

struct GpuSample {
  std::optional<double> clock_mhz, power_w, utilisation, temperature_c;
};

struct ApiSample {
  std::string problem = {};  // empty: it answered with its metrics
  std::optional<double> running, waiting;
  // Whatever moves when the engine does: tokens, steps, prompt tokens, what of prompts is left.
  std::map<std::string, double> progress = {};
};

struct NodeSample {
  std::string node = {};
  WatchAnswer answer = WatchAnswer::kFailed;
  std::string problem = {};  // of the other two
  double pending_s = 0;      // of kPending
  bool reachable = false;    // of kFailed: a session, but no whole answer
  std::string boot = {};
  double up_s = 0;
  std::optional<int64_t> available_kib = {}, total_kib = {};
  std::optional<int64_t> swapped_in_pages = {};  // since the boot
  std::optional<double> pressure = {};  // share of time in which every task waited for memory, of 10 s
  std::string engine_problem = {};      // of the container engine; empty: it answers, or is not needed
  ServiceSample service = {};
  std::optional<GuardSample> guard = {};
  std::optional<GpuSample> gpu = {};
  std::string gpu_problem = {};  // "is not installed" and the like
  std::vector<std::string> holds = {};
  std::optional<ApiSample> api = {};          // asked for on the head only
  std::map<int64_t, std::string> alive = {};  // processes asked for that exist, and when they began
};

struct WatchSample {
  double time_s = 0;       // seconds since 1970, to be printed: somebody may set that clock
  double monotonic_s = 0;  // spans are measured with this one
  std::vector<NodeSample> nodes;
};

NodeSample read_watch_answer(const std::string& node, std::string_view text);

}  // namespace spark::ops
