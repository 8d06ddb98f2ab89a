// Command lines that run a program inside a node or on the management network of a running lab.
//
//   run_process(node_command(state, "node2", {"ip", "addr"}));
#pragma once

#include <string>
#include <vector>

#include "ops/lab/state.h"

namespace spark::ops {

// With the node's namespaces, cgroups and a small environment of its own. What it leaves in the background
// belongs to the node.
std::vector<std::string> node_command(const LabState& state, const std::string& node,
                                      const std::vector<std::string>& arguments);

// With this machine's files and environment, but the lab's management network: what a fourth machine beside
// the nodes would see.
std::vector<std::string> operator_command(const LabState& state, const std::vector<std::string>& arguments);

// Runs a shell script in a node (through standard input) and returns its output; a failure is an Error with
// what it printed last.
std::string run_in_node(const LabState& state, const std::string& node, const std::string& script,
                        double timeout_s);

// Moves this process into the management network's cgroups and namespace, so that it ends with the lab.
void join_operator(const LabState& state);

// Copies bytes between this process's standard streams and port 22 of a node until either side closes: the
// ProxyCommand of the lab's SSH configuration. Throws Error when nothing answers.
void connect_node(const LabState& state, const std::string& node);

}  // namespace spark::ops
