// The texts of a lab: scripts and configuration files, from the plan alone. Pure.
#pragma once

#include <map>
#include <string>

#include "ops/lab/plan.h"

namespace spark::ops {

// Input of `ip -batch -`: every cable, created directly inside the namespaces of the processes at its ends
// (nothing ever appears in the namespace of this machine).
std::string link_batch(const LabPlan& plan, pid_t network, const std::vector<pid_t>& nodes);
std::string network_batch(const LabPlan& plan);  // inside the management network
std::string node_batch(const LabNode& node);     // inside a node

std::string host_alias(const LabPlan& plan, const std::string& node);  // "node1.1a2b3c4d.spark-lab"
std::string ssh_configuration(const LabPlan& plan);
std::string known_hosts(const LabPlan& plan, const std::map<std::string, std::string>& public_keys);
std::string server_configuration();  // of sshd in a node

struct NodeKeys {
  std::string host_private;
  std::string host_public;
  std::string user_public;
};
// Starts the services of a node; prints nothing. The checkout of the site's repository is made when there is
// an origin.
std::string start_ssh_script(const NodeKeys& keys);
std::string checkout_script(const std::string& deployment);
// Starts the node's container engine and waits until it answers; prints its version.
std::string start_docker_script(const LabPlan& plan, const std::string& node);
std::string load_image_script();

inline constexpr const char* kLabHome = "/root";
inline constexpr const char* kLabDeployment = "/root/projects/spark-deploy";
inline constexpr const char* kLabProfile = "config/lab.json";                   // ranks in containers
inline constexpr const char* kLabProcessProfile = "config/lab-processes.json";  // ranks as processes
inline constexpr const char* kLabImage = "spark-engine:lab";

// The profile and the site file of the lab's own repository.
std::string lab_profile(const LabPlan& plan);
std::string lab_process_profile();
std::string lab_site_file();

}  // namespace spark::ops
