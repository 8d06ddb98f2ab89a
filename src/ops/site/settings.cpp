#include "ops/site/settings.h"

namespace spark::ops {
namespace {

constexpr KnownName kProfileFields[] = {
    {"promoted_baseline", "name of the baseline that this profile belongs to"},
    {"benchmark_reference", "report of a run of this shape, which others are compared with"},
    {"nodes_config", "node map: machines and cables"},
    {"upstreams_config", "pinned sources of the image"},
    {"kernel_backend", "kernel family: attention, projections, experts and drafter follow it"},
    {"fabric.transport", "how small collectives travel"},
    {"fabric.mesh_paths", "paths to the opposite rank (forwarded mesh only)"},
    {"container.name", "container name; the guard unit is NAME-memguard"},
    {"container.image", "image tag"},
    {"container.expected_labels", "image labels that must match"},
    {"container.docker_run_args", "options of docker run"},
    {"container.mounts", "bind mounts"},
    {"host.home", "home of the SSH user on every node"},
    {"host.memguard_gib", "memory below which the steady guard kills the service"},
    {"host.memguard_interval_seconds", "sampling period of the steady guard"},
    {"host.startup_memguard_gib", "memory below which the startup guard kills the service"},
    {"host.startup_memguard_interval_seconds", "sampling period of the startup guard"},
    {"host.startup_memguard_wait_seconds", "how long an armed guard waits for the service to appear"},
    {"host.kernel.release", "kernel that the memory budget was qualified on"},
    {"host.kernel.page_size", "page size that the memory budget was qualified on"},
    {"host.kernel.memory_saver_required", "needs packed page tables"},
    {"host.kernel_policy", "kernel policy file"},
    {"host.hardware", "whether the nodes are DGX Sparks or any Linux machines"},
    {"host.supervisor", "who keeps the memory guard running: systemd, or nobody (process)"},
    {"host.nvme_coalescing", "what doctor expects of NVMe interrupt coalescing"},
    {"distributed.master_addr", "rendezvous address: the head's management address"},
    {"distributed.master_port", "rendezvous port"},
    {"deployment.launch_enabled", "whether `cluster start --apply` may act"},
    {"deployment.repository", "origin that every node's checkout must have"},
    {"deployment.branch", "only commits on this branch may be deployed"},
    {"deployment.path", "checkout on every node"},
    {"deployment.ready_url", "polled until the service answers"},
    {"deployment.ready_timeout_seconds", "limit of that wait"},
    {"tuning_origin", "recipe that this candidate was made from"},
};

const Setting* row_named(std::span<const Setting> rows, std::string_view name) {
  for (const Setting& row : rows) {
    if (row.name != nullptr && name == row.name) return &row;
  }
  return nullptr;
}

std::string known_meaning(std::span<const KnownName> names, std::string_view name) {
  for (const KnownName& known : names) {
    if (name == known.name) return known.meaning;
  }
  return {};
}

}  // namespace

std::string negative_name(std::string_view name) {
  return "--no-" + std::string(name.substr(2));
}

const Setting* setting_of_argument(std::string_view name) {
  if (const Setting* row = row_named(vllm_arguments(), name)) return row;
  if (const Setting* row = row_named(native_arguments(), name)) return row;
  for (const Setting& row : native_arguments()) {
    if (row.kind == SettingKind::kSwitchPair && name == negative_name(row.name)) return &row;
  }
  return nullptr;
}

const Setting* setting_of_variable(std::string_view name) {
  return row_named(vllm_variables(), name);
}

std::string meaning_of(std::string_view resolved_path) {
  static constexpr std::string_view kEnvironment = "environment.";
  static constexpr std::string_view kArguments = "serve_args.";
  static constexpr std::string_view kEngine = "engine.";
  if (resolved_path.starts_with(kEnvironment)) {
    const std::string_view name = resolved_path.substr(kEnvironment.size());
    const Setting* row = setting_of_variable(name);
    return row != nullptr ? row->meaning : known_meaning(other_variables(), name);
  }
  if (resolved_path.starts_with(kArguments)) {
    std::string_view name = resolved_path.substr(kArguments.size());
    if (name == "MODEL") name = "";
    const Setting* row = setting_of_argument(name);
    return row != nullptr ? row->meaning : known_meaning(other_arguments(), name);
  }
  if (resolved_path.starts_with(kEngine)) {
    const std::string_view key = resolved_path.substr(kEngine.size());
    for (const auto& rows :
         {vllm_arguments(), vllm_variables(), vllm_ingredients(), native_arguments(), native_ingredients()}) {
      for (const Setting& row : rows) {
        if (key == row.key) return row.meaning;
      }
    }
    return {};
  }
  if (resolved_path.starts_with("container.expected_labels.")) return "image label that must match";
  return known_meaning(kProfileFields, resolved_path);
}

}  // namespace spark::ops
