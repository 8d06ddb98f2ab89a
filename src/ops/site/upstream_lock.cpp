#include "ops/site/upstream_lock.h"

#include "ops/site/json_object.h"

namespace spark::ops {
namespace {

std::string text_or_empty(const JsonReader& reader) {
  return reader.optional_string().value_or("");
}

void check_canonical_base(const JsonReader& reader) {
  if (!reader.present() || !require_object(reader)) return;
  reader.reject_unknown({"upstream", "revision"});
  reader.field("upstream").string();
  reader.field("revision").string();
}

LockedSource read_source(const std::string& name, const JsonReader& reader) {
  LockedSource source;
  source.name = name;
  if (!require_object(reader)) return source;
  reader.reject_unknown({"kind", "upstream", "revision", "tracking_ref", "revision_url", "role",
                         "release_tag", "version", "contribution_remote", "patch_series",
                         "applied_upstream_commits", "submodules", "lockfile", "canonical_base", "tag",
                         "source_revision", "recorded_base_digest"});
  source.kind = reader.field("kind").string();
  if (reader.field("kind").present() && source.kind != "git" && source.kind != "oci" &&
      source.kind != "pypi-wheel-set" && source.kind != "huggingface") {
    reader.field("kind").fault("is \"" + source.kind +
                               "\"; it must be git, oci, pypi-wheel-set or huggingface");
  }
  source.upstream = text_or_empty(reader.field("upstream"));
  source.revision = text_or_empty(reader.field("revision"));
  source.tracking_ref = text_or_empty(reader.field("tracking_ref"));
  source.version = text_or_empty(reader.field("version"));
  for (const char* key : {"revision_url", "role", "release_tag", "tag"}) reader.field(key).optional_string();
  const JsonReader fork = reader.field("contribution_remote");
  if (fork.present() && !fork.json()->is_null()) source.contribution_remote = fork.string();
  const JsonReader series = reader.field("patch_series");
  if (series.present() && !series.json()->is_null()) source.patch_series = series.string();
  if (const JsonReader commits = reader.field("applied_upstream_commits"); commits.present()) {
    for (const JsonReader& commit : commits.items()) {
      if (require_object(commit))
        source.applied_upstream_commits.push_back(commit.field("revision").string());
    }
  }
  source.submodules = reader.field("submodules").optional_boolean().value_or(false);
  source.lockfile = reader.field("lockfile").optional_string();
  check_canonical_base(reader.field("canonical_base"));
  source.recorded_base_digest = text_or_empty(reader.field("recorded_base_digest"));
  source.source_revision = text_or_empty(reader.field("source_revision"));
  return source;
}

WatchedReference read_reference(const std::string& name, const JsonReader& reader) {
  WatchedReference reference;
  reference.name = name;
  if (!require_object(reader)) return reference;
  reader.reject_unknown(
      {"kind", "url", "role", "observed_revision", "observed_tag", "reference", "added_to_watchlist"});
  reference.kind = text_or_empty(reader.field("kind"));
  reference.url = text_or_empty(reader.field("url"));
  reference.role = text_or_empty(reader.field("role"));
  for (const char* key : {"observed_revision", "observed_tag", "reference", "added_to_watchlist"}) {
    reader.field(key).optional_string();
  }
  return reference;
}

}  // namespace

const LockedSource* UpstreamLock::find(std::string_view name) const {
  for (const LockedSource& source : sources) {
    if (source.name == name) return &source;
  }
  return nullptr;
}

std::vector<BuildProject> build_projects() {
  return {{"vllm", false},    {"b12x", false},        {"nccl", false},
          {"tilelang", true}, {"tile_kernels", true}, {"sparknet", true}};
}

UpstreamLock read_upstream_lock(const Json& document, Faults& faults) {
  UpstreamLock lock;
  const JsonReader root(document, "", faults);
  if (!require_object(root)) return lock;
  root.reject_unknown({"schema_version", "description", "generated_from_baseline", "source_manifest",
                       "sources", "references"});
  root.field("schema_version").integer(1, 1, 1);
  root.field("description").optional_string();
  lock.generated_from_baseline = root.field("generated_from_baseline").string();
  lock.source_manifest = root.field("source_manifest").string();
  if (const JsonReader sources = root.field("sources"); require_object(sources)) {
    for (const auto& [name, value] : sources.members()) lock.sources.push_back(read_source(name, value));
  }
  if (const JsonReader references = root.field("references"); references.present()) {
    for (const auto& [name, value] : references.members())
      lock.references.push_back(read_reference(name, value));
  }
  return lock;
}

}  // namespace spark::ops
