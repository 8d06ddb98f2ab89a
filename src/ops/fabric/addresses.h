// From a list of machines in cable order to a complete node map, and from a node map to the network
// configuration of every machine.
//
//   NodeMap map = plan_addresses({.ssh_user = "spark", .nodes = {{"node1", "192.0.2.1"}, ...}});
//   write_file_atomic("config/nodes.json", node_map_text(map));
//   for (const NetplanFile& file : netplan_files(map)) ...
//
// The convention: port 0 goes to the next machine, port 1 to the one before; path p of the cable between the
// machines number a < b has the subnet OCTET.ab.p.0/24, and a machine's address in it ends in its number.
// Numbers are ranks + 1, the first machine is the head.
#pragma once

#include <string>
#include <vector>

#include "ops/site/node_map.h"

namespace spark::ops {

struct NodeSeed {
  std::string name;
  std::string management_ip;
  std::string ssh_host;  // empty: `name`
};

struct AddressRequest {
  std::string ssh_user;
  std::vector<NodeSeed> nodes;  // in cable order, head first
  int64_t first_octet = 10;
};

// Throws Error that lists every fault: number of nodes, names, addresses, a subnet that would hold a
// management address.
NodeMap plan_addresses(const AddressRequest& request);

// Subnet of path 1 or 2 of the cable between two ranks.
std::string cable_subnet(int64_t first_octet, int64_t rank, int64_t other, int path);

// Throws Error when management address and fabric subnets overlap; planners call it last.
void refuse_overlap(const NodeMap& map);

// A file to read and edit: one line per key, as in config/nodes.example.json.
std::string node_map_text(const NodeMap& map);

struct NetplanFile {
  std::string node;
  std::string ssh;      // user@host
  std::string netplan;  // content of kNetplanPath
  std::string revert;   // a script for the node that takes everything back
};

inline constexpr const char* kNetplanPath = "/etc/netplan/40-cx7.yaml";

// Throws Error when the map states no subnets or its devices are not those of a Spark's fabric ports.
std::vector<NetplanFile> netplan_files(const NodeMap& map);

// Shell commands that a person runs to install, check and revert the files written below `folder`.
std::string netplan_commands(const NodeMap& map, const std::string& folder);

}  // namespace spark::ops
