#include "ops/site/layers.h"

#include <algorithm>

#include "ops/site/engine_render.h"
#include "ops/site/json_object.h"
#include "ops/site/settings.h"

namespace spark::ops {
namespace {

constexpr size_t kMaxLayers = 8;  // from a profile to its most distant base
constexpr size_t kMaxFiles = 32;

std::string member_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

void forget(const std::string& path, std::map<std::string, Origin>& origins) {
  origins.erase(path);
  const std::string prefix = path + ".";
  auto at = origins.lower_bound(prefix);
  while (at != origins.end() && at->first.compare(0, prefix.size(), prefix) == 0) at = origins.erase(at);
}

void remember(const Json& value, const std::string& path, const std::string& file,
              std::map<std::string, Origin>& origins) {
  if (!value.is_object() || value.empty()) {
    origins[path] = {file, {}};
    return;
  }
  for (auto it = value.begin(); it != value.end(); ++it)
    remember(*it, member_path(path, it.key()), file, origins);
}

void merge(Json& base, const Json& layer, const std::string& path, const std::string& file,
           std::map<std::string, Origin>& origins) {
  for (auto it = layer.begin(); it != layer.end(); ++it) {
    const std::string here = member_path(path, it.key());
    const auto found = base.find(it.key());
    if (it->is_null()) {
      if (found != base.end()) base.erase(it.key());
      forget(here, origins);
    } else if (found != base.end() && found->is_object() && it->is_object()) {
      if (!it->empty()) origins.erase(here);  // it was an empty object
      merge(*found, *it, here, file, origins);
    } else {
      forget(here, origins);
      base[it.key()] = *it;
      remember(*it, here, file, origins);
    }
  }
}

// The files that make a profile, bases first. A file that is reached twice counts where it is reached first.
class ChainBuilder {
 public:
  ChainBuilder(const Repository& repository, FileFaults& faults) : repository_(repository), faults_(faults) {}

  void visit(const std::string& file) {
    const size_t before = faults_.size();
    Json document = load_json(repository_, file, faults_);
    if (faults_.size() != before) {
      complete_ = false;
      return;
    }
    if (!document.is_object()) {
      fail(file, "", "must be an object", "");
      return;
    }
    open_.push_back(file);
    for (const std::string& parent : parents_of(file, document)) {
      if (std::find(open_.begin(), open_.end(), parent) != open_.end()) {
        fail(file, "extends", "names " + parent + ", which extends this file again", "remove one of the two");
      } else if (open_.size() == kMaxLayers) {
        fail(file, "extends", "the chain is deeper than " + std::to_string(kMaxLayers) + " files",
             "extend fewer bases");
      } else if (std::none_of(chain_.begin(), chain_.end(),
                              [&](const auto& layer) { return layer.first == parent; })) {
        visit(parent);
      }
    }
    open_.pop_back();
    document.erase("extends");
    if (chain_.size() < kMaxFiles) {
      chain_.emplace_back(file, std::move(document));
    } else {
      fail(file, "extends", "more than " + std::to_string(kMaxFiles) + " files", "extend fewer bases");
    }
  }

  std::vector<std::pair<std::string, Json>>& chain() { return chain_; }
  bool complete() const { return complete_; }

 private:
  std::vector<std::string> parents_of(const std::string& file, const Json& document) {
    const auto found = document.find("extends");
    if (found == document.end()) return {};
    if (found->is_string()) return {found->get<std::string>()};
    const bool strings = found->is_array() && std::all_of(found->begin(), found->end(),
                                                          [](const Json& item) { return item.is_string(); });
    if (strings) return found->get<std::vector<std::string>>();
    fail(file, "extends", "must be a string or an array of strings: paths of other profiles", "");
    return {};
  }

  void fail(const std::string& file, const std::string& where, const std::string& what,
            const std::string& hint) {
    faults_.push_back({file, {where, what, hint}});
    complete_ = false;
  }

  const Repository& repository_;
  FileFaults& faults_;
  std::vector<std::pair<std::string, Json>> chain_;
  std::vector<std::string> open_;
  bool complete_ = true;
};

// Only site settings may stand in the site file: a promoted setting there would escape review. What is none
// is taken out, so that the profile's reader does not complain about it again.
void check_site(Json& value, const std::string& path, const std::string& file, FileFaults& faults) {
  const std::vector<std::string>& allowed = site_paths();
  std::vector<std::string> foreign;
  for (auto it = value.begin(); it != value.end(); ++it) {
    const std::string here = member_path(path, it.key());
    if (std::find(allowed.begin(), allowed.end(), here) != allowed.end()) continue;
    const bool leads_on = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& known) {
      return known.compare(0, here.size() + 1, here + ".") == 0;
    });
    if (leads_on && it->is_object()) {
      check_site(*it, here, file, faults);
      continue;
    }
    const auto guess = nearest(here, allowed);
    faults.push_back(
        {file,
         {here, "is not a site setting",
          guess ? "did you mean \"" + *guess + "\"?" : "settings that are promoted belong in a profile"}});
    if (!leads_on) foreign.push_back(it.key());
  }
  for (const std::string& key : foreign) value.erase(key);
}

// Where the argument's value stands in a command line; the line's size when it is not there.
size_t value_position(const Json& arguments, const std::string& name) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == name) return i + 1;
  }
  return arguments.size();
}

// One site setting in a profile that states its arguments and environment itself: it becomes exactly those.
bool lower_setting(const std::string& key, const Json& value, const std::string& file,
                   LayeredDocument& layers, Json& site, FileFaults& faults) {
  bool carried = false;
  Json& arguments = layers.document["serve_args"];
  for (const auto& rows : {vllm_arguments(), vllm_variables()}) {
    for (const Setting& row : rows) {
      if (key != row.key || row.when == SettingWhen::kRocenante || row.when == SettingWhen::kSparknet)
        continue;
      if (!carried) {
        Faults bad;
        check_setting(JsonReader(value, "engine." + key, bad), row);
        add_faults(file, bad, faults);
        if (!bad.empty()) return true;
      }
      carried = true;
      if (row.name[0] != '-') {
        site["environment"][row.name] = carried_text(value, row);
      } else if (arguments.is_array()) {
        const size_t at = value_position(arguments, row.name);
        if (at == arguments.size()) {
          arguments.push_back(row.name);
          arguments.push_back(carried_text(value, row));
        } else {
          arguments[at] = carried_text(value, row);
        }
        layers.origins[std::string("serve_args.") + row.name] = {file, {}};
      }
    }
  }
  return carried;
}

void lower_site_engine(LayeredDocument& layers, Json& site, const std::string& file, FileFaults& faults) {
  const Json engine = site["engine"];
  site.erase("engine");
  for (auto it = engine.begin(); it != engine.end(); ++it) {
    if (lower_setting(it.key(), *it, file, layers, site, faults)) continue;
    faults.push_back({file,
                      {"engine." + it.key(), "cannot be applied to a profile that has no engine section",
                       "give the profile typed settings, or set this in the profile itself"}});
  }
}

// The site file serves every profile of the site. What only the other engine kind has a use for is left out.
void adapt_site_engine(LayeredDocument& layers, Json& site, const std::string& file, FileFaults& faults) {
  if (!site.contains("engine") || !site["engine"].is_object()) return;
  const Json& document = layers.document;
  if (!document.contains("engine")) {
    lower_site_engine(layers, site, file, faults);
  } else if (document["engine"].is_object() && document["engine"].value("kind", Json("vllm")) == "native") {
    for (const char* key : {"management_interface", "rdma_devices", "gid_index"}) site["engine"].erase(key);
  }
}

}  // namespace

const std::vector<std::string>& site_paths() {
  static const std::vector<std::string> paths = {
      "schema_version",
      "description",
      "nodes_config",
      "host.home",
      "host.hardware",
      "host.supervisor",
      "host.nvme_coalescing",
      "distributed.master_addr",
      "distributed.master_port",
      "deployment.repository",
      "deployment.branch",
      "deployment.path",
      "deployment.ready_url",
      "engine.host",
      "engine.port",
      "engine.management_interface",
      "engine.rdma_devices",
      "engine.gid_index",
      "engine.tls",
      "engine.secret_environment_file",
      "environment.GLOO_SOCKET_IFNAME",
      "environment.NCCL_SOCKET_IFNAME",
      "environment.TP_SOCKET_IFNAME",
      "environment.NCCL_IB_HCA",
      "environment.NCCL_IB_GID_INDEX",
  };
  return paths;
}

Json load_json(const Repository& repository, const std::string& path, FileFaults& faults) {
  try {
    return parse_json(repository.read(path), path,
                      {.max_depth = 32, .max_bytes = size_t{8} << 20, .max_members = 4096});
  } catch (const Error& error) {
    faults.push_back({path, {"", error.what(), error.hint()}});
    return {};
  }
}

void add_faults(const std::string& file, const Faults& from, FileFaults& to) {
  for (const Fault& fault : from) to.push_back({file, fault});
}

Origin LayeredDocument::origin_of(const std::string& path) const {
  const Origin fallback = {files.empty() ? std::string() : files.front(), {}};
  for (std::string at = path; !at.empty();) {
    const auto found = origins.find(at);
    if (found != origins.end()) return found->second;
    const auto below = origins.lower_bound(at + ".");
    if (below != origins.end() && below->first.compare(0, at.size() + 1, at + ".") == 0) return below->second;
    const size_t cut = at.find_last_of(".[");
    at = cut == std::string::npos ? std::string() : at.substr(0, cut);
  }
  return fallback;
}

LayeredDocument load_layers(const Repository& repository, const std::string& profile,
                            const std::string& site_file, FileFaults& faults) {
  LayeredDocument layers;
  ChainBuilder builder(repository, faults);
  builder.visit(profile);
  layers.complete = builder.complete();
  for (auto& [file, document] : builder.chain()) {
    if (file != profile) document.erase("description");  // a base's description describes the base
    merge(layers.document, document, "", file, layers.origins);
    layers.files.insert(layers.files.begin(), file);
  }
  if (site_file.empty() || !repository.exists(site_file)) return layers;
  const size_t before = faults.size();
  Json site = load_json(repository, site_file, faults);
  if (faults.size() != before) return layers;
  if (!site.is_object()) {
    faults.push_back({site_file, {"", "must be an object", ""}});
    return layers;
  }
  Faults version_faults;
  JsonReader(site, "", version_faults).field("schema_version").integer(1, 1, 1);
  add_faults(site_file, version_faults, faults);
  check_site(site, "", site_file, faults);
  site.erase("schema_version");
  site.erase("description");
  adapt_site_engine(layers, site, site_file, faults);
  merge(layers.document, site, "", site_file, layers.origins);
  layers.files.push_back(site_file);
  return layers;
}

}  // namespace spark::ops
