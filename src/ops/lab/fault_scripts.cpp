#include "ops/lab/fault_scripts.h"

#include <algorithm>
#include <charconv>

#include "ops/lab/cgroups.h"
#include "ops/lab/node_root.h"
#include "ops/lab/ports.h"
#include "ops/lab/texts.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr double kSeconds = 40;
// For a script that a killed command left; less than kSeconds.
constexpr int kTurnSeconds = 15;
// Gigabytes are touched page by page, on a machine that may have a full load besides.
constexpr int kMemorySeconds = 90;

int64_t number_of(const LabFault& fault, int64_t low, int64_t high) {
  const auto value = whole_number(fault.value);
  if (!value || *value < low || *value > high) {
    throw Error("must be a whole number from " + std::to_string(low) + " to " + std::to_string(high),
                "--value " + fault.value);
  }
  return *value;
}

int64_t memory_of(const LabPlan& plan, const LabFault& fault) {
  const int64_t bytes = parse_size(fault.value);
  if (bytes < int64_t{16} << 20 || bytes >= plan.options.memory_bytes)
    throw Error("must be at least 16M and less than the node has", "--value " + fault.value);
  return bytes;
}

bool has_engines(const LabState& state) {
  return state.docker.starts_with("docker");
}

FaultScripts disk_scripts(const LabPlan& plan) {
  return {
      .make =
          "d=/run/spark-lab/disk; u=$(df -k --output=used $d | tail -n 1); mount -o remount,size=$((u))k "
          "$d\n",
      .undo = "mount -o remount,size=" + std::to_string(plan.options.disk_bytes) + " /run/spark-lab/disk\n"};
}

FaultScripts clock_scripts(const LabFault& fault) {
  return {.make = "cat >/usr/local/bin/date <<'END'\n#!/bin/sh\nexec /usr/bin/date -d '" + fault.value +
                  " seconds' \"$@\"\nEND\nchmod 755 /usr/local/bin/date\n",
          .undo = "rm -f /usr/local/bin/date\n"};
}

FaultScripts memory_scripts(const LabPlan& plan, const LabFault& fault) {
  const std::string eater = "/run/spark-lab/eater";
  // An eater that is given up is ended: it would take the memory later, unseen. While it eats, its end is
  // another command's business as well. It is healed when the node's figures, renewed every 100 ms, say so.
  return {.make = "rm -f " + eater + "\nsetsid " + kLabShared + "/bin/spark lab eat-memory --until " +
                  std::to_string(memory_of(plan, fault)) + " >" + eater +
                  " 2>&1 </dev/null 9>&- &\ne=$!; exec 9>&-; i=0\nuntil grep -q '^available' " + eater +
                  "; do i=$((i+1)); [ $i -lt " + std::to_string(kMemorySeconds * 10) +
                  " ] && kill -0 $e 2>/dev/null ||"
                  " { kill -9 $e 2>/dev/null; cat " +
                  eater + " >&2; echo 'the memory could not be taken within " +
                  std::to_string(kMemorySeconds) +
                  " s; try again when this machine has less to do' >&2; exit 1; }; sleep 0.1; done\n",
          .undo =
              "for p in /proc/[0-9]*; do\n"
              "  tr '\\0' ' ' 2>/dev/null <$p/cmdline | grep -q 'lab eat-memory' || continue\n"
              "  kill -9 ${p#/proc/} || continue\n"
              "  while [ -d $p ] && ! grep -qs '^State:.*Z' $p/status; do sleep 0.1; done\n"
              "done\nrm -f " +
              eater + "\nsleep 0.3\n",
          .timeout_s = kMemorySeconds + kSeconds};
}

FaultScripts docker_scripts(const LabState& state, const LabFault& fault) {
  return {.make =
              "p=$(cat /run/docker.pid) || { echo 'no Docker engine runs here' >&2; exit 1; }\n"
              "kill $p; i=0; while kill -0 $p 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || kill -9 $p; "
              "sleep 0.1; done\n",
          // One that runs is left alone, and none is started in a lab that never had one.
          .undo = !has_engines(state)
                      ? ""
                      : "docker -H unix:///run/docker.sock version >/dev/null 2>&1 && exit 0\n" +
                            start_docker_script(state.plan, fault.node)};
}

// The server and its sessions; `exec -a` names of sessions differ, the program does not.
FaultScripts ssh_scripts() {
  return {.make =
              "for p in /proc/[0-9]*; do [ \"$(readlink $p/exe)\" = /usr/sbin/sshd ] && kill -9 "
              "${p#/proc/}; done; true\n",
          .undo =
              "p=$(cat /run/sshd.pid 2>/dev/null) && [ \"$(readlink /proc/$p/exe)\" = /usr/sbin/sshd ] || "
              "/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log\n"};
}

// 0 is undone first.
int healing_turn(const LabFault& fault) {
  return fault.kind == "freeze" ? 0 : fault.kind == "disk" ? 1 : 2;
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

const FaultKind& fault_kind(const std::string& name) {
  std::vector<std::string> known;
  for (const FaultKind& kind : fault_kinds()) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  const auto close = nearest(name, known);
  throw Error("is not a fault that a lab can have", name,
              close ? "did you mean " + *close + "?" : "spark lab fault --help lists them");
}

bool is_port_fault(const std::string& kind) {
  return kind == "cable" || kind == "mtu" || kind == "subnet" || kind == "swap";
}

LabFault checked_fault(const LabState& state, LabFault fault) {
  const LabPlan& plan = state.plan;
  const FaultKind& kind = fault_kind(fault.kind);
  plan.node(fault.node);
  const bool wants_peer = std::string(kind.wants) == "NODE PEER";
  if (wants_peer && fault.peer.empty())
    throw Error("needs the node at the other end of the cable", "fault " + fault.kind);
  if (!wants_peer && !fault.peer.empty()) throw Error("takes one node", "fault " + fault.kind);
  if (wants_peer) ports_towards(plan, fault.node, fault.peer);
  if (fault.value.empty()) fault.value = kind.standard_value;
  if (fault.kind == "mtu") fault_mtu(fault);
  if (fault.kind == "clock") number_of(fault, -86400, 86400);
  if (fault.kind == "docker" && !has_engines(state))
    throw Error("this lab has no container engine that could be stopped", fault.node, state.docker);
  if (fault.kind == "freeze" && !Cgroups::find().has_v2())
    throw Error("freezing a node needs cgroup v2 (also beside v1)", fault.node);
  if (fault.kind == "memory") {
    if (!Cgroups::find().has_memory()) {
      throw Error("this machine has no writable memory cgroup, so a node has no memory of its own",
                  fault.node, "guards can be tried with a recorded /proc/meminfo instead");
    }
    memory_of(plan, fault);
  }
  return fault;
}

int fault_mtu(const LabFault& fault) {
  return static_cast<int>(number_of(fault, 576, 8999));
}

std::string wrong_address(const std::string& address) {
  const size_t first = address.find('.');
  return address.substr(0, first) + ".99" + address.substr(address.find('.', first + 1));
}

std::string describe_fault(const LabFault& fault) {
  return fault.kind + " " + fault.node + (fault.peer.empty() ? "" : " " + fault.peer) +
         (fault.value.empty() ? "" : " (" + fault.value + ")");
}

std::vector<std::string> touched_nodes(const LabFault& fault) {
  if (fault.kind == "freeze") return {};
  if (fault.kind == "cable") return {fault.node, fault.peer};
  return {fault.node};
}

FaultScripts fault_scripts(const LabState& state, const LabFault& fault) {
  FaultScripts scripts;
  const std::string& kind = fault_kind(fault.kind).name;
  if (is_port_fault(kind)) {
    if (kind != "swap") ports_towards(state.plan, fault.node, fault.peer);
    scripts.make = ports_script(wanted_ports(state.plan, state.plan.node(fault.node), state.faults));
    scripts.undo = scripts.make;
  }
  if (kind == "disk") scripts = disk_scripts(state.plan);
  if (kind == "clock") scripts = clock_scripts(fault);
  if (kind == "memory") scripts = memory_scripts(state.plan, fault);
  if (kind == "docker") scripts = docker_scripts(state, fault);
  if (kind == "ssh") scripts = ssh_scripts();
  scripts.timeout_s = std::max(scripts.timeout_s, kSeconds);
  return scripts;
}

std::string change_script(int64_t number, const std::string& script) {
  const std::string text = std::to_string(number);
  return "exec 9>/run/spark-lab/change.lock\n"
         "flock -w " +
         std::to_string(kTurnSeconds) +
         " 9 || { echo 'a script of an earlier command still runs; try again' >&2; exit 1; }\n"
         "last=$(cat /run/spark-lab/change 2>/dev/null)\n"
         "[ \"${last:-0}\" -le " +
         text + " ] || { echo 'a later command has been here' >&2; exit 1; }\necho " + text +
         " >/run/spark-lab/change\nset -e\n" + script;
}

std::vector<LabFault> healing_order(const std::vector<LabFault>& faults, const std::string& kind,
                                    const std::string& node) {
  std::vector<LabFault> order;
  for (size_t i = faults.size(); i-- > 0;) {
    const LabFault& fault = faults[i];
    if ((kind.empty() || fault.kind == kind) && (node.empty() || fault.node == node)) order.push_back(fault);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const LabFault& a, const LabFault& b) { return healing_turn(a) < healing_turn(b); });
  return order;
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

}  // namespace spark::ops
