#include "site_options.h"

#include <CLI/CLI.hpp>

namespace spark::app {

void add_site_options(CLI::App& app, SiteOptions& options) {
  static constexpr const char* kGroup = "Site (before the command)";
  app.add_option("--cluster-config", options.request.profile, "Profile, relative to the repository")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--nodes-config", options.request.nodes,
                 "Node map instead of the one that the profile names")
      ->group(kGroup);
  app.add_option("--site-config", options.request.site_file, "Site file; \"\" for none")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--repository", options.repository, "Root of the deployment repository")
      ->capture_default_str()
      ->group(kGroup);
}

}  // namespace spark::app
