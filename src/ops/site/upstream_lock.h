// The upstream lock (upstreams.lock.json): every source that goes into the image, pinned, and a watch-list.
//
// Reading checks form; that pins are complete and files exist is ops/doctor's business, so optional text that
// a rule asks for is an empty string when absent.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct LockedSource {
  std::string name;
  std::string kind;  // git, oci, pypi-wheel-set, huggingface
  std::string upstream;
  std::string revision;
  std::string tracking_ref;
  std::string version;
  std::string contribution_remote;
  std::optional<std::string> patch_series;
  std::vector<std::string> applied_upstream_commits;
  bool submodules = false;
  std::optional<std::string> lockfile;
  std::string recorded_base_digest;  // oci
  std::string source_revision;       // oci: commit that the base image was built from
};

struct WatchedReference {
  std::string name;
  std::string kind;
  std::string url;
  std::string role;
};

struct UpstreamLock {
  std::string generated_from_baseline;
  std::string source_manifest;
  std::vector<LockedSource> sources;
  std::vector<WatchedReference> references;

  const LockedSource* find(std::string_view name) const;
};

UpstreamLock read_upstream_lock(const Json& document, Faults& faults);

// Projects of the image that are built from Git with patches, in build order, and whether each is optional.
struct BuildProject {
  const char* name;
  bool optional;
};
std::vector<BuildProject> build_projects();

}  // namespace spark::ops
