// A site, loaded: everything that the operator declares, read from one repository, with every fault of every
// file.
//
//   Repository repository(".");
//   Site site = load_site(repository, {.profile = "config/cluster-64k.json"});
//   throw_if_any_fault(site);                // or let doctor turn the faults into findings
//   for (const Node& node : site.nodes.nodes) node_environment(site.profile, site.nodes, node);
//
// Loading reads files only; it runs nothing and contacts nobody. What was read is kept as facts, so that
// rules are pure functions of a Site.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/site/arguments.h"
#include "ops/site/engine_render.h"
#include "ops/site/kernel_policy.h"
#include "ops/site/layers.h"
#include "ops/site/node_map.h"
#include "ops/site/patch_series.h"
#include "ops/site/profile.h"
#include "ops/site/repository.h"
#include "ops/site/source_manifest.h"
#include "ops/site/upstream_lock.h"

namespace spark::ops {

inline constexpr const char* kDefaultProfile = "config/cluster.json";
inline constexpr const char* kDefaultNodeMap = "config/nodes.json";
inline constexpr const char* kDefaultSiteFile = "config/site.json";
inline constexpr const char* kWatchList = "docs/watch-list.md";

struct SiteRequest {
  std::string profile = kDefaultProfile;
  std::string nodes = {};                    // empty: as the profile says
  std::string site_file = kDefaultSiteFile;  // empty: no site layer
};

// What kind of run a benchmark report describes; comparing different shapes is nonsense.
struct ReportShape {
  std::optional<int64_t> nodes;
  std::optional<std::string> transport;
  std::optional<std::string> kernel_backend;

  bool whole() const { return nodes && transport && kernel_backend; }
};

struct ReferenceReport {
  std::string path;
  bool named = false;  // by the profile; otherwise the baseline's default
  bool exists = false;
  std::optional<ReportShape> shape;  // nullopt: the report cannot be read
};

struct ArtifactState {
  bool exists = false;
  std::string sha256;
};

struct Site {
  SiteRequest request;
  LayeredDocument layers;  // the profile, merged
  Json resolved;           // `layers` with engine settings rendered and site facts filled in
  std::map<std::string, std::string>
      sources;  // "environment.X" or "serve_args.--x" -> the setting it came from
  ClusterProfile profile;
  EngineSettings engine;
  std::string nodes_file;
  NodeMap nodes;
  std::optional<UpstreamLock> lock;
  std::string manifest_file;
  std::optional<SourceManifest> manifest;
  std::optional<KernelPolicy> policy;
  ReferenceReport reference;
  std::map<std::string, SeriesState> series;       // per locked source
  std::map<std::string, bool> lockfiles;           // path -> exists
  std::map<std::string, ArtifactState> artifacts;  // per deployment artifact of the manifest
  std::optional<std::string> watch_list;           // its text
  FileFaults faults;
  bool profile_loaded = false;  // the profile has been read; otherwise only `faults` has content
  bool nodes_loaded = false;

  // Where a value of the resolved profile was written: file, and the setting it follows from when that is
  // another.
  Origin origin_of(const std::string& path) const;
};

Site load_site(const Repository& repository, const SiteRequest& request);

// Throws one Error with every fault, file by file.
void throw_if_any_fault(const Site& site);

ReportShape read_report_shape(const Json& report);

}  // namespace spark::ops
