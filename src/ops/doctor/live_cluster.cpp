// Live rules about reaching the nodes, telling them apart, and their agreement with one another.
#include <algorithm>
#include <cmath>
#include <functional>

#include "common/units.h"
#include "ops/doctor/live_context.h"

namespace spark::ops::live {
namespace {

constexpr double kSkewWarning_s = 0.5;
constexpr double kSkewError_s = 30;

std::string or_none(const std::string& text) {
  return text.empty() ? "none" : text;
}

std::string number_text(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : std::string();
}

std::string listed(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

struct Aligned {
  const char* what;
  const char* section;
  std::function<std::string(const LiveNode&)> value;  // "" : unreadable
};

const std::vector<Aligned>& aligned_values() {
  static const std::vector<Aligned> kValues = {
      {"kernel", "files", [](const LiveNode& n) { return n.facts.kernel.release; }},
      {"page size", "page-size", [](const LiveNode& n) { return number_text(n.facts.kernel.page_size); }},
      {"driver", "files", [](const LiveNode& n) { return n.facts.kernel.driver; }},
      {"loaded nvidia source", "files", [](const LiveNode& n) { return n.facts.kernel.nvidia_source; }},
      {"loaded nvidia_uvm source", "files", [](const LiveNode& n) { return n.facts.kernel.uvm_source; }},
      {"UVM leaf packing", "files", [](const LiveNode& n) { return n.facts.kernel.leaf_packing; }},
      {"transparent huge pages", "files", [](const LiveNode& n) { return n.facts.kernel.huge_pages; }},
      {"vm.min_free_kbytes", "files",
       [](const LiveNode& n) { return number_text(n.facts.kernel.min_free_kib); }},
      {"Secure Boot", "secure-boot",
       [](const LiveNode& n) {
         return n.facts.kernel.secure_boot ? std::string(*n.facts.kernel.secure_boot ? "on" : "off")
                                           : std::string();
       }},
      {"CPU governor", "files", [](const LiveNode& n) { return listed(n.facts.kernel.governors); }},
  };
  return kValues;
}

// The node's clock minus ours, as the interval that the round trip allows; nearest to zero.
std::optional<double> least_skew(const NodeAnswer& answer) {
  const HostFacts& host = answer.facts.host;
  if (!answer.sent_s || !answer.received_s || !host.clock_start_s || !host.clock_end_s) return {};
  const double high = *host.clock_start_s - *answer.sent_s;   // the script began after we sent it
  const double low = *host.clock_end_s - *answer.received_s;  // and ended before we had its answer
  if (low > high) return (low + high) / 2;                    // a clock that was stepped meanwhile
  if (low <= 0 && high >= 0) return 0;
  return low > 0 ? low : high;
}

}  // namespace

void reachable(LiveContext& context) {
  for (const Node& node : context.site.nodes.nodes) {
    const auto found = std::find_if(context.answers.begin(), context.answers.end(),
                                    [&](const NodeAnswer& answer) { return answer.node == node.name; });
    if (found == context.answers.end()) continue;  // left out on purpose: the caller named other nodes
    if (found->outcome == ProbeOutcome::kAnswered) continue;
    const bool transport = found->outcome == ProbeOutcome::kUnreachable;
    const std::string fix = !found->hint.empty() ? found->hint
                            : transport
                                ? "try `ssh " + context.site.nodes.ssh_user + "@" + node.ssh_target() +
                                      " true`; if it hangs, look at the machine's console"
                                : "`spark probe " + node.name + "` shows what the node says";
    // A problem of the way to a node says itself that it is one.
    const bool said =
        found->problem.starts_with("cannot be reached") || found->problem.starts_with("reached, ");
    const char* what = said        ? ""
                       : transport ? "cannot be reached: "
                                   : "can be reached, but the probe failed: ";
    context.error(node.name, what + found->problem, "an answer to the probe", fix);
  }
}

void answer(LiveContext& context, const LiveNode& node) {
  const Faults& faults = node.answer.faults;
  if (faults.empty()) return;
  std::vector<std::string> details;
  for (const Fault& fault : faults) details.push_back(fault.where + " " + fault.what);
  context.error(
      node.name(),
      "its answer is damaged: " + details[0] +
          (faults.size() > 1 ? " (and " + std::to_string(faults.size() - 1) + " more)" : std::string()),
      "an answer that can be read to its end",
      "repeat the command; if it stays, `spark probe " + node.name() + " --raw` shows the answer",
      faults.size() > 1 ? details : std::vector<std::string>());
}

void privilege(LiveContext& context, const LiveNode& node) {
  const auto& privileged = node.facts.identity.privileged;
  if (!privileged) return context.unknown(node, "whether sudo works", "sudo");
  if (*privileged) return;
  context.error(node.name(), "sudo -n " + node.facts.why("sudo"),
                "sudo without a password for " + node.facts.identity.user,
                "add a rule to /etc/sudoers.d on the node; docs/probe.md lists the commands that need it");
}

void same_machine(LiveContext& context) {
  for (size_t i = 0; i < context.nodes().size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const IdentityFacts& a = context.nodes()[j].facts.identity;
      const IdentityFacts& b = context.nodes()[i].facts.identity;
      const std::string& name = context.nodes()[i].name();
      const std::string& other = context.nodes()[j].name();
      if (!a.boot_id.empty() && a.boot_id == b.boot_id && a.host_name == b.host_name) {
        context.error(
            name, "is the same machine as " + other + " (host name " + b.host_name + ", one boot id)",
            "one machine per node", "correct ssh_host of one of them in " + context.site.nodes_file);
      } else if (!a.machine_id.empty() && a.machine_id == b.machine_id && a.boot_id != b.boot_id) {
        context.warn(name, "has the machine id of " + other + ": one disk is a copy of the other",
                     "an id of its own",
                     "sudo rm /etc/machine-id && sudo systemd-machine-id-setup, then reboot");
      }
    }
  }
}

void management_address(LiveContext& context, const LiveNode& node) {
  const auto& links = node.facts.network.links;
  if (!links) return context.unknown(node, "the addresses", "addresses");
  const Link* holder = nullptr;
  for (const Link& link : *links) {
    for (const LinkAddress& address : link.addresses) {
      if (address.address == node.node.management_ip) holder = &link;
    }
  }
  std::string wanted = node.node.management_interface;
  if (wanted.empty()) wanted = context.profile.environment_value("GLOO_SOCKET_IFNAME");
  if (holder == nullptr) {
    context.error(node.name(), "no interface has the management address " + node.node.management_ip,
                  "the address on " + (wanted.empty() ? "an interface" : wanted),
                  "correct management_ip in " + context.site.nodes_file + ", or the node's address");
  } else if (!wanted.empty() && holder->name != wanted) {
    context.error(node.name(), "the management address " + node.node.management_ip + " is on " + holder->name,
                  "on " + wanted + ", which the engine binds to",
                  "set management_interface of this node in " + context.site.nodes_file);
  } else if (!holder->carrier) {
    context.warn(node.name(), "the management interface " + holder->name + " has no carrier",
                 "a connected port", "check the cable of the 10 GbE port");
  }
}

void os_version(LiveContext& context, const LiveNode& node) {
  const IdentityFacts& identity = node.facts.identity;
  if (identity.dgx_version.empty()) {
    context.warn(node.name(), "runs " + (identity.os_name.empty() ? "an unknown system" : identity.os_name),
                 std::string("DGX OS ") + kQualifiedDgxOs + " or later",
                 "update the system, or qualify this one");
  } else if (older_version(identity.dgx_version, kQualifiedDgxOs)) {
    context.warn(node.name(), "runs DGX OS " + identity.dgx_version,
                 std::string(kQualifiedDgxOs) + " or later", "update DGX OS with the service stopped");
  }
}

void hardware(LiveContext& context) {
  if (context.profile.host.hardware == "spark") return;
  size_t left_out = 0;
  for (const Rule& rule : live_rules()) left_out += (rule.needs & kSparkOnly) != 0 ? 1 : 0;
  context.warn("host.hardware",
               "is \"" + context.profile.host.hardware + "\": " + std::to_string(left_out) +
                   " rules about a DGX Spark's own hardware and kernel were not applied",
               "\"spark\" for a cluster that serves", "remove host.hardware from the site file");
}

void clock_skew(LiveContext& context) {
  for (const LiveNode& node : context.nodes()) {
    const auto skew = least_skew(node.answer);
    if (!skew || std::abs(*skew) < kSkewWarning_s) continue;
    const std::string evidence = "its clock is at least " + format_fixed(std::abs(*skew), 1) + " s " +
                                 (*skew > 0 ? "ahead of" : "behind") + " this machine's";
    const std::string fix = "start time synchronisation: sudo timedatectl set-ntp true";
    if (std::abs(*skew) >= kSkewError_s) {
      context.error(node.name(), evidence, "clocks within half a second", fix);
    } else {
      context.warn(node.name(), evidence, "clocks within half a second", fix);
    }
  }
}

void time_sync(LiveContext& context, const LiveNode& node) {
  const auto& synchronised = node.facts.host.time_synchronised;
  if (!synchronised) return context.unknown(node, "whether the clock is synchronised", "time-sync");
  if (!*synchronised)
    context.warn(node.name(), "the clock is not synchronised", "NTPSynchronized=yes",
                 "sudo timedatectl set-ntp true");
}

void holds(LiveContext& context, const LiveNode& node) {
  for (const std::string& file : node.facts.host.holds) {
    context.warn(node.name(), "somebody holds the cluster: " + file + " exists", "no hold",
                 "read it and ask its owner before starting, stopping or measuring");
  }
}

void alignment(LiveContext& context) {
  if (context.nodes().size() < 2) return;
  for (const Aligned& aligned : aligned_values()) {
    std::map<std::string, std::string> nodes_by_value;
    for (const LiveNode& node : context.nodes()) {
      std::string& nodes = nodes_by_value[aligned.value(node)];
      nodes += (nodes.empty() ? "" : ", ") + node.name();
    }
    if (const auto unreadable = nodes_by_value.find(""); unreadable != nodes_by_value.end()) {
      context.error(unreadable->second, std::string(aligned.what) + " cannot be read, so it may differ",
                    "one readable value on all nodes",
                    "`spark probe` shows why (" + std::string(aligned.section) + ")");
      nodes_by_value.erase(unreadable);
    }
    if (nodes_by_value.size() < 2) continue;
    std::string evidence = std::string(aligned.what) + " differs: ";
    bool first = true;
    for (const auto& [value, nodes] : nodes_by_value) {
      evidence += (first ? "" : "; ") + or_none(value) + " on " + nodes;
      first = false;
    }
    context.error("all nodes", evidence, "one value",
                  "bring all nodes to the same state, with the service stopped");
  }
}

void corrections(LiveContext& context) {
  context.report_corrections();
}

}  // namespace spark::ops::live
