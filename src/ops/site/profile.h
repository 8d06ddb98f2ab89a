// The cluster profile: what must run. This is its resolved form, in which inheritance, the site file and
// typed engine settings have become plain values (ops/site/layers.h, ops/site/engine_render.h). A profile in
// the reference deployment's format is already in this form.
//
//   ClusterProfile profile = read_profile(document, faults);
//   profile.environment.at("NCCL_ALGO"); profile.serve_args; profile.transport->neighbour_ring;
//
// Reading checks types, ranges and names of keys; what values must agree is ops/doctor's business.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "ops/site/transport.h"

namespace spark::ops {

struct Mount {
  std::string source;       // on the node; {home} and {deployment} expanded
  std::string destination;  // in the container
  std::string mode;         // "ro" or "rw"
};

struct ContainerSpec {
  std::string name;  // the guard unit is NAME-memguard.service
  std::string image;
  std::vector<std::pair<std::string, std::string>> expected_labels;
  std::vector<std::string> docker_run_args;
  std::vector<Mount> mounts;
};

// The running kernel that the memory budget was qualified on.
struct KernelRequirement {
  std::string release;    // empty: not stated
  int64_t page_size = 0;  // 4096 or 65536; 0: not stated
  bool memory_saver_required = false;
};

struct HostSpec {
  std::string home;
  int64_t memguard_gib = 0;
  double memguard_interval_seconds = 0;
  int64_t startup_memguard_gib = 0;
  double startup_memguard_interval_seconds = 0;
  int64_t startup_memguard_wait_seconds = 0;
  std::optional<KernelRequirement> kernel;
  std::string kernel_policy = "config/kernel-trial.json";
  // "spark": DGX Spark, or "generic": any Linux machine, as in a lab, for which the live rules about a
  // Spark's own hardware and kernel are not applied (the doctor says so).
  std::string hardware = "spark";
  // Who keeps the memory guard (and a native engine without container) running: "systemd", or "process" on
  // machines without it.
  std::string supervisor = "systemd";
  std::string nvme_coalescing = "ignore";  // "on", "off" or "ignore": measurements found no gain in either
};

struct DistributedSpec {
  std::string master_addr;
  int64_t master_port = 0;
};

struct DeploymentSpec {
  bool launch_enabled = false;
  std::string repository;
  std::optional<std::string> branch;
  std::string path;
  std::string ready_url;
  int64_t ready_timeout_seconds = 0;
};

enum class EngineKind { kVllm, kNative };

// How the native engine runs on a node when it is not in a container: a systemd unit, or a process.
struct NativeSpec {
  std::string service;         // unit name without ".service"
  std::string program;         // path of spark-engine on the nodes
  int64_t memory_max_gib = 0;  // cgroup limit; swap is not used
};

struct ClusterProfile {
  std::string promoted_baseline;
  std::optional<std::string> benchmark_reference;
  std::string nodes_config = "config/nodes.json";
  std::string upstreams_config = "upstreams.lock.json";
  std::string kernel_backend = kDefaultKernelFamily;
  std::string transport_name = kDefaultTransport;
  const TransportTraits* transport = nullptr;  // null: transport_name is unknown
  int64_t mesh_paths = 2;
  EngineKind engine_kind = EngineKind::kVllm;
  ContainerSpec container;  // always for vllm; for native when the profile has one, without a name otherwise
  NativeSpec native;        // native only
  HostSpec host;
  std::map<std::string, std::string> environment;
  std::vector<std::string> serve_args;
  std::string secret_environment_file;  // on the nodes; empty: none
  DistributedSpec distributed;
  DeploymentSpec deployment;
  std::optional<Json> tuning_origin;

  bool in_container() const { return engine_kind == EngineKind::kVllm || !container.name.empty(); }
  // Container or unit name; what the guard watches.
  const std::string& service_name() const { return in_container() ? container.name : native.service; }
  std::string environment_value(const std::string& name) const;  // "" when absent
};

ClusterProfile read_profile(const Json& resolved, Faults& faults);

// Replaces {home} by the home folder and {deployment} by the checkout; what has no value yet stays.
std::string expand_places(const std::string& text, const std::string& home,
                          const std::string& deployment = {});

}  // namespace spark::ops
