// What is known about one node: the probe's answer as typed values. Rules (ops/doctor), preflight and the
// watcher look at Facts and at nothing else.
//
//   Faults faults;
//   Facts facts = read_facts(parse_dump(answer, faults), faults);    // never throws
//   if (facts.memory.available_kib && *facts.memory.available_kib < 5 << 20) ...
//   facts.why("gpu");                                // "is not installed"; why a value is unknown
//
// An empty optional means unknown, never "no": a missing tool, a missing privilege, a line that could not be
// understood (which is a fault as well). Sizes say their unit; everything else is as the node printed it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "ops/probe/dump.h"

namespace spark::ops {

struct IdentityFacts {
  std::string host_name;
  std::string machine_id;
  std::string boot_id;
  std::string user;
  std::string machine;             // "aarch64"
  std::string product;             // of the board
  std::string os_name;             // PRETTY_NAME
  std::string dgx_version;         // of DGX OS; empty: not a DGX OS
  std::optional<bool> privileged;  // root, or sudo without a password
  std::optional<double> uptime_s;
};

struct GrubFacts {
  bool known = false;
  std::map<std::string, std::string> entries;  // id ("sub>entry" inside a submenu) -> kernel release
  std::string default_entry;                   // resolved id; empty: none, or by number or title
  std::string next_entry;                      // one-shot override
  int lines_with_splash = 0;
};

struct ModuleFile {
  std::string path, version, srcversion, vermagic, signer;
};

struct KernelFacts {
  std::string release;
  std::optional<int64_t> page_size;
  std::optional<std::string> command_line;
  std::string driver;         // loaded NVIDIA driver; empty: none
  std::string nvidia_source;  // srcversion of the loaded modules
  std::string uvm_source;
  std::string leaf_packing;  // "Y", "N", or "stock" when the parameter does not exist
  std::string build_note;    // hexadecimal build id of the loaded nvidia module
  std::string huge_pages;    // transparent huge pages: "never", "madvise", "always"
  std::optional<int64_t> watermark_boost;
  std::optional<int64_t> min_free_kib;
  std::optional<int64_t> panic_s, panic_on_oops, panic_on_oom;
  std::vector<std::string> swaps;  // active
  bool swaps_known = false;
  std::set<std::string> governors;
  std::set<std::string> loaded_modules;
  std::map<std::string, bool> boot_files;                      // path -> present and not empty
  std::map<std::string, bool> pages_64k;                       // release -> built for 64 KiB pages
  std::map<std::string, ModuleFile> module_files;              // of the candidate, by module name
  std::optional<std::vector<std::string>> dkms;                // lines of `dkms status`
  std::optional<std::map<std::string, std::string>> packages;  // installed ones with their version
  std::optional<bool> secure_boot;
  std::optional<bool> fan_key_enrolled;
  GrubFacts grub;
  std::vector<std::string> modprobe_options;    // "file: line"
  std::optional<std::vector<std::string>> log;  // lines of the current boot that tell of faults
};

struct MemoryFacts {
  std::optional<int64_t> total_kib, free_kib, available_kib, swap_total_kib, swap_free_kib, cma_total_kib,
      cma_free_kib;
  std::optional<int64_t> huge_pages_reserved;
  std::vector<int64_t> free_blocks;              // by order: 2^order pages each, over all zones
  std::optional<int64_t> shm_kib;                // size of /dev/shm
  std::map<std::string, int64_t> cgroup_events;  // of the service: "oom", "oom_kill", "max", ...
};

struct Gid {
  int64_t index = 0;
  std::string type;  // "RoCE v2", "IB/RoCE v1"
  std::string gid;
  std::string netdev;
};

struct RdmaDevice {
  std::string name;
  std::string firmware;
  std::string state;       // "ACTIVE"
  std::string phys_state;  // "LinkUp"
  std::string link_layer;
  std::optional<double> rate_gbps;
  std::optional<int64_t> active_mtu;
  std::vector<Gid> gids;                   // populated slots
  std::string pcie_speed, pcie_max_speed;  // "32.0 GT/s PCIe"
  std::optional<int64_t> pcie_width, pcie_max_width;
  std::map<std::string, int64_t> aer;       // "fatal", "nonfatal", "correctable": totals
  std::map<std::string, int64_t> counters;  // port and hardware counters by name
};

struct LinkAddress {
  std::string address;
  int64_t prefix = 0;
  bool ipv6 = false;
  bool dynamic = false;
};

struct Link {
  std::string name;
  std::string mac;
  int64_t mtu = 0;
  bool up = false;       // administratively
  bool carrier = false;  // something answers at the other end
  std::vector<LinkAddress> addresses;
  std::optional<int64_t> speed_mbps;
};

struct Neighbour {
  std::string address, netdev, mac, state;
};

struct LldpPeer {
  std::string netdev;  // local
  std::string node;    // the other end's system name
  std::string port;    // the other end's interface
};

struct PathFacts {            // to the other end of one cable path
  std::string route_netdev;   // where the kernel would send it; empty: no route
  std::string route_gateway;  // not empty: not directly
  std::optional<bool> route_known;
  std::optional<bool> answers;  // to a packet of 9000 bytes that must not be split
  std::string answer;           // what ping said when it did not
};

struct PciFunction {
  std::string address, vendor, device, device_class, speed, max_speed;
  std::optional<int64_t> width, max_width;
};

struct Listener {
  std::string address;
  int64_t port = 0;
  std::string process;  // empty: not known
};

struct NetworkFacts {
  std::optional<std::vector<Link>> links;
  std::vector<Neighbour> neighbours;
  std::optional<std::vector<LldpPeer>> lldp;
  std::vector<RdmaDevice> rdma;
  std::optional<std::vector<PciFunction>> pci;
  std::map<std::string, PathFacts> paths;  // by local RDMA device
  std::optional<bool> forwards;            // net.ipv4.ip_forward
  std::string forward_policy;              // "ACCEPT", "DROP"; empty: unknown
  std::optional<int64_t> port_range_low, port_range_high;
  std::string reserved_ports;
  std::map<std::string, bool> ipv6_disabled;  // by interface
  std::optional<std::vector<Listener>> listeners;

  const Link* link(const std::string& name) const;
  const RdmaDevice* device(const std::string& name) const;
};

struct GpuFacts {
  std::string name, driver, performance_state;
  std::optional<double> clock_mhz, power_w, utilisation, memory_utilisation, temperature_c;
  std::optional<uint64_t> slowdown_reasons;
};

struct GpuProcess {
  int64_t pid = 0;
  std::string name;
};

struct Unit {
  std::string load, active, sub, file;  // LoadState, ActiveState, SubState, UnitFileState
  bool alias = false;                   // asked for by another name
  std::optional<int64_t> oom_score_adjust = {};
  std::optional<int64_t> memory_min_bytes = {};
  std::optional<double> start_limit_s = {};  // TimeoutStartUSec; empty: unlimited

  bool exists() const { return !load.empty() && load != "not-found"; }
  bool running() const { return active == "active" || active == "activating" || active == "reloading"; }
  bool enabled() const { return file == "enabled" || file == "enabled-runtime" || file == "alias"; }
};

struct HostFacts {
  std::string boot_target;
  std::string system_state;
  std::optional<std::vector<std::string>> failed_units;
  std::optional<std::map<std::string, Unit>> units;
  std::optional<double> runtime_watchdog_s, reboot_watchdog_s;
  std::string drm_modeset, drm_fbdev;  // "Y", "N"; empty: unknown
  std::optional<int64_t> nvidia_card;  // number of its DRM card
  bool cards_known = false;
  std::optional<std::vector<std::string>> drm_masters;  // "command/pid"
  std::string console;                                  // "tty1"; empty: unknown
  std::optional<int64_t> console_mode;                  // 0: text, 1: graphics
  std::optional<int64_t> fan_devices;                   // cooling devices of the fan floor
  struct BootEntry {
    std::string number, label;
  };
  std::optional<std::vector<BootEntry>> boot_entries;  // in boot order
  std::map<std::string, std::string>
      nvme_coalescing;                              // device -> value as hexadecimal digits, or "unreadable"
  std::optional<bool> sshd_valid;                   // sshd -t
  std::map<std::string, std::string> sshd;          // effective limits, by lower-case name
  std::map<std::string, std::string> policy_files;  // path -> SHA-256 of the recovery policy's files
  bool policy_files_known = false;
  std::map<std::string, std::string> limits;  // "l", "n", "s" of ulimit
  std::optional<bool> time_synchronised;
  std::optional<double> clock_start_s, clock_end_s;  // the node's clock when the script began and ended
  std::vector<std::string> holds;
};

// The service beside Docker and systemd: a rank that is a process of its own, and the memory guard's status.
struct ServiceFacts {
  struct Process {
    bool recorded = false;  // one was started and not removed since
    bool running = false;
    int64_t pid = 0;
  };
  std::optional<Process> process;                           // asked for where ranks run as processes
  std::optional<std::map<std::string, std::string>> guard;  // "state", "phase", ...; empty map: there is none
  bool guard_alive = false;

  bool guarded() const;  // a living guard watches the service
};

struct DiskFacts {
  std::string filesystem, mounted_on;
  int64_t size_kib = 0, free_kib = 0;
};

struct ContainerFacts {
  bool running = false;
  int64_t exit_code = 0;
  bool oom_killed = false;
  std::string image;  // tag
  std::string image_id;
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
  std::map<std::string, std::pair<std::string, std::string>> binds;  // destination -> source, mode
  std::string network_mode, ipc_mode;
  int64_t memory_bytes = 0;
  std::string restart_policy;
};

struct ImageFacts {
  std::string id;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> environment;
};

struct DockerFacts {
  bool answers = false;
  std::string server_version, storage_driver, root_folder;
  std::set<std::string> runtimes;
  struct Running {
    std::string id, image, name;
  };
  std::vector<Running> running;
  std::optional<bool> container_exists;
  std::optional<ContainerFacts> container;
  std::optional<ImageFacts> container_image;
  std::optional<bool> image_exists;
  std::optional<ImageFacts> image;  // the profile's
};

struct ShardFacts {
  std::string name;
  int64_t bytes = 0;
  std::optional<int64_t> needed_bytes;  // what its header says; empty: the header cannot be read
};

struct ModelFacts {
  bool asked = false;
  bool index = false;                    // model.safetensors.index.json could be read
  std::optional<int64_t> total_bytes;    // of all tensors
  std::vector<std::string> shard_names;  // that the index names, sorted
  std::map<std::string, ShardFacts> shards;
  struct Extents {
    std::string file;
    int64_t current = 0, best = 0;
  };
  std::optional<std::vector<Extents>> extents;
  std::string extents_failure;
};

struct DeploymentFacts {
  std::string commit;
  std::optional<std::vector<std::string>> changes;
  std::map<std::string, std::string> mounts;  // source -> "e", "r", "w" as it applies; "-": absent
};

struct Facts {
  IdentityFacts identity;
  KernelFacts kernel;
  MemoryFacts memory;
  NetworkFacts network;
  std::optional<GpuFacts> gpu;
  std::vector<GpuProcess> gpu_processes;
  HostFacts host;
  ServiceFacts service;
  std::vector<DiskFacts> disks;
  DockerFacts docker;
  ModelFacts model;
  DeploymentFacts deployment;
  std::map<std::string, std::string> failures;  // section -> why it gave no answer

  // Why a section has no value; "was not asked for" when it is not known.
  std::string why(const std::string& section) const;
};

Facts read_facts(const ProbeDump& dump, Faults& faults);

// One document with everything, for `spark probe --json`; unknown values are null or absent.
Json facts_json(const Facts& facts);

}  // namespace spark::ops
