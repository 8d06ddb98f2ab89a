// spark config: what a profile resolves to, where its values come from, how two profiles differ.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "ops/site/inspect.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct ConfigFlags {
  bool origin = false;
  bool json = false;
  bool markdown = false;
  std::string node;
  std::string left;
  std::string right;
};

// The profile is shown even when the node map is missing: a new site starts that way.
ops::Site load_for_reading(const SiteOptions& options, const std::string& profile) {
  const ops::Repository repository(options.repository);
  ops::SiteRequest request = options.request;
  request.profile = profile;
  ops::Site site = ops::load_site(repository, request);
  const auto without_map = [&](const ops::FileFault& fault) {
    return fault.file == site.nodes_file || fault.fault.where == "distributed.master_addr" ||
           fault.fault.where == "distributed";
  };
  if (!site.nodes_loaded) std::erase_if(site.faults, without_map);
  ops::throw_if_any_fault(site);
  return site;
}

void run_show(const ConfigFlags& flags, const SiteOptions& options) {
  const ops::Site site = load_for_reading(options, options.request.profile);
  const ops::Node* node = nullptr;
  if (!flags.node.empty()) {
    node = site.nodes.find(flags.node);
    if (node == nullptr) throw Error("\"" + flags.node + "\" is not a node", site.nodes_file);
  }
  const auto values = ops::resolved_values(site, node);
  std::cout << (flags.json ? ops::values_json(values).dump(2) + "\n"
                           : ops::values_text(values, flags.origin));
}

void run_diff(const ConfigFlags& flags, const SiteOptions& options) {
  const ops::Site left = load_for_reading(options, flags.left);
  const ops::Site right = load_for_reading(options, flags.right);
  const auto differences = ops::difference(left, right);
  std::cout << (flags.json ? ops::difference_json(differences).dump(2) + "\n"
                           : ops::difference_text(differences, flags.left, flags.right));
}

}  // namespace

void add_config_command(CLI::App& app, const SiteOptions& options) {
  auto flags = std::make_shared<ConfigFlags>();
  CLI::App* command = app.add_subcommand("config", "Show and compare profiles");
  command->require_subcommand(1);
  command->fallthrough();

  CLI::App* show = command->add_subcommand("show", "Print every value that a profile resolves to");
  show->fallthrough();
  show->add_option("--node", flags->node, "With this rank's own values");
  show->add_flag("--origin", flags->origin, "With the file, and the setting, that each value comes from");
  show->add_flag("--json", flags->json, "Print one JSON document, origins and meanings included");
  show->callback([flags, &options] { run_show(*flags, options); });

  CLI::App* diff =
      command->add_subcommand("diff", "Settings in which two profiles differ, with their meaning");
  diff->fallthrough();
  diff->add_option("A", flags->left, "A profile")->required();
  diff->add_option("B", flags->right, "Another profile")->required();
  diff->add_flag("--json", flags->json, "Print one JSON document");
  diff->callback([flags, &options] { run_diff(*flags, options); });

  CLI::App* settings = command->add_subcommand("settings", "Every engine setting: key, carrier, meaning");
  settings->add_flag("--markdown", flags->markdown, "The text of docs/settings.md (the only format)");
  settings->callback([] { std::cout << ops::settings_markdown(); });
}

}  // namespace spark::app
