// Facts as one JSON document.
#include "ops/probe/facts.h"

namespace spark::ops {
namespace {

template <typename T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json object_of(const std::map<std::string, std::string>& values) {
  Json json = Json::object();
  for (const auto& [key, value] : values) json[key] = value;
  return json;
}

Json identity_json(const IdentityFacts& f) {
  return {{"host_name", f.host_name},
          {"machine_id", f.machine_id},
          {"boot_id", f.boot_id},
          {"user", f.user},
          {"machine", f.machine},
          {"product", f.product},
          {"os", f.os_name},
          {"dgx_os", f.dgx_version},
          {"privileged", maybe(f.privileged)},
          {"uptime_s", maybe(f.uptime_s)}};
}

Json kernel_json(const KernelFacts& f) {
  Json grub = {{"known", f.grub.known},
               {"default", f.grub.default_entry},
               {"next_entry", f.grub.next_entry},
               {"entries", object_of(f.grub.entries)},
               {"lines_with_splash", f.grub.lines_with_splash}};
  Json modules = Json::object();
  for (const auto& [name, file] : f.module_files) {
    modules[name] = {{"path", file.path},
                     {"version", file.version},
                     {"srcversion", file.srcversion},
                     {"vermagic", file.vermagic},
                     {"signer", file.signer}};
  }
  return {{"release", f.release},
          {"page_size", maybe(f.page_size)},
          {"command_line", maybe(f.command_line)},
          {"driver", f.driver},
          {"nvidia_srcversion", f.nvidia_source},
          {"nvidia_uvm_srcversion", f.uvm_source},
          {"uvm_leaf_packing", f.leaf_packing},
          {"rm_build_note", f.build_note},
          {"transparent_huge_pages", f.huge_pages},
          {"watermark_boost_factor", maybe(f.watermark_boost)},
          {"min_free_kib", maybe(f.min_free_kib)},
          {"panic_s", maybe(f.panic_s)},
          {"panic_on_oops", maybe(f.panic_on_oops)},
          {"panic_on_oom", maybe(f.panic_on_oom)},
          {"swaps", f.swaps_known ? Json(f.swaps) : Json()},
          {"governors", f.governors},
          {"loaded_modules", f.loaded_modules},
          {"boot_files", f.boot_files},
          {"module_files", modules},
          {"dkms", maybe(f.dkms)},
          {"packages", f.packages ? object_of(*f.packages) : Json()},
          {"secure_boot", maybe(f.secure_boot)},
          {"fan_key_enrolled", maybe(f.fan_key_enrolled)},
          {"grub", grub},
          {"modprobe", f.modprobe_options},
          {"log", maybe(f.log)}};
}

Json memory_json(const MemoryFacts& f) {
  return {{"total_kib", maybe(f.total_kib)},
          {"free_kib", maybe(f.free_kib)},
          {"available_kib", maybe(f.available_kib)},
          {"swap_total_kib", maybe(f.swap_total_kib)},
          {"swap_free_kib", maybe(f.swap_free_kib)},
          {"cma_total_kib", maybe(f.cma_total_kib)},
          {"cma_free_kib", maybe(f.cma_free_kib)},
          {"huge_pages_reserved", maybe(f.huge_pages_reserved)},
          {"free_blocks", f.free_blocks},
          {"shm_kib", maybe(f.shm_kib)},
          {"cgroup_events", f.cgroup_events}};
}

Json link_json(const Link& f) {
  Json addresses = Json::array();
  for (const LinkAddress& each : f.addresses) {
    addresses.push_back({{"address", each.address}, {"prefix", each.prefix}, {"dynamic", each.dynamic}});
  }
  return {{"name", f.name},        {"mac", f.mac},
          {"mtu", f.mtu},          {"up", f.up},
          {"carrier", f.carrier},  {"speed_mbps", maybe(f.speed_mbps)},
          {"addresses", addresses}};
}

Json rdma_json(const RdmaDevice& f) {
  Json gids = Json::array();
  for (const Gid& each : f.gids)
    gids.push_back({{"index", each.index}, {"type", each.type}, {"gid", each.gid}, {"netdev", each.netdev}});
  return {{"name", f.name},
          {"firmware", f.firmware},
          {"state", f.state},
          {"phys_state", f.phys_state},
          {"rate_gbps", maybe(f.rate_gbps)},
          {"active_mtu", maybe(f.active_mtu)},
          {"pcie_speed", f.pcie_speed},
          {"pcie_max_speed", f.pcie_max_speed},
          {"pcie_width", maybe(f.pcie_width)},
          {"pcie_max_width", maybe(f.pcie_max_width)},
          {"aer", f.aer},
          {"counters", f.counters},
          {"gids", gids}};
}

Json network_json(const NetworkFacts& f) {
  Json links = Json::array(), rdma = Json::array(), pci = Json::array(), paths = Json::object();
  Json neighbours = Json::array(), lldp = Json::array(), listeners = Json::array();
  if (f.links) {
    for (const Link& each : *f.links) links.push_back(link_json(each));
  }
  for (const RdmaDevice& each : f.rdma) rdma.push_back(rdma_json(each));
  if (f.pci) {
    for (const PciFunction& each : *f.pci) {
      pci.push_back({{"address", each.address},
                     {"vendor", each.vendor},
                     {"device", each.device},
                     {"class", each.device_class},
                     {"speed", each.speed},
                     {"width", maybe(each.width)},
                     {"max_speed", each.max_speed},
                     {"max_width", maybe(each.max_width)}});
    }
  }
  for (const Neighbour& each : f.neighbours)
    neighbours.push_back(
        {{"address", each.address}, {"netdev", each.netdev}, {"mac", each.mac}, {"state", each.state}});
  if (f.lldp) {
    for (const LldpPeer& each : *f.lldp)
      lldp.push_back({{"netdev", each.netdev}, {"node", each.node}, {"port", each.port}});
  }
  for (const auto& [device, each] : f.paths) {
    paths[device] = {{"route_netdev", each.route_netdev},
                     {"route_gateway", each.route_gateway},
                     {"answers", maybe(each.answers)}};
  }
  if (f.listeners) {
    for (const Listener& each : *f.listeners)
      listeners.push_back({{"address", each.address}, {"port", each.port}, {"process", each.process}});
  }
  return {{"links", f.links ? links : Json()},
          {"neighbours", neighbours},
          {"lldp", f.lldp ? lldp : Json()},
          {"rdma", rdma},
          {"pci", f.pci ? pci : Json()},
          {"paths", paths},
          {"forwards", maybe(f.forwards)},
          {"forward_policy", f.forward_policy},
          {"port_range", Json::array({maybe(f.port_range_low), maybe(f.port_range_high)})},
          {"reserved_ports", f.reserved_ports},
          {"ipv6_disabled", f.ipv6_disabled},
          {"listeners", f.listeners ? listeners : Json()}};
}

Json gpu_json(const Facts& facts) {
  if (!facts.gpu) return {};
  const GpuFacts& f = *facts.gpu;
  Json processes = Json::array();
  for (const GpuProcess& each : facts.gpu_processes)
    processes.push_back({{"pid", each.pid}, {"name", each.name}});
  return {{"name", f.name},
          {"driver", f.driver},
          {"performance_state", f.performance_state},
          {"clock_mhz", maybe(f.clock_mhz)},
          {"power_w", maybe(f.power_w)},
          {"utilisation", maybe(f.utilisation)},
          {"memory_utilisation", maybe(f.memory_utilisation)},
          {"temperature_c", maybe(f.temperature_c)},
          {"slowdown_reasons", maybe(f.slowdown_reasons)},
          {"processes", processes}};
}

Json host_json(const HostFacts& f) {
  Json units = Json::object(), entries = Json::array();
  if (f.units) {
    for (const auto& [name, each] : *f.units) {
      units[name] = {{"load", each.load}, {"active", each.active}, {"sub", each.sub}, {"file", each.file}};
    }
  }
  if (f.boot_entries) {
    for (const auto& each : *f.boot_entries)
      entries.push_back({{"number", each.number}, {"label", each.label}});
  }
  return {{"boot_target", f.boot_target},
          {"system_state", f.system_state},
          {"failed_units", maybe(f.failed_units)},
          {"units", f.units ? units : Json()},
          {"runtime_watchdog_s", maybe(f.runtime_watchdog_s)},
          {"reboot_watchdog_s", maybe(f.reboot_watchdog_s)},
          {"drm_modeset", f.drm_modeset},
          {"drm_fbdev", f.drm_fbdev},
          {"nvidia_card", maybe(f.nvidia_card)},
          {"drm_masters", maybe(f.drm_masters)},
          {"console", f.console},
          {"console_mode", maybe(f.console_mode)},
          {"fan_devices", maybe(f.fan_devices)},
          {"boot_order", f.boot_entries ? entries : Json()},
          {"nvme_coalescing", object_of(f.nvme_coalescing)},
          {"sshd", object_of(f.sshd)},
          {"policy_files", f.policy_files_known ? object_of(f.policy_files) : Json()},
          {"limits", object_of(f.limits)},
          {"time_synchronised", maybe(f.time_synchronised)},
          {"clock_start_s", maybe(f.clock_start_s)},
          {"clock_end_s", maybe(f.clock_end_s)},
          {"holds", f.holds}};
}

Json service_json(const ServiceFacts& f) {
  Json process;
  if (f.process)
    process = {{"recorded", f.process->recorded}, {"running", f.process->running}, {"pid", f.process->pid}};
  return {{"process", process},
          {"guard", f.guard ? object_of(*f.guard) : Json()},
          {"guard_alive", f.guard_alive}};
}

Json image_json(const std::optional<ImageFacts>& f) {
  if (!f) return {};
  return {{"id", f->id}, {"labels", object_of(f->labels)}};
}

Json docker_json(const DockerFacts& f) {
  Json running = Json::array();
  for (const auto& each : f.running)
    running.push_back({{"id", each.id}, {"image", each.image}, {"name", each.name}});
  Json container;
  if (f.container) {
    container = {{"running", f.container->running},
                 {"exit_code", f.container->exit_code},
                 {"oom_killed", f.container->oom_killed},
                 {"image", f.container->image},
                 {"image_id", f.container->image_id},
                 {"command", f.container->command},
                 {"environment", object_of(f.container->environment)}};
  }
  return {{"answers", f.answers},
          {"server_version", f.server_version},
          {"storage_driver", f.storage_driver},
          {"root_folder", f.root_folder},
          {"runtimes", f.runtimes},
          {"running", running},
          {"container", container},
          {"image", image_json(f.image)}};
}

Json model_json(const ModelFacts& f) {
  Json shards = Json::array();
  for (const auto& [name, each] : f.shards)
    shards.push_back({{"name", name}, {"bytes", each.bytes}, {"needed_bytes", maybe(each.needed_bytes)}});
  Json extents = Json::array();
  if (f.extents) {
    for (const auto& each : *f.extents)
      extents.push_back({{"file", each.file}, {"current", each.current}, {"best", each.best}});
  }
  return {{"index", f.index},
          {"total_bytes", maybe(f.total_bytes)},
          {"indexed_shards", f.shard_names},
          {"shards", shards},
          {"extents", f.extents ? extents : Json()}};
}

}  // namespace

Json facts_json(const Facts& facts) {
  Json disks = Json::array();
  for (const DiskFacts& each : facts.disks) {
    disks.push_back({{"filesystem", each.filesystem},
                     {"mounted_on", each.mounted_on},
                     {"size_kib", each.size_kib},
                     {"free_kib", each.free_kib}});
  }
  return {{"identity", identity_json(facts.identity)},
          {"kernel", kernel_json(facts.kernel)},
          {"memory", memory_json(facts.memory)},
          {"network", network_json(facts.network)},
          {"gpu", gpu_json(facts)},
          {"host", host_json(facts.host)},
          {"service", service_json(facts.service)},
          {"disks", disks},
          {"docker", docker_json(facts.docker)},
          {"model", model_json(facts.model)},
          {"deployment",
           {{"commit", facts.deployment.commit},
            {"changes", maybe(facts.deployment.changes)},
            {"mounts", object_of(facts.deployment.mounts)}}},
          {"unanswered", object_of(facts.failures)}};
}

}  // namespace spark::ops
