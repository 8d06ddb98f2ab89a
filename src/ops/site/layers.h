// A profile is written in layers, so that nothing is written twice: a profile may extend another file
// ("extends": "config/base/vllm.json", or an array of them), and the site file (config/site.json, not in Git)
// adds what belongs to one site only. Later layers win; objects merge key by key, everything else is
// replaced, null removes.
//
//   FileFaults faults;
//   LayeredDocument layers = load_layers(repository, "config/cluster.json", "config/site.json", faults);
//   layers.origins.at("host.home").file == "config/site.json"
//
// Faults of every layer are reported, each with its file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "ops/site/repository.h"

namespace spark::ops {

struct FileFault {
  std::string file;
  Fault fault;
};
using FileFaults = std::vector<FileFault>;

struct Origin {
  std::string file;
  std::string note;  // how the value came about when it does not stand in the file itself
};

struct LayeredDocument {
  Json document = Json::object();
  std::map<std::string, Origin> origins;  // path of every leaf (arrays are leaves) -> file
  std::vector<std::string> files;         // in the order in which they apply
  bool complete = true;                   // false: a layer could not be read at all

  // The origin of a path, of its nearest ancestor or of its nearest descendant; the last profile layer when
  // nothing is known about it.
  Origin origin_of(const std::string& path) const;
};

// `site_file` may be empty (no site layer); a site file that does not exist is no layer either.
LayeredDocument load_layers(const Repository& repository, const std::string& profile,
                            const std::string& site_file, FileFaults& faults);

// The paths that a site file may set, for documentation and for "is not a site setting".
const std::vector<std::string>& site_paths();

// Reads and parses one JSON file; a failure becomes a fault of that file and null is returned.
Json load_json(const Repository& repository, const std::string& path, FileFaults& faults);

// Moves `from` (read from `file`) to the end of `to`.
void add_faults(const std::string& file, const Faults& from, FileFaults& to);

}  // namespace spark::ops
