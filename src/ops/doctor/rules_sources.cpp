// Rules about sources: lock, patches, manifest, image labels, artifacts, secrets.
#include <algorithm>

#include "common/url_secrets.h"
#include "ops/doctor/rule.h"
#include "ops/site/text_forms.h"

namespace spark::ops::rule {
namespace {

constexpr const char* kLabelPrefix = "local.spark3.";

std::string label_of(const std::string& project) {
  return kLabelPrefix + project + ".tree";
}

std::optional<std::string> expected_label(const ClusterProfile& profile, const std::string& project) {
  for (const auto& [name, value] : profile.container.expected_labels) {
    if (name == label_of(project)) return value;
  }
  return {};
}

// The profile's label of a project must be the manifest's tree.
void check_label(RuleContext& context, const std::string& project) {
  const ManifestProject* record = context.site.manifest->find(project);
  if (record == nullptr) return;  // sources.fingerprints or the caller reports it
  const auto label = expected_label(context.profile, project);
  if (label == record->expected_tree) return;
  context.error("container.expected_labels." + label_of(project), label ? "is " + *label : "is not expected",
                record->expected_tree + ", the tree in " + context.site.manifest_file,
                "set the label to " + record->expected_tree);
}

void require_source(RuleContext& context, const std::string& project, const std::string& because) {
  if (context.site.lock->find(project) != nullptr) return;
  context.error_in(context.profile.upstreams_config, "sources." + project, "is missing", "listed: " + because,
                   "add the source " + project + " with its pin");
}

void require_capability(RuleContext& context, const std::string& project, const std::string& capability,
                        const std::string& because) {
  if (context.site.manifest->has(project, capability)) return;
  context.error_in(context.site.manifest_file, project + ".capabilities", "lacks " + capability,
                   capability + ": " + because,
                   "build an image with it, or choose another transport or kernel family");
}

bool ready(const RuleContext& context) {
  return context.site.lock.has_value() && context.site.manifest.has_value();
}

}  // namespace

void pins(RuleContext& context) {
  if (!context.site.lock) return;
  const std::string& file = context.profile.upstreams_config;
  for (const LockedSource& source : context.site.lock->sources) {
    const std::string where = "sources." + source.name;
    if (source.upstream.empty()) {
      context.error_in(file, where + ".upstream", "is missing", "the canonical address of the source",
                       "add the address");
    }
    if (source.kind == "huggingface" && source.revision.empty()) {
      context.error_in(file, where + ".revision", "is missing", "a revision", "pin the revision");
    }
    if (source.kind != "git") continue;
    if (!is_commit(source.revision)) {
      context.error_in(file, where + ".revision",
                       source.revision.empty() ? "is missing" : "is \"" + source.revision + "\"",
                       "a commit of 40 hexadecimal digits", "pin the full commit: git rev-parse REF");
    }
    if (source.tracking_ref.empty()) {
      context.error_in(file, where + ".tracking_ref", "is missing", "the ref to look at for updates",
                       "add it, such as refs/heads/main; it never moves a build");
    }
  }
  for (const BuildProject& project : build_projects()) {
    if (!project.optional) require_source(context, project.name, "the image is built from it");
  }
}

void source_files(RuleContext& context) {
  if (!context.site.lock) return;
  const std::string& file = context.profile.upstreams_config;
  for (const LockedSource& source : context.site.lock->sources) {
    const auto state = context.site.series.find(source.name);
    const std::string where = "sources." + source.name + ".patch_series";
    if (state != context.site.series.end() && source.patch_series) {
      if (!state->second.series_exists) {
        context.error_in(file, where, *source.patch_series + " does not exist",
                         "a series file in the repository", "restore it from Git, or remove patch_series");
      }
      for (const std::string& path : state->second.repeated) {
        context.error_in(*source.patch_series, path, "is listed more than once", "every patch once",
                         "take the repetition out of the series");
      }
      for (const std::string& path : state->second.missing) {
        context.error_in(*source.patch_series, path, "is listed and does not exist", "every listed patch",
                         "restore the patch, or take it out of the series");
      }
    }
    if (source.lockfile && !context.site.lockfiles.at(*source.lockfile)) {
      context.error_in(file, "sources." + source.name + ".lockfile", *source.lockfile + " does not exist",
                       "a file with the hashes of all inputs", "restore it from Git");
    }
  }
}

void watch_list(RuleContext& context) {
  if (!context.site.lock) return;
  const std::string& file = context.profile.upstreams_config;
  if (!context.site.watch_list) {
    context.warn_in(kWatchList, "", "does not exist", "the document that explains every watched repository",
                    "restore it from Git");
  }
  for (const WatchedReference& reference : context.site.lock->references) {
    const std::string where = "references." + reference.name;
    if (reference.kind != "git-watch") {
      context.warn_in(file, where + ".kind", "is \"" + reference.kind + "\"", "git-watch",
                      "set kind to git-watch; build inputs belong in sources");
    }
    if (reference.role.empty()) {
      context.warn_in(file, where + ".role", "is missing", "why it is watched", "say why it is watched");
    }
    if (reference.url.empty()) {
      context.warn_in(file, where + ".url", "is missing", "the repository's address", "add its address");
    } else if (context.site.watch_list && context.site.watch_list->find(reference.url) == std::string::npos) {
      context.warn_in(file, where + ".url", std::string("is not in ") + kWatchList,
                      "an entry in that document",
                      "describe " + without_url_secrets(reference.url) + " there");
    }
  }
}

void source_pairs(RuleContext& context) {
  if (!context.site.lock) return;
  const UpstreamLock& lock = *context.site.lock;
  const std::string& file = context.profile.upstreams_config;
  const bool compiler = lock.find("tilelang") != nullptr;
  const bool kernels = lock.find("tile_kernels") != nullptr;
  if (compiler != kernels) {
    context.error_in(file, "sources",
                     std::string("lists ") + (compiler ? "tilelang" : "tile_kernels") + " only",
                     "tilelang and tile_kernels together, or neither",
                     std::string("add ") + (compiler ? "tile_kernels" : "tilelang"));
  }
  if (lock.find("sparknet") != nullptr && !(compiler && kernels)) {
    context.error_in(file, "sources.sparknet", "is listed without tilelang and tile_kernels",
                     "sparknet only together with them", "add both, or remove sparknet");
  }
  for (const BuildProject& project : build_projects()) {
    const LockedSource* source = project.optional ? lock.find(project.name) : nullptr;
    if (source == nullptr || !source->version.empty()) continue;
    context.error_in(file, "sources." + source->name + ".version", "is missing", "the version that is built",
                     "add version");
  }
}

void kernel_sources(RuleContext& context) {
  if (context.profile.kernel_backend != "tilelang" || !ready(context)) return;
  for (const char* project : {"tilelang", "tile_kernels"})
    require_source(context, project, "kernel_backend is tilelang");
  require_capability(context, "vllm", "tilelang-kernels", "kernel_backend is tilelang");
  for (const char* project : {"vllm", "tilelang", "tile_kernels"}) check_label(context, project);
}

void b12x_ring_sources(RuleContext& context) {
  const TransportTraits& transport = *context.profile.transport;
  if (!transport.one_shot || transport.sparknet || !transport.neighbour_ring || !ready(context)) return;
  require_capability(context, "b12x", transport.name, std::string("fabric.transport is ") + transport.name);
  check_label(context, "b12x");
}

void sparknet_sources(RuleContext& context) {
  const TransportTraits& transport = *context.profile.transport;
  if (!ready(context)) return;
  if (transport.sparknet) {
    const std::string because = std::string("fabric.transport is ") + transport.name;
    require_source(context, "sparknet", because);
    require_capability(context, "vllm", "tilelang-sparknet-collectives", because);
    if (context.site.manifest->find("sparknet") == nullptr) {
      context.error_in(context.site.manifest_file, "sparknet", "is missing", "a record: " + because,
                       "record head and tree of sparknet");
    }
    check_label(context, "sparknet");
  } else if (transport.one_shot && expected_label(context.profile, "sparknet")) {
    context.error("fabric.transport",
                  std::string("is ") + transport.name + " with an image that contains sparknet",
                  "oneshot-direct or oneshot-ring4: such images serve nothing else",
                  std::string("set fabric.transport to ") +
                      (transport.neighbour_ring ? "oneshot-ring4" : "oneshot-direct"));
  }
}

void fingerprints(RuleContext& context) {
  if (!ready(context)) return;
  const std::string& file = context.site.manifest_file;
  for (const BuildProject& project : build_projects()) {
    const LockedSource* source = context.site.lock->find(project.name);
    if (source == nullptr) continue;
    const ManifestProject* record = context.site.manifest->find(project.name);
    if (record == nullptr) {
      if (std::string_view(project.name) == "sparknet" && context.profile.transport != nullptr &&
          context.profile.transport->sparknet) {
        continue;  // sources.sparknet says it
      }
      context.error_in(file, project.name, "is missing", "a record of every build project",
                       "record its new head and tree first");
      continue;
    }
    const SeriesState& state = context.site.series.at(source->name);
    if (!state.fingerprint.empty() && state.fingerprint != record->patchset_sha256) {
      context.error_in(file, std::string(project.name) + ".patchset_sha256",
                       "is " + record->patchset_sha256 + ", the patches give " + state.fingerprint,
                       "the fingerprint of the patches", "record its new head and tree first");
    }
    if (!source->revision.empty() && record->base_revision != source->revision) {
      context.error_in(file, std::string(project.name) + ".base_revision",
                       "is " + record->base_revision + ", the lock pins " + source->revision,
                       "the locked revision", "record its new head and tree first");
    }
    if (source->submodules && record->submodules.empty()) {
      context.error_in(file, std::string(project.name) + ".submodules", "is missing",
                       "the commit of every submodule", "record them: git submodule status --recursive");
    }
  }
}

void artifacts(RuleContext& context) {
  if (!context.site.manifest) return;
  for (const auto& [path, hash] : context.site.manifest->deployment_artifacts) {
    const ArtifactState& state = context.site.artifacts.at(path);
    const std::string where = "deployment_artifacts." + path;
    if (!state.exists) {
      context.error_in(context.site.manifest_file, where, "does not exist", "the file as it was recorded",
                       "git checkout -- " + path);
    } else if (state.sha256 != hash) {
      context.error_in(context.site.manifest_file, where, "has SHA-256 " + state.sha256, hash,
                       "git checkout -- " + path + ", or record the new hash with its promotion");
    }
  }
}

void tracked_secrets(RuleContext& context) {
  if (context.secrets == nullptr) return;
  const SecretScan& scan = *context.secrets;
  if (!scan.failure.empty()) {
    context.error_in("", "tracked files", "cannot be listed: " + scan.failure,
                     "a Git checkout that can be read", "run it inside the checkout, with git installed");
    return;
  }
  for (const SecretHit& hit : scan.hits) {
    context.error_in(hit.file, hit.line == 0 ? "" : "line " + std::to_string(hit.line),
                     hit.line == 0 ? hit.kind : "looks like " + hit.kind, "no credentials in Git",
                     "revoke it where it was issued, then git rm --cached " + shell_quote(hit.file));
  }
  for (const std::string& file : scan.not_scanned) {
    context.warn_in(file, "", "was not searched for credentials", "a readable file of at most 2 MiB",
                    "keep large files out of the repository");
  }
}

}  // namespace spark::ops::rule
