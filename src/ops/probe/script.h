// The one read-only round trip: a POSIX shell script that a node's own sh reads from standard input. Nothing
// of ours needs to be installed there. It prints a framed answer (dump.h) of files and of command outputs.
//
//   std::string script = probe_script(probe_request(site, *site.nodes.find("node2")));
//   ssh user@node2 sh -s < script                        // ops/remote; or sh -c script on this machine
//
// What it promises: it writes nothing and starts nothing that outlives it; every command that could
// wait has a time limit and all have an empty standard input; a missing command, a missing privilege and a
// hanging device each become an entry of the answer. Groups of commands run side by side. Nothing runs before
// the script has arrived whole. Values of variables whose name says KEY, TOKEN, SECRET or PASSWORD do not
// leave the node.
//
// With a root other than "/" the same script reads a recorded tree (record.h) instead: files at their places
// below the root, command outputs in ROOT/.commands.
#pragma once

#include <string>
#include <vector>

#include "ops/site/site.h"

namespace spark::ops {

struct ProbePeer {
  std::string device;   // local RDMA device of the path
  std::string netdev;   // the interface that belongs to it
  std::string address;  // of the other end
};

// What depends on the site. Everything may be empty: the script then leaves that question out.
struct ProbeRequest {
  std::string root = "/";
  std::string container = {};  // empty: the service is a unit or a process
  std::string service = {};    // container, unit or process
  std::string runtime = {};    // "container", "unit" or "process"
  std::string image = {};
  std::string model_folder = {};  // on the node, as the mount's source says
  std::string checkout = {};      // the deployment repository on the node
  std::string guard_program = {};
  std::string candidate = {};  // kernel releases of the policy
  std::string fallback = {};
  std::string fan_certificate = {};
  std::vector<std::string> packages = {};
  std::vector<std::string> mount_sources = {};
  std::vector<std::string> files = {};         // asked as mount sources are, without their disks
  std::vector<std::string> policy_files = {};  // of the recovery policy (their digests are asked for)
  std::vector<ProbePeer> peers = {};
  int limit_s = 5;            // per command
  bool fragmentation = true;  // ask ext4 about the checkpoint's extents; takes up to 15 s on a cold disk
};

// `policy_files` is left to the caller, who has the recovery policy.
ProbeRequest probe_request(const Site& site, const Node& node);

std::string probe_script(const ProbeRequest& request);

// Units that eat memory on an idle node (specification 3.2.1).
const std::vector<std::string>& idle_units();

}  // namespace spark::ops
