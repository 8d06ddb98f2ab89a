#include "ops/site/source_manifest.h"

#include <algorithm>

#include "ops/site/json_object.h"

namespace spark::ops {
namespace {

ManifestProject read_project(const std::string& name, const JsonReader& reader) {
  ManifestProject project;
  project.name = name;
  if (!require_object(reader)) return project;
  reader.reject_unknown({"base_revision", "patch_series", "patchset_sha256", "patch_head", "expected_tree",
                         "capabilities", "submodules", "verification"});
  project.base_revision = reader.field("base_revision").string();
  const JsonReader series = reader.field("patch_series");
  if (series.present() && !series.json()->is_null()) project.patch_series = series.string();
  project.patchset_sha256 = reader.field("patchset_sha256").string();
  project.patch_head = reader.field("patch_head").optional_string().value_or("");
  project.expected_tree = reader.field("expected_tree").string();
  if (const JsonReader list = reader.field("capabilities"); list.present()) {
    for (const JsonReader& item : list.items()) project.capabilities.push_back(item.string());
  }
  if (const JsonReader modules = reader.field("submodules"); modules.present()) {
    for (const auto& [path, commit] : modules.members())
      project.submodules.emplace_back(path, commit.string());
  }
  reader.field("verification").optional_string();
  return project;
}

}  // namespace

bool ManifestProject::has(std::string_view capability) const {
  return std::find(capabilities.begin(), capabilities.end(), capability) != capabilities.end();
}

const ManifestProject* SourceManifest::find(std::string_view name) const {
  for (const ManifestProject& project : projects) {
    if (project.name == name) return &project;
  }
  return nullptr;
}

bool SourceManifest::has(std::string_view project, std::string_view capability) const {
  const ManifestProject* found = find(project);
  return found != nullptr && found->has(capability);
}

SourceManifest read_source_manifest(const Json& document, Faults& faults) {
  SourceManifest manifest;
  const JsonReader root(document, "", faults);
  if (!require_object(root)) return manifest;
  for (const auto& [key, value] : root.members()) {
    if (key == "schema_version") {
      value.integer(1, 1, 1);
    } else if (key == "captured_at" || key == "description") {
      value.string();
    } else if (key == "runtime_foundation") {
      require_object(value);  // free text and versions
    } else if (key == "deployment_artifacts") {
      for (const auto& [path, hash] : value.members())
        manifest.deployment_artifacts.emplace_back(path, hash.string());
    } else {
      manifest.projects.push_back(read_project(key, value));
    }
  }
  for (const char* key : {"schema_version", "captured_at"}) {
    if (!root.field(key).present()) root.field(key).fault("is missing");
  }
  return manifest;
}

}  // namespace spark::ops
