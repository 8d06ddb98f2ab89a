// The exact launch of one rank, as data, and as text that can be pasted, parsed or installed. Pure: the same
// site gives the same bytes.
//
//   RankLaunch launch = plan_launch(site, *site.nodes.find("node2"));
//   std::cout << launch_shell(launch) << "\n";   // docker run -d --name ... --node-rank 1 ... --headless
//
// vLLM: docker run -d --name NAME, docker_run_args, --env K=V sorted by name, --volume per mount, the image,
// the server's arguments, then rank, rendezvous and, on workers, --headless. Native: the program with its
// arguments, then rank and rendezvous; in a container when the profile has one (the image starts the
// program).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "ops/site/site.h"

namespace spark::ops {

enum class GuardPhase { kStartup, kSteady };

// What the memory guard of a node is started with.
struct GuardLaunch {
  std::string unit;  // without ".service"
  GuardPhase phase = GuardPhase::kStartup;
  int64_t threshold_gib = 0;
  double interval_seconds = 0;
  int64_t wait_seconds = 0;  // for the service to appear
};

struct LaunchOptions {
  std::string model_dir;  // on the node, instead of the profile's checkpoint; empty: as the profile says
};

// What a rank runs as: the guard watches it, stopping ends it.
enum class LaunchRuntime { kContainer, kUnit, kProcess };

struct RankLaunch {
  std::string node;
  std::string ssh_user;
  int64_t rank = 0;
  bool head = false;
  EngineKind kind = EngineKind::kVllm;
  LaunchRuntime runtime = LaunchRuntime::kContainer;
  bool systemd = true;                        // whether it keeps the guard (host.supervisor)
  std::string service;                        // container or unit
  std::vector<std::string> command;           // docker run ..., or the program with its arguments
  std::vector<std::string> server_arguments;  // what the container's command must equal
  std::map<std::string, std::string> environment;
  std::string secret_environment_file;
  std::string working_directory;  // the checkout on the node
  int64_t memory_max_gib = 0;     // native: limit of the unit
  GuardLaunch guard;              // armed before the launch
};

// The site must have loaded without faults in profile and node map (throws Error otherwise). An unknown
// transport is an Error as well.
RankLaunch plan_launch(const Site& site, const Node& node, const LaunchOptions& options = {});

GuardLaunch plan_guard(const ClusterProfile& profile, GuardPhase phase);

std::string launch_shell(const RankLaunch& launch);  // one line, quoted for a POSIX shell
Json launch_json(const RankLaunch& launch);
std::string launch_systemd(
    const RankLaunch& launch);  // guard and service units, each under a "# /etc/..." line

// The arming command of the guard, as an argument vector; without systemd the guard's program itself.
std::vector<std::string> guard_command(const RankLaunch& launch);
// The command that starts the rank as a transient unit (runtime kUnit).
std::vector<std::string> unit_command(const RankLaunch& launch);
const char* guard_phase_name(GuardPhase phase);

// One word of a unit file's ExecStart.
std::string systemd_quote(const std::string& word);

}  // namespace spark::ops
