#include "ops/lab/faults.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>
#include <thread>

#include "common/file.h"
#include "common/process.h"
#include "common/units.h"
#include "ops/lab/cgroups.h"
#include "ops/lab/directory.h"
#include "ops/lab/enter.h"
#include "ops/lab/rdma_view.h"
#include "ops/lab/texts.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr double kSeconds = 20;
// For another command that changes the lab: as long as most faults may take.
constexpr double kLockSeconds = 20;
// Gigabytes are touched page by page, on a machine that may have a full load besides.
constexpr int kMemorySeconds = 90;

// The interfaces of `node` that lead to `peer`, by stripe.
std::vector<std::string> ends_towards(const LabPlan& plan, const LabFault& fault) {
  const int64_t node = plan.node(fault.node).rank;
  const int64_t peer = plan.node(fault.peer).rank;
  std::vector<std::string> names;
  for (const LabLink& link : plan.links) {
    if (link.rank_a == node && link.rank_b == peer) names.push_back(link.interface_a);
    if (link.rank_b == node && link.rank_a == peer) names.push_back(link.interface_b);
  }
  if (names.empty())
    throw Error("has no cable to " + fault.peer, fault.node, "spark fabric show draws the cables");
  return names;
}

const LabInterface& interface_of(const LabNode& node, const std::string& name) {
  return *std::find_if(node.interfaces.begin(), node.interfaces.end(),
                       [&name](const LabInterface& each) { return each.name == name; });
}

int64_t number_of(const LabFault& fault, int64_t low, int64_t high) {
  const auto value = whole_number(fault.value);
  if (!value || *value < low || *value > high) {
    throw Error("must be a whole number from " + std::to_string(low) + " to " + std::to_string(high),
                "--value " + fault.value);
  }
  return *value;
}

// 10.12.1.1/24 -> 10.99.1.1/24
std::string wrong_address(const std::string& address) {
  const size_t first = address.find('.');
  return address.substr(0, first) + ".99" + address.substr(address.find('.', first + 1));
}

// Every fault as the scripts that make and undo it inside its node.
struct FaultScripts {
  std::string make;
  std::string undo;
  double timeout_s = kSeconds;
};

FaultScripts cable_scripts(const LabPlan& plan, const LabFault& fault) {
  FaultScripts scripts;
  for (const std::string& name : ends_towards(plan, fault)) {
    scripts.make += "ip link set " + name + " down\n";
    // An address goes with the link's state only for IPv6; IPv4 addresses stay.
    scripts.undo += "ip link set " + name + " up\n";
  }
  return scripts;
}

FaultScripts mtu_scripts(const LabPlan& plan, const LabFault& fault) {
  const std::string mtu = std::to_string(number_of(fault, 576, 8999));
  FaultScripts scripts;
  for (const std::string& name : ends_towards(plan, fault)) {
    scripts.make += "ip link set " + name + " mtu " + mtu + "\n";
    scripts.undo += "ip link set " + name + " mtu " +
                    std::to_string(interface_of(plan.node(fault.node), name).mtu) + "\n";
  }
  return scripts;
}

FaultScripts subnet_scripts(const LabPlan& plan, const LabFault& fault) {
  FaultScripts scripts;
  for (const std::string& name : ends_towards(plan, fault)) {
    const std::string right = interface_of(plan.node(fault.node), name).address;
    const auto replace = [&name](const std::string& old, const std::string& fresh) {
      return "ip addr del " + old + " dev " + name + "\nip addr add " + fresh + " dev " + name + "\n";
    };
    scripts.make += replace(right, wrong_address(right));
    scripts.undo += replace(wrong_address(right), right);
  }
  return scripts;
}

// The two cables of a node change places: names and addresses belong to the ports, so the links change names.
FaultScripts swap_scripts(const LabPlan& plan, const LabFault& fault) {
  const std::vector<LabInterface>& ports = plan.node(fault.node).interfaces;
  std::string text;
  for (size_t stripe = 0; stripe < 2; ++stripe) {
    const LabInterface& a = ports.at(stripe);
    const LabInterface& b = ports.at(stripe + 2);
    for (const LabInterface* end : {&a, &b})
      text += "ip link set " + end->name + " down\nip addr flush dev " + end->name + "\n";
    text += "ip link set " + a.name + " name spark-swap\nip link set " + b.name + " name " + a.name +
            "\nip link set spark-swap name " + b.name + "\n";
    for (const LabInterface* end : {&a, &b})
      text += "ip addr add " + end->address + " dev " + end->name + "\nip link set " + end->name + " up\n";
  }
  return {text, text};
}

FaultScripts disk_scripts(const LabPlan& plan) {
  return {
      "d=/run/spark-lab/disk; u=$(df -k --output=used $d | tail -n 1); mount -o remount,size=$((u))k $d\n",
      "mount -o remount,size=" + std::to_string(plan.options.disk_bytes) + " /run/spark-lab/disk\n"};
}

FaultScripts clock_scripts(const LabFault& fault) {
  const std::string skew = std::to_string(number_of(fault, -86400, 86400));
  return {"cat >/usr/local/bin/date <<'END'\n#!/bin/sh\nexec /usr/bin/date -d '" + skew +
              " seconds' \"$@\"\nEND\nchmod 755 /usr/local/bin/date\n",
          "rm -f /usr/local/bin/date\n"};
}

FaultScripts memory_scripts(const LabPlan& plan, const LabFault& fault) {
  if (!Cgroups::find().has_memory()) {
    throw Error("this machine has no writable memory cgroup, so a node has no memory of its own", fault.node,
                "guards can be tried with a recorded /proc/meminfo instead");
  }
  const int64_t bytes = parse_size(fault.value);
  if (bytes < int64_t{16} << 20 || bytes >= plan.options.memory_bytes)
    throw Error("must be at least 16M and less than the node has", "--value " + fault.value);
  const std::string eater = "/run/spark-lab/eater";
  // An eater that is given up is ended: it would take the memory later, unseen.
  return {.make = "setsid /srv/spark-lab/bin/spark lab eat-memory --until " + std::to_string(bytes) + " >" +
                  eater + " 2>&1 </dev/null &\ne=$!; i=0\nuntil [ -s " + eater +
                  " ]; do i=$((i+1)); [ $i -lt " + std::to_string(kMemorySeconds * 10) +
                  " ] && kill -0 $e 2>/dev/null ||"
                  " { kill -9 $e 2>/dev/null; echo 'the memory could not be taken within " +
                  std::to_string(kMemorySeconds) +
                  " s; try again when this machine has less to do'; exit 1; }; sleep 0.1; done\n",
          .undo =
              "for p in /proc/[0-9]*; do\n"
              "  tr '\\0' ' ' 2>/dev/null <$p/cmdline | grep -q 'lab eat-memory' && kill -9 "
              "${p#/proc/}\ndone\nrm -f " +
              eater + "\n",
          .timeout_s = kMemorySeconds + kSeconds};
}

FaultScripts docker_scripts(const LabPlan& plan, const LabFault& fault) {
  return {
      "p=$(cat /run/docker.pid) || { echo 'no Docker engine runs here'; exit 1; }\n"
      "kill $p; i=0; while kill -0 $p 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || kill -9 $p; sleep 0.1; "
      "done\n",
      start_docker_script(plan, fault.node)};
}

// The server and its sessions; `exec -a` names of sessions differ, the program does not.
constexpr const char* kStopSsh =
    "for p in /proc/[0-9]*; do [ \"$(readlink $p/exe)\" = /usr/sbin/sshd ] && kill -9 ${p#/proc/}; done; "
    "true\n";
constexpr const char* kStartSsh = "/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log\n";

FaultScripts scripts_of(const LabPlan& plan, const LabFault& fault) {
  if (fault.kind == "cable") return cable_scripts(plan, fault);
  if (fault.kind == "mtu") return mtu_scripts(plan, fault);
  if (fault.kind == "subnet") return subnet_scripts(plan, fault);
  if (fault.kind == "swap") return swap_scripts(plan, fault);
  if (fault.kind == "disk") return disk_scripts(plan);
  if (fault.kind == "clock") return clock_scripts(fault);
  if (fault.kind == "memory") return memory_scripts(plan, fault);
  if (fault.kind == "docker") return docker_scripts(plan, fault);
  if (fault.kind == "freeze") return {};  // no script: the node's cgroup is frozen
  SPARK_CHECK(fault.kind == "ssh");
  return {kStopSsh, kStartSsh};
}

RdmaChanges changes_of(const LabPlan& plan, const LabNode& node, const std::vector<LabFault>& faults) {
  RdmaChanges changes;
  for (const LabFault& fault : faults) {
    if (fault.kind == "cable" && (fault.node == node.name || fault.peer == node.name)) {
      const LabFault mine = {fault.kind, node.name, fault.node == node.name ? fault.peer : fault.node, {}};
      for (const std::string& name : ends_towards(plan, mine)) changes.down[name] = true;
    }
    if (fault.node != node.name) continue;
    if (fault.kind == "mtu") {
      for (const std::string& name : ends_towards(plan, fault)) changes.mtu[name] = std::stoi(fault.value);
    }
    if (fault.kind == "subnet") {
      for (const std::string& name : ends_towards(plan, fault))
        changes.address[name] = wrong_address(interface_of(node, name).address);
    }
  }
  return changes;
}

// The made-up RDMA devices follow what happened to their interfaces.
void refresh_rdma(const LabState& state, const LabFault& fault) {
  if (fault.kind != "cable" && fault.kind != "mtu" && fault.kind != "subnet") return;
  for (const std::string& name : {fault.node, fault.peer}) {
    const LabNode& node = state.plan.node(name);
    std::string script = "cd /sys/class/infiniband\n";
    for (const auto& [path, content] : rdma_view(node, changes_of(state.plan, node, state.faults)))
      script += "printf %s " + shell_quote(content) + " >" + path + "\n";
    run_in_node(state, name, script, kSeconds);
  }
}

void apply(const LabState& state, const LabFault& fault, const FaultScripts& scripts, bool make) {
  if (fault.kind == "freeze")
    Cgroups::find().freeze(state.plan.cgroup() + "/" + fault.node, make);
  else
    run_in_node(state, fault.node, "set -e\n" + (make ? scripts.make : scripts.undo), scripts.timeout_s);
}

std::string sentence(const LabFault& fault) {
  return fault.kind + " " + fault.node + (fault.peer.empty() ? "" : " " + fault.peer) +
         (fault.value.empty() ? "" : " (" + fault.value + ")");
}

const FaultKind& kind_of(const std::string& name) {
  std::vector<std::string> known;
  for (const FaultKind& kind : fault_kinds()) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  const auto close = nearest(name, known);
  throw Error("is not a fault that a lab can have", name,
              close ? "did you mean " + *close + "?" : "spark lab fault --help lists them");
}

LabFault checked(const LabPlan& plan, LabFault fault) {
  const FaultKind& kind = kind_of(fault.kind);
  plan.node(fault.node);
  const bool wants_peer = std::string(kind.wants) == "NODE PEER";
  if (wants_peer && fault.peer.empty())
    throw Error("needs the node at the other end of the cable", "fault " + fault.kind);
  if (!wants_peer && !fault.peer.empty()) throw Error("takes one node", "fault " + fault.kind);
  if (wants_peer) plan.node(fault.peer);
  if (fault.value.empty()) fault.value = kind.standard_value;
  return fault;
}

int64_t available_now() {
  std::istringstream lines(read_file("/proc/meminfo"));
  for (std::string name, line; lines >> name && std::getline(lines, line);) {
    if (name == "MemAvailable:") return std::stoll(line) * 1024;
  }
  throw Error("has no MemAvailable", "/proc/meminfo");
}

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<FaultKind> kinds = {
      {"cable", "NODE PEER", "", "both stripes of the cable between them go down"},
      {"mtu", "NODE PEER", "1500", "NODE's end of the cable gets this MTU"},
      {"subnet", "NODE PEER", "", "NODE's end of the cable gets addresses of another subnet"},
      {"swap", "NODE", "", "the two cables of the node change places"},
      {"freeze", "NODE", "", "the node and everything on it stops, and answers nothing"},
      {"disk", "NODE", "", "the node's disk is full"},
      {"clock", "NODE", "30", "the node's `date` is off by this many seconds"},
      {"memory", "NODE", "512M", "a process takes memory until only this much is available"},
      {"docker", "NODE", "", "the container engine is stopped"},
      {"ssh", "NODE", "", "the SSH server and its sessions are killed"},
  };
  return kinds;
}

int64_t parse_size(const std::string& text) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  int shift = 0;
  if (unit == "K" || unit == "KiB")
    shift = 10;
  else if (unit == "M" || unit == "MiB")
    shift = 20;
  else if (unit == "G" || unit == "GiB")
    shift = 30;
  else if (!unit.empty())
    shift = -1;
  if (fault != std::errc() || shift < 0 || number < 0 || number > (int64_t{1} << 50 >> shift))
    throw Error("is not a size", text, "write it as 536870912, 512M or 2G");
  return number << shift;
}

std::string inject_fault(const std::string& directory, const LabFault& wanted) {
  const Descriptor lock = lock_lab(directory, kLockSeconds);
  LabState state = load_lab(directory);  // only now: another command may have recorded a fault until here
  const LabFault fault = checked(state.plan, wanted);
  for (const LabFault& present : state.faults) {
    if (present.kind == fault.kind && present.node == fault.node && present.peer == fault.peer)
      throw Error("this fault is already there", sentence(present),
                  "spark lab heal " + fault.kind + " " + fault.node);
  }
  // What cannot be asked for is refused here, before it is in the lab's record.
  const FaultScripts scripts = scripts_of(state.plan, fault);
  // Recorded before it is made: a fault that was half made can be healed.
  state.faults.push_back(fault);
  write_lab_state(state);
  apply(state, fault, scripts, true);
  refresh_rdma(state, fault);
  return sentence(fault);
}

HealedFaults heal_faults(const std::string& directory, const std::string& kind, const std::string& node) {
  const Descriptor lock = lock_lab(directory, kLockSeconds);
  LabState state = load_lab(directory);  // only now, as above
  if (!kind.empty()) kind_of(kind);
  if (!node.empty()) state.plan.node(node);
  HealedFaults result;
  for (size_t i = state.faults.size(); i-- > 0;) {
    const LabFault fault = state.faults[i];
    if ((!kind.empty() && fault.kind != kind) || (!node.empty() && fault.node != node)) continue;
    try {
      apply(state, fault, scripts_of(state.plan, fault), false);
      state.faults.erase(state.faults.begin() + static_cast<std::ptrdiff_t>(i));
      refresh_rdma(state, fault);
      write_lab_state(state);
      result.healed.push_back(sentence(fault));
    } catch (const Error& error) {
      // The others are undone all the same.
      result.failed.push_back({sentence(fault), error.what(), error.hint()});
    }
  }
  return result;
}

void eat_memory(int64_t available_bytes) {
  constexpr int64_t kSlack = int64_t{8} << 20;
  bool said = false;
  while (true) {
    const int64_t excess = available_now() - available_bytes;
    if (excess <= kSlack) {
      if (!said)
        std::cout << "available: " << format_bytes(static_cast<uint64_t>(available_bytes)) << std::endl;
      said = true;
      ::pause();
    }
    const auto bytes = static_cast<size_t>(excess);
    void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw Error("no more memory to take", "eat-memory");
    std::memset(block, 1, bytes);
    // The node's figures are renewed every 100 ms.
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
}

}  // namespace spark::ops
