// spark render: the exact launch of a rank.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "node_choice.h"
#include "ops/launch/render.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct RenderFlags {
  std::string node;
  std::string format = "shell";
  bool all = false;
  ops::LaunchOptions launch;
};

void run_render(const RenderFlags& flags, const SiteOptions& options) {
  const ops::Site site = options.load(ops::Repository(options.repository));
  ops::throw_if_any_fault(site);
  std::vector<const ops::Node*> nodes;
  if (flags.all) {
    nodes = site.nodes.deployment_order();
  } else {
    nodes.push_back(&find_node(site, flags.node));
  }
  Json list = Json::array();
  for (const ops::Node* node : nodes) {
    const ops::RankLaunch launch = ops::plan_launch(site, *node, flags.launch);
    if (flags.format == "shell") std::cout << ops::launch_shell(launch) << "\n";
    if (flags.format == "systemd") std::cout << ops::launch_systemd(launch);
    if (flags.format == "json") list.push_back(ops::launch_json(launch));
  }
  if (flags.format == "json") std::cout << (flags.all ? list : list[0]).dump(2) << "\n";
}

}  // namespace

void add_render_command(CLI::App& app, const SiteOptions& options) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* command = app.add_subcommand("render", "Print the exact launch of a node; run nothing");
  command->fallthrough();
  CLI::Option* node = command->add_option("NODE", flags->node, "Name of a node in the map");
  command->add_option("--format", flags->format, "shell: one line to paste; json; systemd: unit files")
      ->check(CLI::IsMember({"shell", "json", "systemd"}))
      ->capture_default_str();
  CLI::Option* all =
      command->add_flag("--all", flags->all, "Every node, in the order in which they are started");
  node->excludes(all);
  command->add_option("--model-dir", flags->launch.model_dir,
                      "Checkpoint folder on the node, instead of the profile's");
  command->callback([flags, node, all, &options] {
    if (node->count() == 0 && all->count() == 0) throw CLI::RequiredError("NODE or --all");
    run_render(*flags, options);
  });
}

}  // namespace spark::app
