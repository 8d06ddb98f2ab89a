// The files of a lab's directory.
#pragma once

#include <string>

#include "common/child_process.h"
#include "ops/lab/plan.h"
#include "ops/lab/texts.h"

namespace spark::ops {

// Held while a command changes a lab; a second command waits at most `timeout_s`. kClaim: the directory
// becomes a lab's (claim_directory); kExisting: Error when there is no lab, or none any more when the wait
// ends.
enum class LabLock { kExisting, kClaim };
Descriptor lock_lab(const std::string& directory, double timeout_s, LabLock lock = LabLock::kExisting);

// The lab's ID in its marker, which lock_lab returned: it names the lab's cgroups even when state.json is
// damaged or the directory has been moved. Empty when there is none.
void mark_lab(int marker, const std::string& id);
std::string marked_id(const std::string& directory);

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
