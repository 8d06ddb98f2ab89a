#include "ops/tuning/derived_profile.h"

#include <algorithm>
#include <filesystem>

#include "common/file.h"
#include "common/hash.h"
#include "ops/fabric/validate.h"

namespace spark::ops {
namespace {

constexpr const char* kFolder = "experiments";

bool is_site_value(const FileFault& fault) {
  const auto& paths = site_paths();
  return fault.fault.what == "is missing" &&
         std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return path == fault.fault.where; });
}

}  // namespace

BaseProfile load_base(const Repository& repository, const std::string& path) {
  SiteRequest request;
  request.profile = path;
  request.site_file.clear();
  Site site = load_site(repository, request);
  // Which machines, and what belongs to the site, comes later.
  std::erase_if(site.faults, [&](const FileFault& fault) {
    return is_site_value(fault) || fault.file == site.nodes_file ||
           fault.fault.where.starts_with("distributed") ||
           (site.profile_loaded && fault.file == site.manifest_file);
  });
  throw_if_any_fault(site);
  if (site.profile.engine_kind != EngineKind::kVllm) {
    throw Error("is a profile of the native engine", path,
                "transport recipes and topologies are vLLM's; name a vLLM profile");
  }
  BaseProfile base;
  base.path = path;
  std::string bytes = repository.read(path);
  for (const std::string& file : site.layers.files) {
    if (file != path) bytes += repository.read(file);
  }
  base.sha256 = sha256_hex(bytes);
  base.document = site.resolved;
  base.document.erase("engine");
  base.document.erase("extends");
  base.document.erase("distributed");
  base.document["distributed"] = {{"master_addr", ""},
                                  {"master_port", std::to_string(site.profile.distributed.master_port)}};
  if (site.resolved.contains("distributed") && site.resolved["distributed"].contains("master_port")) {
    base.document["distributed"]["master_port"] = site.resolved["distributed"]["master_port"];
  }
  base.profile = site.profile;
  return base;
}

NodeMap load_node_map(const Repository& repository, const std::string& path) {
  Faults faults;
  NodeMap map = read_node_map(parse_json(repository.read(path), path), faults);
  throw_if_any(faults, path);
  return map;
}

void retarget(Json& document, const NodeMap& map, const std::string& nodes_config) {
  const Node* head = map.head();
  if (head == nullptr) throw Error("marks no node as head", nodes_config, "set \"head\": true on rank 0");
  document["nodes_config"] = nodes_config;
  document["distributed"]["master_addr"] = head->management_ip;
  document["deployment"]["launch_enabled"] = false;
  document["deployment"].erase("branch");
}

void set_argument(Json& document, const std::string& name, const std::string& value) {
  Json& arguments = document["serve_args"];
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == name) {
      arguments[i + 1] = value;
      return;
    }
  }
  arguments.push_back(name);
  arguments.push_back(value);
}

void add_switch(Json& document, const std::string& name) {
  Json& arguments = document["serve_args"];
  if (std::find(arguments.begin(), arguments.end(), Json(name)) == arguments.end()) arguments.push_back(name);
}

void write_experiment(const Repository& repository, const std::string& output, const Json& document,
                      const NodeMap& map) {
  const std::string path = repository.confine(output);
  if (!path.starts_with(std::string(kFolder) + "/") || !path.ends_with(".json")) {
    throw Error("is not below experiments/", output, "name a new file such as experiments/mine.json");
  }
  std::error_code failed;
  if (std::filesystem::exists(std::filesystem::symlink_status(repository.absolute(path), failed))) {
    throw Error("exists already", output, "nothing was written: choose another name, or remove it first");
  }
  Faults found;
  const ClusterProfile profile = read_profile(document, found);
  Faults faults;
  for (const Fault& fault : found) {
    // The site file fills these in when the profile is used.
    const auto& paths = site_paths();
    const bool of_site = std::find(paths.begin(), paths.end(), fault.where) != paths.end();
    if (fault.what != "is missing" || !of_site) faults.push_back(fault);
  }
  for (const Finding& finding : validate_fabric(profile, map)) {
    faults.push_back({finding.where, finding.evidence + "; expected " + finding.expected, finding.fix});
  }
  throw_if_any(faults, output, "nothing was written");
  std::filesystem::create_directories(repository.absolute(kFolder), failed);
  if (failed) throw Error("cannot be created: " + failed.message(), kFolder);
  write_file_atomic(repository.absolute(path), document.dump(2) + "\n");
}

}  // namespace spark::ops
