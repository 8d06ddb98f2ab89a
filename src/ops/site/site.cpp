#include "ops/site/site.h"

#include <algorithm>

#include "common/hash.h"

namespace spark::ops {
namespace {

// Parses one file with `read`; nullopt when the file itself cannot be read.
template <typename Value>
std::optional<Value> load_with(const Repository& repository, const std::string& path,
                               Value (*read)(const Json&, Faults&), FileFaults& faults) {
  const size_t before = faults.size();
  const Json document = load_json(repository, path, faults);
  if (faults.size() != before) return {};
  if (!document.is_object()) {
    faults.push_back({path, {"", "must be an object", ""}});
    return {};
  }
  Faults found;
  Value value = read(document, found);
  add_faults(path, found, faults);
  return value;
}

void load_nodes(const Repository& repository, Site& site) {
  const Json& document = site.layers.document;
  site.nodes_file = site.request.nodes;
  if (site.nodes_file.empty()) {
    site.nodes_file = document.contains("nodes_config") && document["nodes_config"].is_string()
                          ? document["nodes_config"].get<std::string>()
                          : kDefaultNodeMap;
  }
  if (!repository.exists(site.nodes_file)) {
    std::string hint;
    try {
      repository.confine(site.nodes_file);
      hint = site.nodes_file == kDefaultNodeMap
                 ? "cp config/nodes.example.json config/nodes.json, then enter your machines and cables"
                 : "copy config/nodes.example.json or config/examples/nodes-ring4.json there and edit it";
    } catch (const Error& error) {
      site.faults.push_back({site.nodes_file, {"", error.what(), error.hint()}});
      return;
    }
    site.faults.push_back({site.nodes_file, {"", "does not exist", hint}});
    return;
  }
  const auto map = load_with(repository, site.nodes_file, read_node_map, site.faults);
  if (!map) return;
  site.nodes = *map;
  site.nodes_loaded = true;
}

// The head's management address is written once, in the node map; a profile need not repeat it.
void fill_master_address(Site& site) {
  if (!site.resolved.contains("distributed") || !site.resolved["distributed"].is_object()) return;
  if (site.resolved["distributed"].contains("master_addr")) return;
  const Node* head = site.nodes.head();
  if (head == nullptr) return;
  site.resolved["distributed"]["master_addr"] = head->management_ip;
  site.layers.origins["distributed.master_addr"] = {site.nodes_file, "management_ip of the head"};
}

// `engine` becomes serve_args and environment.
void render_settings(Site& site) {
  Json& document = site.resolved;
  if (!document.contains("engine")) return;
  Faults faults;
  if (document.contains("serve_args")) {
    faults.push_back(
        {"serve_args", "stands beside typed settings",
         "state the server's arguments once: in engine, further ones in engine.extra_arguments"});
  }
  const RenderedEngine rendered = render_engine(document, faults);
  if (document.contains("environment") && document["environment"].is_object()) {
    for (auto it = document["environment"].begin(); it != document["environment"].end(); ++it) {
      const auto typed = rendered.sources.find(it.key());
      if (rendered.environment.count(it.key()) != 0 && typed != rendered.sources.end()) {
        faults.push_back({"environment." + it.key(), "is also set by " + typed->second, "state it once"});
      }
    }
  }
  for (const Fault& fault : faults) {
    site.faults.push_back({site.layers.origin_of(fault.where).file, fault});
  }
  document["serve_args"] = rendered.arguments;
  Json environment = document.contains("environment") ? document["environment"] : Json::object();
  if (environment.is_object()) {
    for (const auto& [name, value] : rendered.environment) environment[name] = value;
    document["environment"] = std::move(environment);
  }
  for (const auto& [carrier, source] : rendered.sources) {
    const bool variable = rendered.environment.count(carrier) != 0;
    site.sources[(variable ? "environment." : "serve_args.") + (carrier.empty() ? "MODEL" : carrier)] =
        source;
  }
}

void read_resolved(Site& site) {
  Faults faults;
  site.profile = read_profile(site.resolved, faults);
  const bool args_readable = faults.empty();
  site.engine = read_engine_settings(site.profile, faults);
  for (Fault& fault : faults) {
    // Say it where it was written: a bad typed setting has been reported under its own name already.
    if (fault.where.rfind("serve_args.", 0) == 0 && !args_readable) continue;
    // It follows from the head; that there is none is reported already.
    if (fault.where == "distributed.master_addr" && fault.what == "is missing" &&
        site.nodes.head() == nullptr)
      continue;
    const Origin origin = site.origin_of(fault.where);
    if (fault.what == "is missing" && fault.hint.empty()) {
      for (const std::string& path : site_paths()) {
        if (path == fault.where)
          fault.hint = "set it in config/site.json (cp config/site.example.json config/site.json)";
      }
    }
    const bool known = std::any_of(site.faults.begin(), site.faults.end(), [&](const FileFault& entry) {
      return entry.file == origin.file && entry.fault.where == fault.where && entry.fault.what == fault.what;
    });
    if (!known) site.faults.push_back({origin.file, fault});
  }
  site.profile_loaded = true;
}

void load_reference(const Repository& repository, Site& site) {
  ReferenceReport& reference = site.reference;
  reference.named = site.profile.benchmark_reference.has_value();
  reference.path = reference.named ? *site.profile.benchmark_reference
                                   : "manifests/benchmarks/" + site.profile.promoted_baseline + ".json";
  reference.exists = repository.exists(reference.path);
  if (!reference.exists) return;
  FileFaults faults;
  const Json report = load_json(repository, reference.path, faults);
  if (faults.empty() && report.is_object()) reference.shape = read_report_shape(report);
}

void load_sources(const Repository& repository, Site& site) {
  site.lock = load_with(repository, site.profile.upstreams_config, read_upstream_lock, site.faults);
  if (!site.lock) return;
  for (const LockedSource& source : site.lock->sources) {
    site.series[source.name] = inspect_series(repository, source);
    if (source.lockfile) site.lockfiles[*source.lockfile] = repository.exists(*source.lockfile);
  }
  if (repository.exists(kWatchList)) site.watch_list = repository.read(kWatchList);
  site.manifest_file = site.lock->source_manifest;
  if (site.manifest_file.empty()) return;
  site.manifest = load_with(repository, site.manifest_file, read_source_manifest, site.faults);
  if (!site.manifest) return;
  for (const auto& [path, hash] : site.manifest->deployment_artifacts) {
    ArtifactState state;
    state.exists = repository.exists(path);
    if (state.exists) state.sha256 = sha256_hex(repository.read(path));
    site.artifacts[path] = state;
  }
}

}  // namespace

Origin Site::origin_of(const std::string& path) const {
  std::string carrier = path.substr(0, path.find('['));
  auto source = sources.find(carrier);
  // "serve_args.--speculative-config.num_speculative_tokens" lies below a carrier.
  while (source == sources.end() && carrier.find('.') != std::string::npos) {
    carrier = carrier.substr(0, carrier.find_last_of('.'));
    source = sources.find(carrier);
  }
  if (source == sources.end()) return layers.origin_of(path);
  Origin origin = layers.origin_of(source->second);
  origin.note = source->second;
  return origin;
}

Site load_site(const Repository& repository, const SiteRequest& request) {
  Site site;
  site.request = request;
  site.layers = load_layers(repository, request.profile, request.site_file, site.faults);
  if (!site.layers.complete) return site;
  site.resolved = site.layers.document;
  load_nodes(repository, site);
  fill_master_address(site);
  render_settings(site);
  read_resolved(site);
  load_reference(repository, site);
  load_sources(repository, site);
  if (site.profile.host.kernel || repository.exists(site.profile.host.kernel_policy)) {
    site.policy = load_with(repository, site.profile.host.kernel_policy, read_kernel_policy, site.faults);
  }
  return site;
}

void throw_if_any_fault(const Site& site) {
  Faults all;
  for (const FileFault& entry : site.faults) {
    Fault fault = entry.fault;
    fault.where = entry.file + (fault.where.empty() ? "" : ": " + fault.where);
    all.push_back(std::move(fault));
  }
  throw_if_any(all, site.request.profile);
}

ReportShape read_report_shape(const Json& report) {
  ReportShape shape;
  const auto identity = report.find("identity");
  if (identity == report.end() || !identity->is_object()) return shape;
  const auto topology = identity->find("topology");
  if (topology != identity->end() && topology->is_object() && topology->contains("nodes") &&
      (*topology)["nodes"].is_array()) {
    shape.nodes = static_cast<int64_t>((*topology)["nodes"].size());
  }
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const auto found = identity->find(key);
    return found != identity->end() && found->is_string() ? std::optional(found->get<std::string>())
                                                          : std::nullopt;
  };
  shape.transport = text("transport");
  shape.kernel_backend = text("kernel_backend");  // no default: whoever wrote no family may have had any
  return shape;
}

}  // namespace spark::ops
