// The recovery policy of a node: what keeps it manageable when the model takes its memory, or its kernel
// breaks. The files stand under host/recovery exactly as they are installed; this is the list of them.
//
//   RecoveryPolicy policy = load_recovery_policy(Repository("."), {});
//   for (const PolicyFile& file : policy.files) install(file.path, file.content, file.mode);
//
// Not its business: the serving container, Docker, the network, reboots for lost connectivity, panics for
// ordinary shortages of memory or hung tasks.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/site/repository.h"

namespace spark::ops {

struct PolicyFile {
  std::string path;  // on the node
  unsigned mode = 0644;
  std::string module;  // "core" and the optional ones: "tailscale", "plymouth", "console", "watermark"
  std::string content;
};

struct RecoveryPolicy {
  std::vector<PolicyFile> files;

  // path -> SHA-256, for the live rule that compares nodes with it
  std::map<std::string, std::string> digests() const;
};

const std::vector<std::string>& recovery_modules();

// Files that an earlier policy left behind.
const std::vector<std::string>& retired_policy_files();

// All files but those of `without`. Throws Error when a file is missing or a module is not known.
RecoveryPolicy load_recovery_policy(const Repository& repository, const std::set<std::string>& without = {});

inline constexpr const char* kPolicyFolder = "host/recovery";

}  // namespace spark::ops
