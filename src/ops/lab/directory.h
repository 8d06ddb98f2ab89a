// The files of a lab's directory.
#pragma once

#include <string>

#include "common/child_process.h"
#include "ops/lab/plan.h"
#include "ops/lab/texts.h"

namespace spark::ops {

// Held while a command changes a lab; a second command waits at most `timeout_s`. Throws Error.
Descriptor lock_lab(const std::string& directory, double timeout_s);

// Refuses a directory that holds anything that no lab wrote.
void claim_directory(const std::string& directory);
void remove_lab_files(const std::string& directory);

// Host and user keys of every node, ssh_config and known_hosts.
std::vector<NodeKeys> write_keys(const LabPlan& plan);

// site/: a repository with the profiles of `options.repository`, the lab's node map, profile and site file;
// shared/origin.git: the same, bare, as the origin that nodes fetch from. Returns false when the repository
// has no profiles to copy.
bool write_site(const LabPlan& plan);

// shared/bin: the programs that exist.
void share_programs(const LabPlan& plan);

}  // namespace spark::ops
