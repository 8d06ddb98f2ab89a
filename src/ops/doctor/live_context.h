// What a live rule sees and where it puts its findings.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/doctor/live.h"
#include "ops/doctor/rule.h"
#include "ops/fabric/layout.h"

namespace spark::ops {

// A node that answered.
struct LiveNode {
  const Node& node;
  const Facts& facts;
  const NodeAnswer& answer;

  const std::string& name() const { return node.name; }
  // nullptr where systemd was not asked or does not know the unit.
  const Unit* unit(const std::string& unit_name) const;
};

// One end of one path of a cable.
struct PathEnd {
  size_t cable = 0;  // number, from 1
  const Cable* of = nullptr;
  int64_t stripe = 0;
  const CableEnd* end = nullptr;  // this end
  const CableEnd* other = nullptr;
  const StripeEnd* mine = nullptr;
  const StripeEnd* theirs = nullptr;
  std::string subnet;

  std::string place() const;       // "node1 port 0 path 2"
  std::string cable_name() const;  // "cable 1 (node1 port 0 - node2 port 1)"
};

class LiveContext {
 public:
  LiveContext(const Site& loaded, const std::vector<NodeAnswer>& all, const LiveOptions& wanted,
              Findings& findings);

  const Site& site;
  const ClusterProfile& profile;
  const std::vector<NodeAnswer>& answers;
  const LiveOptions& options;
  std::optional<FabricLayout> layout;  // empty: the map is no triangle or ring

  const std::vector<LiveNode>& nodes() const { return nodes_; }
  const LiveNode* find(const std::string& name) const;  // null: did not answer
  std::vector<PathEnd> path_ends(const std::string& node) const;
  std::vector<PathEnd> ends_of(const Cable& cable) const;  // both ends of every path: a, b, a, b, ...

  void begin(const Rule& rule) { rule_ = &rule; }
  void error(const std::string& where, std::string evidence, std::string expected, std::string fix,
             std::vector<std::string> details = {});
  void warn(const std::string& where, std::string evidence, std::string expected, std::string fix,
            std::vector<std::string> details = {});
  // A warning that something cannot be read, with the reason that its section gives. Silent when the whole
  // answer was damaged, which is reported already.
  void unknown(const LiveNode& node, const std::string& what, const std::string& section);
  // A kernel correction; they are listed once, at the end.
  void correction(const LiveNode& node, const std::string& command);
  void report_corrections();

  bool is_vllm() const { return profile.engine_kind == EngineKind::kVllm; }
  bool in_container() const { return profile.in_container(); }
  // Whether a rank is a process of its own, which neither Docker nor systemd knows.
  bool as_process() const { return !in_container() && profile.host.supervisor != "systemd"; }
  bool serving(const LiveNode& node) const;  // its container, unit or process runs
  bool on_64k(const LiveNode& node) const { return node.facts.kernel.page_size == 65536; }

 private:
  void add(Severity severity, const std::string& where, std::string evidence, std::string expected,
           std::string fix, std::vector<std::string> details);

  const Rule* rule_ = nullptr;
  Findings& findings_;
  std::vector<LiveNode> nodes_;
  std::vector<std::string> corrections_;
};

inline constexpr const char* kQualifiedDgxOs = "26.09.2";

// Dotted numbers, compared part by part: "26.9" is older than "26.09.2", "2.30.7" than "2.31".
bool older_version(const std::string& version, const std::string& wanted);

// The rules, by subject (live_*.cpp). Those with a node are called for every node that answered.
namespace live {
using NodeRule = void(LiveContext&, const LiveNode&);
using ClusterRule = void(LiveContext&);

ClusterRule reachable, hardware, same_machine, clock_skew, alignment, corrections;
NodeRule answer, privilege, management_address, os_version, time_sync, holds;

NodeRule kernel_running, kernel_required, kernel_kho, kernel_driver, kernel_build_note, kernel_packages,
    kernel_boot_files, kernel_headers, kernel_cpupower, kernel_governor, kernel_modules, kernel_fan_dkms,
    kernel_signing, kernel_grub_entry, kernel_grub_default, kernel_boot_override, kernel_memory_policy,
    kernel_swap_file, kernel_memory_service, kernel_memory_saver, kernel_watermark_boost, kernel_log,
    kernel_modprobe, kernel_port_range;

NodeRule memory_total, memory_available, memory_fragmentation, memory_huge_pages, memory_swap_use, memory_shm,
    memory_lock_limit, memory_events, disk_space;

NodeRule host_boot_target, host_display_manager, host_boot_order, host_modeset, host_fbdev, host_drm_card,
    host_drm_master, host_console, host_splash, host_idle_services, host_nvme, host_fans, host_failed_units,
    host_boot_complete, recovery_files, recovery_watchdog, recovery_panic, recovery_ssh, recovery_timer,
    recovery_plymouth, recovery_sshd;

NodeRule gpu_present, gpu_clock, gpu_hang, gpu_processes, gpu_slowdown, gpu_temperature;

NodeRule fabric_devices, fabric_functions, fabric_state, fabric_rate, fabric_rdma_mtu, fabric_gid,
    fabric_gid_subnet, fabric_pcie, fabric_aer, fabric_errors, fabric_firmware, fabric_address, fabric_ipv6,
    fabric_mtu, fabric_route, fabric_forwarding, fabric_verbs;
ClusterRule fabric_link, fabric_cabling, fabric_path, fabric_duplicates, fabric_firmware_same;

NodeRule docker_engine, docker_storage, docker_runtime, service_container, service_running, service_image,
    service_command, service_environment, service_mounts, service_labels, service_limits, service_guard,
    service_guard_program, service_ports, service_mount_sources, service_secrets, service_nccl,
    service_foreign, deployment_clean;
ClusterRule service_image_id, deployment_commit;

NodeRule model_present, model_whole, model_fragmentation;
ClusterRule model_same, model_fragmentation_hint;
}  // namespace live

}  // namespace spark::ops
