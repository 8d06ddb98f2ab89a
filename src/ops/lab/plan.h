// What a lab consists of, before anything is created: nodes, addresses, cables, names. Pure.
//
//   LabPlan plan = plan_lab({.directory = "/srv/lab", .nodes = 3});
//   plan.map                 // the node map that `spark fabric plan` would make for three machines
//   plan.links               // six veth pairs: three cables of two stripes
//   plan.node("node2").interfaces
//
// Interfaces have the names that they have on a DGX Spark (ops/fabric/ports.h), the management network has
// the documentation addresses 192.0.2.1 and up, and the operator's side of it is 192.0.2.254.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/site/node_map.h"

namespace spark::ops {

inline constexpr const char* kLabManagementInterface = "enP7s7";
inline constexpr const char* kLabOperatorAddress = "192.0.2.254";
inline constexpr const char* kLabUser = "root";

inline constexpr size_t kLabIdDigits = 8;

struct LabOptions {
  std::string directory = {};  // of the lab; created
  int64_t nodes = 3;           // 3: triangle, 4: ring
  int64_t memory_bytes =
      int64_t{8} << 30;                   // of each node: limit of its cgroup, MemTotal in its /proc/meminfo
  int64_t disk_bytes = int64_t{1} << 30;  // of each node: what it may write (it lies in memory)
  bool docker = true;                     // start an engine on every node
  std::string spark_program = {};         // absolute path of this program, for the SSH configuration
  std::string engine_program = {};        // spark-engine for the image; empty or absent: no image
  std::string guard_program = {};         // spark-guard; same
  std::string repository = {};            // where config/ and manifests/ of the lab's site are copied from
};

struct LabInterface {
  std::string name;     // "enp1s0f0np0"
  std::string address;  // "10.12.1.1/24"
  int mtu = 1500;
  std::string mac;  // of the cable's end that belongs here: "58:ff:01:00:00:01"
};

struct LabNode {
  std::string name;
  int64_t rank = 0;
  std::string management_ip;
  std::vector<LabInterface> interfaces;  // fabric ports in the order of ops/fabric/ports.h
};

// One veth pair: one stripe of one cable.
struct LabLink {
  int64_t rank_a = 0;
  std::string interface_a;
  int64_t rank_b = 0;
  std::string interface_b;
  int64_t stripe = 0;
};

struct LabPlan {
  LabOptions options;
  std::string id;  // eight hexadecimal digits of the directory's digest; names cgroups and hosts
  NodeMap map;
  std::vector<LabNode> nodes;  // by rank
  std::vector<LabLink> links;

  const LabNode& node(const std::string& name) const;  // throws Error that lists the names
  std::string cgroup() const { return "spark-lab-" + id; }
  std::string path(const std::string& below) const { return options.directory + "/" + below; }
};

// Throws Error: number of nodes, sizes, a directory that is not absolute.
LabPlan plan_lab(const LabOptions& options);

}  // namespace spark::ops
