// The source manifest (manifests/sources/*.json): what the lock's sources are once their patches are applied,
// and the hashes of repository files that must not drift.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct ManifestProject {
  std::string name;
  std::string base_revision;
  std::optional<std::string> patch_series;
  std::string patchset_sha256;
  std::string patch_head;
  std::string expected_tree;  // Git tree; the value of the image's label
  std::vector<std::string> capabilities;
  std::vector<std::pair<std::string, std::string>> submodules;  // path, commit

  bool has(std::string_view capability) const;
};

struct SourceManifest {
  std::vector<ManifestProject> projects;
  std::vector<std::pair<std::string, std::string>> deployment_artifacts;  // path, sha256

  const ManifestProject* find(std::string_view name) const;
  bool has(std::string_view project, std::string_view capability) const;
};

SourceManifest read_source_manifest(const Json& document, Faults& faults);

}  // namespace spark::ops
