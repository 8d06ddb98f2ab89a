// Flags of every command that looks at a site: which profile, node map, site file and repository. They stand
// before the command, as in `spark --cluster-config config/cluster-tp4.json doctor`.
#pragma once

#include <string>

#include "ops/site/site.h"

namespace CLI {
class App;
}

namespace spark::app {

struct SiteOptions {
  std::string repository = ".";
  ops::SiteRequest request;

  ops::Site load(const ops::Repository& tree) const { return ops::load_site(tree, request); }
};

void add_site_options(CLI::App& app, SiteOptions& options);

}  // namespace spark::app
