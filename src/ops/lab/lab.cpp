#include "ops/lab/lab.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"
#include "common/units.h"
#include "ops/lab/cgroups.h"
#include "ops/lab/directory.h"
#include "ops/lab/enter.h"
#include "ops/lab/holder.h"
#include "ops/lab/image.h"
#include "ops/lab/node_root.h"
#include "ops/lab/texts.h"
#include "ops/remote/remote.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr double kSetupSeconds = 20;

void require_root() {
  if (::geteuid() != 0) {
    throw Error("a lab needs root: it makes namespaces, mounts and cables", "spark lab",
                "sudo spark lab ...; everything else of spark runs without");
  }
}

void require_programs() {
  Faults faults;
  for (const auto& [program, package] : {std::pair{"/usr/sbin/sshd", "openssh-server"},
                                         {"/usr/bin/ssh-keygen", "openssh-client"},
                                         {"/usr/bin/nsenter", "util-linux"}}) {
    if (::access(program, X_OK) != 0)
      faults.push_back({program, std::string("is missing; it is in ") + package, ""});
  }
  if (::access("/usr/sbin/ip", X_OK) != 0 && ::access("/sbin/ip", X_OK) != 0 &&
      ::access("/usr/bin/ip", X_OK) != 0)
    faults.push_back({"ip", "is missing; it is in iproute2", ""});
  throw_if_any(faults, "spark lab", "script/bootstrap lab");
}

// Lets go of the shared SSH connections, so that no client waits for a peer that is gone.
void close_connections(const LabPlan& plan) {
  const std::string configuration = plan.path("ssh_config");
  if (!fs::exists(configuration)) return;
  Remote({.ssh_config = configuration}).close(remote_nodes(plan.map));
}

// Everything of a lab of this directory, whether its state is whole, part or absent.
bool clear(const std::string& directory) {
  bool found = false;
  std::optional<LabState> state;
  try {
    state = read_lab_state(directory);
  } catch (const Error&) {
    found = true;  // a damaged file: the cgroups name the processes as well
  }
  LabOptions any;
  any.directory = directory;
  LabPlan plan = state ? state->plan : plan_lab(any);
  if (const std::string id = marked_id(directory); !id.empty()) plan.id = id;
  if (state && state->boot_id == boot_id()) {
    found = true;
    close_connections(plan);
    std::vector<ProcessIdentity> processes = state->nodes;
    processes.push_back(state->network);
    const Cgroups cgroups = Cgroups::find();
    for (const LabNode& node : plan.nodes) {
      // A frozen process takes no signal under some kernels.
      if (cgroups.frozen(plan.cgroup() + "/" + node.name))
        cgroups.freeze(plan.cgroup() + "/" + node.name, false);
    }
    for (const ProcessIdentity& process : processes) {
      if (!kill_process(process, 10))
        throw Error("process " + std::to_string(process.pid) + " of the lab does not end", directory);
    }
  }
  if (!Cgroups::find().kill_and_remove(plan.cgroup()))
    throw Error("the cgroup " + plan.cgroup() + " of the lab cannot be removed", directory);
  for (const char* part : {"site", "nodes", "keys"}) found |= fs::exists(directory + "/" + part);
  remove_lab_files(directory);
  return found;
}

// One program on every node at once; the first Error, in node order, is thrown when all have ended.
void on_every_node(const LabPlan& plan, const std::function<void(const LabNode&)>& work) {
  std::vector<std::exception_ptr> faults(plan.nodes.size());
  {
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      workers.emplace_back([&, i] {
        try {
          work(plan.nodes[i]);
        } catch (...) {
          faults[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& fault : faults) {
    if (fault) std::rethrow_exception(fault);
  }
}

void run_batch(const std::vector<std::string>& prefix, const std::string& batch) {
  std::vector<std::string> words = prefix;
  words.insert(words.end(), {"ip", "-batch", "-"});
  const ProcessResult result = run_process(words, {.input = batch});
  if (result.exit_code != 0) throw Error("ip failed: " + result.error, "cables of the lab");
}

Holder start_network(const LabPlan& plan) {
  return start_holder("network", false, {.log = plan.path("nodes/network.log"), .setup = {}, .tick = {}});
}

// The tick is known after the setup; both run in the node's first process.
Holder start_node(const LabPlan& plan, const LabNode& node, const Cgroups& cgroups) {
  auto refresh = std::make_shared<std::function<void()>>();
  return start_holder(
      node.name, true,
      {.log = plan.path("nodes/" + node.name + "/init.log"),
       .setup = [&plan, &node, &cgroups, refresh] { *refresh = build_node_root(plan, node, cgroups); },
       .tick =
           [refresh] {
             if (*refresh) (*refresh)();
           }});
}

// All namespaces, cgroups and cables.
std::vector<Holder> start_holders(const LabPlan& plan) {
  const Cgroups cgroups = Cgroups::find();
  std::vector<Holder> holders;
  holders.push_back(start_network(plan));
  cgroups.create(plan.cgroup() + "/network/host");
  cgroups.prefer(plan.cgroup());
  cgroups.enter(plan.cgroup() + "/network/host", holders[0].pid());
  for (const LabNode& node : plan.nodes) {
    fs::create_directories(plan.path("nodes/" + node.name + "/root"));
    const std::string group = plan.cgroup() + "/" + node.name;
    cgroups.create(group + "/host");
    cgroups.limit_memory(group, plan.options.memory_bytes);
    holders.push_back(start_node(plan, node, cgroups));
    cgroups.enter(group + "/host", holders.back().pid());
  }
  for (Holder& holder : holders) holder.begin();
  std::vector<pid_t> nodes;
  for (size_t i = 1; i < holders.size(); ++i) nodes.push_back(holders[i].pid());
  run_batch({}, link_batch(plan, holders[0].pid(), nodes));
  for (Holder& holder : holders) holder.wait_ready(kSetupSeconds);
  return holders;
}

LabState state_of(const LabPlan& plan, const std::vector<Holder>& holders) {
  LabState state{.boot_id = boot_id(),
                 .plan = plan,
                 .network = holders[0].identity(),
                 .nodes = {},
                 .docker = {},
                 .image = {},
                 .faults = {}};
  for (size_t i = 1; i < holders.size(); ++i) state.nodes.push_back(holders[i].identity());
  return state;
}

// The engine's version, or why there is none. No node has one unless all have.
std::string start_docker(const LabState& state) {
  std::string version, failure;
  std::mutex mutex;
  on_every_node(state.plan, [&](const LabNode& node) {
    const ProcessResult result =
        run_process(node_command(state, node.name, {"sh", "-s"}),
                    {.input = start_docker_script(state.plan, node.name), .timeout_s = kSetupSeconds});
    const std::scoped_lock lock(mutex);
    std::string text = result.output.substr(0, result.output.find_last_not_of('\n') + 1);
    if (result.exit_code == 0)
      version = text;
    else
      failure = node.name + ": " + text;
  });
  return failure.empty() ? "docker " + version : "processes: " + failure;
}

bool build_image(const LabPlan& plan) {
  const std::string& program = plan.options.engine_program;
  if (program.empty() || !fs::exists(program)) return false;
  write_image({.program = program, .tag = kLabImage}, plan.path("work"), plan.path("shared/image.tar"));
  return true;
}

void start_services(LabState& state, const std::vector<NodeKeys>& keys, const LabProgress& progress) {
  const LabPlan& plan = state.plan;
  on_every_node(plan, [&](const LabNode& node) {
    run_batch(node_command(state, node.name, {}), node_batch(node));
    run_in_node(state, node.name, start_ssh_script(keys[static_cast<size_t>(node.rank)]), kSetupSeconds);
    run_in_node(state, node.name, checkout_script(kLabDeployment), kSetupSeconds);
  });
  progress("SSH servers are up");
  if (!plan.options.docker) {
    state.docker = "processes: asked for no container engine";
    return;
  }
  state.docker = start_docker(state);
  progress(state.docker);
  if (!state.docker.starts_with("docker") || !fs::exists(plan.path("shared/image.tar"))) return;
  on_every_node(plan, [&](const LabNode& node) { run_in_node(state, node.name, load_image_script(), 60); });
  state.image = kLabImage;
  progress("image " + state.image + " is on every node");
}

}  // namespace

LabState lab_up(const LabOptions& options, const LabProgress& progress) {
  const LabPlan plan = plan_lab(options);
  require_root();
  require_programs();
  const Descriptor lock = lock_lab(plan.options.directory, 5, LabLock::kClaim);
  clear(plan.options.directory);
  mark_lab(lock.get(), plan.id);
  try {
    fs::create_directories(plan.path("nodes"));
    fs::create_directories(plan.path("shared"));
    const std::vector<NodeKeys> keys = write_keys(plan);
    share_programs(plan);
    if (!write_site(plan))
      progress("no profiles in " + options.repository + ": the lab has no site of its own");
    if (build_image(plan)) progress("built the image of " + options.engine_program);
    std::vector<Holder> holders = start_holders(plan);
    progress("namespaces and cables are there");
    LabState state = state_of(plan, holders);
    run_batch(operator_command(state, {}), network_batch(plan));
    start_services(state, keys, progress);
    write_lab_state(state);
    for (Holder& holder : holders) holder.release();
    return state;
  } catch (...) {
    clear(plan.options.directory);
    throw;
  }
}

bool lab_down(const std::string& directory) {
  // Who may not look is told what he needs.
  const auto marked = [&] {
    std::error_code trouble;
    return fs::exists(directory + "/.spark-lab", trouble) || trouble;
  };
  if (!marked()) return false;
  require_root();
  Descriptor lock;
  try {
    lock = lock_lab(directory, 5);
  } catch (const Error&) {
    if (!marked()) return false;  // another command has taken it down
    throw;
  }
  const bool found = clear(directory);
  fs::remove(directory + "/.spark-lab");
  std::error_code not_empty;
  fs::remove(directory, not_empty);
  return found;
}

bool LabStatus::healthy() const {
  return std::all_of(nodes.begin(), nodes.end(),
                     [](const LabNodeStatus& node) { return node.process == "running" && node.ssh == "ok"; });
}

LabStatus lab_status(const std::string& directory) {
  require_root();
  auto found = read_lab_state(directory);
  if (!found) throw no_lab(directory);
  require_home(*found);
  LabStatus status{.state = *std::move(found), .nodes = {}};
  const LabPlan& plan = status.state.plan;
  const bool same_boot = status.state.boot_id == boot_id();
  const Cgroups cgroups = Cgroups::find();
  const std::vector<RemoteResult> results =
      Remote({.ssh_config = plan.path("ssh_config"), .connect_timeout_s = 3})
          .run_all(remote_nodes(plan.map),
                   {.script =
                        "sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; "
                        "docker -H unix:///run/docker.sock version -f '{{.Server.Version}}' 2>&1 | tail -n 1",
                    .timeout_s = 4});
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    LabNodeStatus node{.name = plan.nodes[i].name,
                       .process = "gone",
                       .ssh = {},
                       .docker = {},
                       .available = {},
                       .faults = {}};
    if (same_boot && process_lives(status.state.nodes.at(i)))
      node.process = cgroups.frozen(plan.cgroup() + "/" + node.name) ? "frozen" : "running";
    const RemoteResult& result = results[i];
    node.ssh = result.describe();
    const size_t line = result.output.find('\n');
    if (result.ok() && line != std::string::npos) {
      node.available = format_bytes(std::stoull("0" + result.output.substr(0, line)) * 1024);
      node.docker = result.output.substr(line + 1, result.output.size() - line - 2);
    }
    if (!status.state.docker.starts_with("docker")) node.docker = "none";
    for (const LabFault& fault : status.state.faults) {
      if (fault.node == node.name || fault.peer == node.name)
        node.faults += (node.faults.empty() ? "" : ", ") + fault.kind;
    }
    status.nodes.push_back(std::move(node));
  }
  return status;
}

}  // namespace spark::ops
