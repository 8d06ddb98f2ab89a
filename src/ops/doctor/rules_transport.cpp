// Rules about transports: which variables go with which, what a ring needs, devices and interfaces.
#include <algorithm>
#include <array>

#include "ops/doctor/rule.h"
#include "ops/site/ring_policy.h"
#include "ops/site/text_forms.h"

namespace spark::ops::rule {
namespace {

std::string variable_path(const std::string& name) {
  return "environment." + name;
}
std::string argument_path(const std::string& name) {
  return "serve_args." + name;
}

// "NCCL_ALGO is Tree" or "NCCL_ALGO is not set".
std::string seen(const RuleContext& context, const std::string& name) {
  if (!context.set(name)) return name + " is not set";
  const std::string value = context.variable(name);
  return name + (value.empty() ? " is empty" : " is " + value);
}

void require_variable(RuleContext& context, const std::string& name, const std::string& value) {
  if (context.set(name) && context.variable(name) == value) return;
  context.error(variable_path(name), seen(context, name), name + "=" + value, "set " + name + " to " + value);
}

void forbid_variable(RuleContext& context, const std::string& name, const std::string& reason) {
  context.error(variable_path(name), seen(context, name), reason, "remove " + name);
}

// Channel counts: equal, and a number that both directions of the ring can share.
void check_channels(RuleContext& context) {
  const std::string lowest = context.variable("NCCL_MIN_NCHANNELS");
  const std::string highest = context.variable("NCCL_MAX_NCHANNELS");
  static constexpr std::array<const char*, 4> kFour = {"1", "2", "4", "8"};
  const bool four = context.nodes.nodes.size() == 4;
  const bool allowed = four ? std::find(kFour.begin(), kFour.end(), highest) != kFour.end() : highest == "1";
  if (!allowed) {
    context.error(variable_path("NCCL_MAX_NCHANNELS"), seen(context, "NCCL_MAX_NCHANNELS"),
                  four ? "1, 2, 4 or 8 channels" : "1 channel on fewer than four nodes",
                  std::string("set NCCL_MAX_NCHANNELS and NCCL_MIN_NCHANNELS to ") + (four ? "4" : "1"));
  } else if (lowest != highest) {
    context.error(variable_path("NCCL_MIN_NCHANNELS"),
                  seen(context, "NCCL_MIN_NCHANNELS") + ", NCCL_MAX_NCHANNELS is " + highest,
                  "equal channel counts on a ring", "set NCCL_MIN_NCHANNELS to " + highest);
  }
}

void check_ring_arguments(RuleContext& context) {
  const ServerArguments& arguments = context.arguments();
  for (const char* name : ring_forbidden_arguments()) {
    if (!arguments.has(name)) continue;
    context.error(argument_path(name), std::string(name) + " is given", "no expert parallelism on a ring",
                  std::string("remove ") + name);
  }
  for (const char* name : ring_single_groups()) {
    if (!arguments.has(name) || arguments.value(name) == "1") continue;
    context.error(argument_path(name),
                  std::string(name) + " is " + arguments.value(name).value_or("without a value"),
                  "1: a ring carries one tensor-parallel group", std::string("remove ") + name);
  }
  static constexpr const char* kCustom = "--disable-custom-all-reduce";
  if (context.profile.transport->one_shot && arguments.has(kCustom)) {
    context.error(argument_path(kCustom), std::string(kCustom) + " is given",
                  "absent: it turns the one-shot path off", std::string("remove ") + kCustom);
  } else if (!context.profile.transport->one_shot && !arguments.has(kCustom)) {
    context.error(argument_path(kCustom), std::string(kCustom) + " is missing", "present with nccl-ring",
                  std::string("add ") + kCustom);
  }
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

}  // namespace

void sparknet_environment(RuleContext& context) {
  const TransportTraits& transport = *context.profile.transport;
  if (!transport.sparknet) return;
  for (const auto& [name, value] : context.profile.environment) {
    const bool b12x = name.rfind("B12X_ROCE_", 0) == 0 || name == "VLLM_ENABLE_ROCE_ALLREDUCE" ||
                      name == "VLLM_ROCE_ALLREDUCE_MAX_SIZE" || name == "VLLM_ROCE_ALLGATHER_MAX_SIZE";
    if (b12x) forbid_variable(context, name, std::string("no B12X one-shot variable with ") + transport.name);
  }
  if (context.set("SPARKNET_ROCE_TOPOLOGY") &&
      context.variable("SPARKNET_ROCE_TOPOLOGY") != transport.topology) {
    context.error("environment.SPARKNET_ROCE_TOPOLOGY", seen(context, "SPARKNET_ROCE_TOPOLOGY"),
                  std::string(transport.topology) + ", which follows from fabric.transport",
                  "remove SPARKNET_ROCE_TOPOLOGY: it is set per node");
  }
}

void b12x_environment(RuleContext& context) {
  const TransportTraits& transport = *context.profile.transport;
  if (transport.sparknet) return;
  for (const auto& [name, value] : context.profile.environment) {
    if (name.rfind("SPARKNET_ROCE_", 0) == 0) {
      forbid_variable(context, name, std::string("no sparknet variable with ") + transport.name);
    }
  }
  const bool ring_topology = transport.one_shot && transport.neighbour_ring;
  if (ring_topology) return;  // ring.policy demands the exact value
  const std::string topology = context.variable("B12X_ROCE_TOPOLOGY");
  if (context.set("B12X_ROCE_TOPOLOGY") && topology != "direct") {
    context.error("environment.B12X_ROCE_TOPOLOGY", seen(context, "B12X_ROCE_TOPOLOGY"),
                  std::string("direct or absent with ") + transport.name, "remove B12X_ROCE_TOPOLOGY");
  }
}

void ring(RuleContext& context) {
  const TransportTraits& transport = *context.profile.transport;
  if (!transport.neighbour_ring) return;
  for (const RequiredVariable& required : ring_policy())
    require_variable(context, required.name, required.value);
  const std::string roce = ring_roce_allreduce(transport);
  if (!roce.empty()) require_variable(context, "VLLM_ENABLE_ROCE_ALLREDUCE", roce);
  if (transport.one_shot && !transport.sparknet)
    require_variable(context, "B12X_ROCE_TOPOLOGY", transport.topology);
  check_channels(context);
  for (const char* name : ring_forbidden_variables()) {
    if (!context.variable(name).empty()) forbid_variable(context, name, "empty or absent on a ring");
  }
  check_ring_arguments(context);
}

void gid_settings(RuleContext& context) {
  const std::string own = std::string(context.profile.transport->prefix) + "_GID_INDEX";
  std::optional<int64_t> first;
  for (const std::string& name : {std::string("NCCL_IB_GID_INDEX"), own}) {
    if (!context.set(name)) continue;
    const auto index = whole_number(context.variable(name));
    if (!index || *index < 0 || *index > 255) {
      context.error(variable_path(name), seen(context, name), "a GID slot: a number from 0 to 255",
                    "set " + name + " to 3, the slot of RoCE v2 over IPv4");
    } else if (first && *index != *first) {
      context.error(
          variable_path(name), seen(context, name) + ", NCCL_IB_GID_INDEX is " + std::to_string(*first),
          "one slot for both transports", "set both to the slot that holds RoCE v2 over IPv4, usually 3");
    }
    if (index) first = index;
  }
}

void device_list(RuleContext& context) {
  // On a ring the list is replaced per node by an exact one.
  if (context.profile.transport->neighbour_ring || !context.set("NCCL_IB_HCA")) return;
  const std::string text = context.variable("NCCL_IB_HCA");
  if (text.empty() || text[0] == '^') return;
  const std::vector<std::string> listed = split_list(text[0] == '=' ? text.substr(1) : text);
  for (const Node& node : context.nodes.nodes) {
    for (const std::string& device : node.devices()) {
      const bool found = std::any_of(listed.begin(), listed.end(), [&](const std::string& name) {
        return text[0] == '=' ? name == device : device.rfind(name, 0) == 0 && !name.empty();
      });
      if (found) continue;
      context.error("environment.NCCL_IB_HCA", "NCCL_IB_HCA does not list " + device + " of " + node.name,
                    "every device of the node map", "add " + device + " to NCCL_IB_HCA");
    }
  }
}

void interfaces(RuleContext& context) {
  static constexpr std::array<const char*, 3> kNames = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
                                                        "TP_SOCKET_IFNAME"};
  const bool everywhere = std::all_of(context.nodes.nodes.begin(), context.nodes.nodes.end(),
                                      [](const Node& node) { return !node.management_interface.empty(); });
  if (everywhere && !context.nodes.nodes.empty()) return;
  const std::string first = context.variable(kNames[0]);
  for (const char* name : kNames) {
    const std::string value = context.variable(name);
    if (value.empty()) {
      context.error(variable_path(name), seen(context, name), "the management interface, such as enP7s7",
                    std::string("set engine.management_interface, or ") + name);
    } else if (!first.empty() && value != first) {
      context.error(variable_path(name), seen(context, name) + ", " + kNames[0] + " is " + first,
                    "one management interface", std::string("set ") + name + " to " + first);
    }
  }
}

void mesh(RuleContext& context) {
  if (context.profile.transport->id != Transport::kRocenanteMesh4) return;
  if (context.profile.deployment.launch_enabled) {
    context.error("deployment.launch_enabled", "is true with the NIC-forwarded mesh",
                  "false: the mesh is for qualification, larger payloads retransmit",
                  "set deployment.launch_enabled to false, or fabric.transport to rocenante-ring4");
  }
  if (context.profile.mesh_paths == 4 && context.site.manifest &&
      !context.site.manifest->has("b12x", "rocenante-mesh4-fourpaths")) {
    context.error("fabric.mesh_paths", "is 4, the image's b12x has no capability rocenante-mesh4-fourpaths",
                  "2, or an image with that capability", "set fabric.mesh_paths to 2");
  }
}

}  // namespace spark::ops::rule
