#include "ops/launch/render.h"

#include "ops/site/node_environment.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

// Reads a file of variables, then becomes the program: "$0" is the file, "$@" the command.
constexpr const char* kWithSecrets = "set -a; . \"$0\"; set +a; exec \"$@\"";

void refuse_faults(const Site& site) {
  if (site.profile_loaded && site.nodes_loaded && site.profile.transport != nullptr && site.faults.empty())
    return;
  throw_if_any_fault(site);
  throw Error("\"" + site.profile.transport_name + "\" is not a transport", "fabric.transport",
              "run `spark doctor` and correct what it names");
}

std::vector<Mount> mounts_with_model(const Site& site, const std::string& model_dir) {
  std::vector<Mount> mounts = site.profile.container.mounts;
  if (model_dir.empty()) return mounts;
  for (Mount& mount : mounts) {
    if (mount.destination == site.engine.model_path) {
      mount.source = model_dir;
      return mounts;
    }
  }
  throw Error("no mount has the destination " + site.engine.model_path, "container.mounts",
              "without such a mount another checkpoint folder cannot take its place");
}

void add_rank_arguments(const ClusterProfile& profile, const Node& node,
                        std::vector<std::string>& arguments) {
  const std::vector<std::string> added = rank_arguments(profile, node);
  arguments.insert(arguments.end(), added.begin(), added.end());
}

std::vector<std::string> docker_run(const Site& site, const RankLaunch& launch,
                                    const std::string& model_dir) {
  const ContainerSpec& container = site.profile.container;
  std::vector<std::string> words = {"docker", "run", "-d", "--name", container.name};
  words.insert(words.end(), container.docker_run_args.begin(), container.docker_run_args.end());
  if (!launch.secret_environment_file.empty())
    words.push_back("--env-file=" + launch.secret_environment_file);
  for (const auto& [name, value] : launch.environment) {
    words.emplace_back("--env");
    words.push_back(name + "=" + value);
  }
  for (const Mount& mount : mounts_with_model(site, model_dir)) {
    words.emplace_back("--volume");
    words.push_back(mount.source + ":" + mount.destination + ":" + mount.mode);
  }
  words.push_back(container.image);
  words.insert(words.end(), launch.server_arguments.begin(), launch.server_arguments.end());
  return words;
}

std::string interval_text(double seconds) {
  return Json(seconds).dump();
}

std::vector<std::pair<std::string, std::string>> guard_environment(const RankLaunch& launch) {
  return {{"CONTAINER_NAME", launch.service},
          {"INTERVAL", interval_text(launch.guard.interval_seconds)},
          {"MEMGUARD_PHASE", guard_phase_name(launch.guard.phase)},
          {"THRESHOLD_GIB", std::to_string(launch.guard.threshold_gib)},
          {"WAIT_FOR_CONTAINER_SECONDS", std::to_string(launch.guard.wait_seconds)}};
}

std::string guard_program(const RankLaunch& launch) {
  return launch.working_directory + "/bin/spark-guard";
}

std::string percent_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '%' ? "%%" : std::string(1, c);
  return result;
}

std::string environment_line(const std::string& name, const std::string& value) {
  std::string quoted;
  for (const char c : name + "=" + value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return "Environment=\"" + percent_escaped(quoted) + "\"\n";
}

std::string exec_line(const char* key, const std::vector<std::string>& words) {
  std::string line = std::string(key) + "=";
  for (size_t i = 0; i < words.size(); ++i) line += (i == 0 ? "" : " ") + systemd_quote(words[i]);
  return line + "\n";
}

// As root: a cgroup of another user's container can be killed without asking the container engine. "notify":
// started means that the first sample was taken. A crash or a hang restarts the guard; having killed (exit
// code 1) does not.
constexpr const char* kGuardProperties[] = {"Type=notify",
                                            "OOMScoreAdjust=-1000",
                                            "LimitMEMLOCK=64M",
                                            "MemoryMin=64M",
                                            "CPUWeight=1000",
                                            "RuntimeDirectory=spark-guard",
                                            "RuntimeDirectoryPreserve=yes",
                                            "WatchdogSec=30",
                                            "SyslogIdentifier=spark-memguard",
                                            "Restart=on-failure",
                                            "RestartPreventExitStatus=1 2"};

std::string guard_unit(const RankLaunch& launch) {
  std::string text =
      "# /etc/systemd/system/" + launch.guard.unit + ".service\n[Unit]\nDescription=Memory guard of " +
      launch.service +
      "\nAfter=docker.service\n\n[Service]\nWorkingDirectory=" + percent_escaped(launch.working_directory) +
      "\n";
  for (const char* property : kGuardProperties) text += std::string(property) + "\n";
  for (const auto& [name, value] : guard_environment(launch)) text += environment_line(name, value);
  return text + exec_line("ExecStart", {guard_program(launch)});
}

std::string container_unit(const RankLaunch& launch) {
  std::vector<std::string> start = launch.command;
  start[0] = "/usr/bin/docker";
  return "Type=oneshot\nRemainAfterExit=yes\n" + exec_line("ExecStart", start) +
         exec_line("ExecStop", {"/usr/bin/docker", "stop", "--time", "60", launch.service});
}

std::string native_service(const RankLaunch& launch) {
  std::string text = "Type=exec\nUser=" + launch.ssh_user +
                     "\nWorkingDirectory=" + percent_escaped(launch.working_directory) + "\n";
  for (const auto& [name, value] : launch.environment) text += environment_line(name, value);
  if (!launch.secret_environment_file.empty()) {
    text += "EnvironmentFile=" + percent_escaped(launch.secret_environment_file) + "\n";
  }
  const std::string limit = std::to_string(launch.memory_max_gib) + "G";
  return text + "LimitMEMLOCK=infinity\nLimitRTPRIO=1\nMemoryMax=" + limit +
         "\nMemorySwapMax=0\nTimeoutStopSec=60\n" + exec_line("ExecStart", launch.command);
}

}  // namespace

const char* guard_phase_name(GuardPhase phase) {
  return phase == GuardPhase::kStartup ? "startup" : "steady";
}

GuardLaunch plan_guard(const ClusterProfile& profile, GuardPhase phase) {
  const HostSpec& host = profile.host;
  const std::string unit = profile.service_name() + "-memguard";
  if (phase == GuardPhase::kSteady)
    return {unit, phase, host.memguard_gib, host.memguard_interval_seconds, 0};
  return {unit, phase, host.startup_memguard_gib, host.startup_memguard_interval_seconds,
          host.startup_memguard_wait_seconds};
}

RankLaunch plan_launch(const Site& site, const Node& node, const LaunchOptions& options) {
  refuse_faults(site);
  const ClusterProfile& profile = site.profile;
  RankLaunch launch;
  launch.node = node.name;
  launch.ssh_user = site.nodes.ssh_user;
  launch.rank = node.rank;
  launch.head = node.head;
  launch.kind = profile.engine_kind;
  launch.service = profile.service_name();
  launch.secret_environment_file = profile.secret_environment_file;
  launch.working_directory = profile.deployment.path;
  launch.guard = plan_guard(profile, GuardPhase::kStartup);
  for (const auto& [name, variable] : node_environment(profile, site.nodes, node)) {
    launch.environment[name] = variable.value;
  }
  launch.server_arguments = profile.serve_args;
  add_rank_arguments(profile, node, launch.server_arguments);
  launch.systemd = profile.host.supervisor == "systemd";
  if (profile.in_container()) {
    launch.command = docker_run(site, launch, options.model_dir);
    return launch;
  }
  launch.runtime = launch.systemd ? LaunchRuntime::kUnit : LaunchRuntime::kProcess;
  launch.memory_max_gib = profile.native.memory_max_gib;
  if (!options.model_dir.empty()) launch.server_arguments.front() = options.model_dir;
  launch.command = {profile.native.program};
  launch.command.insert(launch.command.end(), launch.server_arguments.begin(), launch.server_arguments.end());
  return launch;
}

std::string launch_shell(const RankLaunch& launch) {
  std::vector<std::string> words;
  if (launch.runtime != LaunchRuntime::kContainer) {
    if (!launch.secret_environment_file.empty())
      words = {"sh", "-c", kWithSecrets, launch.secret_environment_file};
    if (!launch.environment.empty()) words.emplace_back("env");
    for (const auto& [name, value] : launch.environment) words.push_back(name + "=" + value);
  }
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

std::vector<std::string> guard_command(const RankLaunch& launch) {
  if (!launch.systemd) {
    std::vector<std::string> words = {"env"};
    for (const auto& [name, value] : guard_environment(launch)) words.push_back(name + "=" + value);
    words.push_back(guard_program(launch));
    return words;
  }
  std::vector<std::string> words = {"sudo",
                                    "-n",
                                    "systemd-run",
                                    "--quiet",
                                    "--unit=" + launch.guard.unit,
                                    "--collect",
                                    "--property=WorkingDirectory=" + launch.working_directory};
  for (const char* property : kGuardProperties) words.push_back(std::string("--property=") + property);
  for (const auto& [name, value] : guard_environment(launch))
    words.push_back("--setenv=" + name + "=" + value);
  words.push_back(guard_program(launch));
  return words;
}

std::vector<std::string> unit_command(const RankLaunch& launch) {
  std::vector<std::string> words = {"sudo", "-n", "systemd-run", "--quiet", "--unit=" + launch.service};
  const auto property = [&words](const std::string& text) { words.push_back("--property=" + text); };
  property("User=" + launch.ssh_user);
  property("WorkingDirectory=" + launch.working_directory);
  if (!launch.secret_environment_file.empty()) property("EnvironmentFile=" + launch.secret_environment_file);
  property("LimitMEMLOCK=infinity");
  property("LimitRTPRIO=1");  // signs of life between ranks
  property("MemoryMax=" + std::to_string(launch.memory_max_gib) + "G");
  property("MemorySwapMax=0");
  property("TimeoutStopSec=60");
  for (const auto& [name, value] : launch.environment) words.push_back("--setenv=" + name + "=" + value);
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  return words;
}

Json launch_json(const RankLaunch& launch) {
  Json guard = {{"unit", launch.guard.unit},
                {"phase", guard_phase_name(launch.guard.phase)},
                {"threshold_gib", launch.guard.threshold_gib},
                {"interval_seconds", launch.guard.interval_seconds},
                {"wait_seconds", launch.guard.wait_seconds},
                {"command", guard_command(launch)}};
  return {{"node", launch.node},
          {"rank", launch.rank},
          {"head", launch.head},
          {"engine", launch.kind == EngineKind::kVllm ? "vllm" : "native"},
          {"service", launch.service},
          {"command", launch.command},
          {"server_arguments", launch.server_arguments},
          {"environment", launch.environment},
          {"guard", std::move(guard)}};
}

std::string launch_systemd(const RankLaunch& launch) {
  const bool container = launch.runtime == LaunchRuntime::kContainer;
  const std::string guard = launch.guard.unit + ".service";
  std::string text = guard_unit(launch) + "\n# /etc/systemd/system/" + launch.service +
                     ".service\n[Unit]\nDescription=" + launch.service + ", rank " +
                     std::to_string(launch.rank) + " on " + launch.node + "\nRequires=" + guard +
                     "\nAfter=network-online.target " + guard + (container ? " docker.service" : "") +
                     "\n\n[Service]\n";
  return text + (container ? container_unit(launch) : native_service(launch));
}

std::string systemd_quote(const std::string& word) {
  std::string quoted;
  bool plain = !word.empty();
  for (const char c : word) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '%' || c == '$') quoted += c;
    quoted += c;
    const bool safe = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      std::string_view("@%+=:,./-_$").find(c) != std::string_view::npos;
    plain = plain && safe;
  }
  return plain ? quoted : "\"" + quoted + "\"";
}

}  // namespace spark::ops
