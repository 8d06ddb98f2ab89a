#include "ops/lab/state.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "common/child_process.h"
#include "common/clock.h"
#include "common/file.h"
#include "ops/lab/directory.h"

namespace spark::ops {
namespace {

Json process_json(const ProcessIdentity& process) {
  return {{"pid", process.pid}, {"start_ticks", process.start_ticks}};
}

ProcessIdentity process_of(const JsonReader& reader) {
  return {.pid = static_cast<pid_t>(reader.field("pid").integer(0, 1 << 30)),
          .start_ticks = static_cast<uint64_t>(reader.field("start_ticks").integer(0))};
}

LabFault fault_of(const JsonReader& reader) {
  return {reader.field("kind").string(), reader.field("node").string(), reader.field("peer").string(),
          reader.field("value").string()};
}

LabOptions options_of(const JsonReader& reader, const std::string& directory) {
  LabOptions options;
  options.directory = directory;
  options.nodes = reader.field("nodes").integer(3, 4, 3);
  options.memory_bytes = reader.field("memory_bytes").integer(0, int64_t{1} << 50, options.memory_bytes);
  options.disk_bytes = reader.field("disk_bytes").integer(0, int64_t{1} << 50, options.disk_bytes);
  options.docker = reader.field("docker").boolean();
  options.spark_program = reader.field("spark").string();
  options.engine_program = reader.field("engine").string();
  options.guard_program = reader.field("guard").string();
  options.repository = reader.field("repository").string();
  return options;
}

}  // namespace

std::string boot_id() {
  return read_file("/proc/sys/kernel/random/boot_id").substr(0, 36);
}

std::optional<ProcessIdentity> identify_process(pid_t pid) {
  std::string text;
  try {
    text = read_file("/proc/" + std::to_string(pid) + "/stat");
  } catch (const Error&) {
    return std::nullopt;
  }
  // Field 2 is the name in parentheses and may hold anything; field 22 is the start time.
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  std::string state;
  rest >> state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  ProcessIdentity identity{.pid = pid, .start_ticks = 0};
  rest >> identity.start_ticks;
  if (!rest || state == "Z" || state == "X") return std::nullopt;
  return identity;
}

bool process_lives(const ProcessIdentity& process) {
  if (process.pid <= 0) return false;
  const auto now = identify_process(process.pid);
  return now && now->start_ticks == process.start_ticks;
}

bool kill_process(const ProcessIdentity& process, double timeout_s) {
  const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process_lives(process))
    return true;  // looked at after the handle was taken: the handle is this process
  if (handle.open()) {
    ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
  } else {
    ::kill(process.pid, SIGKILL);
  }
  for (const double end = monotonic_s() + timeout_s; monotonic_s() < end;) {
    pollfd wait = {handle.get(), POLLIN, 0};
    ::poll(&wait, 1, handle.open() ? 100 : 10);
    if (!process_lives(process)) return true;
  }
  return false;
}

std::optional<LabState> read_lab_state(const std::string& directory) {
  const std::string path = directory + "/" + kLabStateFile;
  std::error_code trouble;
  const bool there = std::filesystem::exists(path, trouble);
  if (trouble)
    throw Error("cannot be read: " + trouble.message(), directory, "a lab is root's: sudo spark lab ...");
  if (!there) return std::nullopt;
  const Json document = parse_json(read_file(path), path);
  Faults faults;
  const JsonReader root(document, "", faults);
  LabState state;
  state.boot_id = root.field("boot_id").string();
  state.network = process_of(root.field("network"));
  for (const JsonReader& node : root.field("node_processes").items()) state.nodes.push_back(process_of(node));
  state.docker = root.field("docker").string();
  state.image = root.field("image").string();
  for (const JsonReader& fault : root.field("faults").items()) state.faults.push_back(fault_of(fault));
  const LabOptions options = options_of(root.field("options"), directory);
  if (state.nodes.size() != static_cast<size_t>(options.nodes)) {
    faults.push_back({"node_processes",
                      "has " + std::to_string(state.nodes.size()) + " processes for " +
                          std::to_string(options.nodes) + " nodes",
                      {}});
  }
  throw_if_any(faults, path, "remove the directory's lab by hand: its processes are named there");
  state.plan = plan_lab(options);
  return state;
}

void write_lab_state(const LabState& state) {
  const LabOptions& options = state.plan.options;
  Json nodes = Json::array();
  for (const ProcessIdentity& node : state.nodes) nodes.push_back(process_json(node));
  Json faults = Json::array();
  for (const LabFault& fault : state.faults) {
    faults.push_back(
        {{"kind", fault.kind}, {"node", fault.node}, {"peer", fault.peer}, {"value", fault.value}});
  }
  const Json document = {{"boot_id", state.boot_id},
                         {"network", process_json(state.network)},
                         {"node_processes", nodes},
                         {"docker", state.docker},
                         {"image", state.image},
                         {"faults", faults},
                         {"options",
                          {{"nodes", options.nodes},
                           {"memory_bytes", options.memory_bytes},
                           {"disk_bytes", options.disk_bytes},
                           {"docker", options.docker},
                           {"spark", options.spark_program},
                           {"engine", options.engine_program},
                           {"guard", options.guard_program},
                           {"repository", options.repository}}}};
  write_file_atomic(state.plan.path(kLabStateFile), document.dump(2) + "\n", 0600);
}

Error no_lab(const std::string& directory) {
  return Error("there is no lab here", directory, "spark lab up --dir " + directory);
}

void require_home(const LabState& state) {
  const std::string& directory = state.plan.options.directory;
  const std::string id = marked_id(directory);
  if (id.empty() || id == state.plan.id) return;
  throw Error("this lab was made in another directory and moved here", directory,
              "move it back, or spark lab down --dir " + directory + " and spark lab up");
}

LabState load_lab(const std::string& directory) {
  auto state = read_lab_state(directory);
  if (!state) throw no_lab(directory);
  require_home(*state);
  if (state->boot_id != boot_id() || !process_lives(state->network)) {
    throw Error("this lab is no longer running", directory,
                "spark lab up --dir " + directory + " starts it afresh");
  }
  return *std::move(state);
}

const ProcessIdentity& living_node(const LabState& state, const std::string& node) {
  const ProcessIdentity& process = state.nodes.at(static_cast<size_t>(state.plan.node(node).rank));
  if (process_lives(process)) return process;
  const std::string& directory = state.plan.options.directory;
  throw Error("this node of the lab is gone", node,
              "spark lab up --dir " + directory + " starts the lab afresh");
}

}  // namespace spark::ops
