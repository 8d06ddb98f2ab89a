// spark tuning, spark topology: profiles derived from others. Files below experiments/ are written, or text
// is printed; no host is touched.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "commands.h"
#include "model/config.h"
#include "ops/tuning/recipe.h"
#include "ops/tuning/topology.h"
#include "site_options.h"

namespace spark::app {
namespace {

constexpr const char* kModelFile = "config/models/deepseek-v4.1-flash.json";

struct DerivedFlags {
  std::string recipe;
  std::string catalogue = ops::kDefaultCatalogue;
  std::string nodes;
  std::string output;
  std::string node;
  int64_t port = ops::kProbePort;
};

model::ModelConfig published_model(const ops::Repository& repository) {
  return model::read_model_config(parse_json(repository.read(kModelFile), kModelFile), kModelFile);
}

ops::ResolvedRecipe resolve(const DerivedFlags& flags, const ops::Repository& repository,
                            const SiteOptions& options) {
  if (options.request.profile != ops::kDefaultProfile) {
    throw Error("cannot be combined with a recipe", "--cluster-config",
                "a recipe names its own base profile; leave the flag out");
  }
  return ops::resolve_recipe(repository, flags.catalogue, flags.recipe);
}

void add_tuning(CLI::App& app, const SiteOptions& options) {
  auto flags = std::make_shared<DerivedFlags>();
  CLI::App* command = app.add_subcommand("tuning", "Named transport recipes");
  command->require_subcommand(1);
  command->add_option("--profiles-config", flags->catalogue, "Catalogue of recipes")->capture_default_str();
  CLI::App* show = command->add_subcommand("show", "Print a recipe and the layout that follows from it");
  show->fallthrough();
  show->add_option("PROFILE", flags->recipe, "Name of the recipe")->required();
  show->footer("Example: spark tuning show tp4-rocenante");
  show->callback([flags, &options] {
    const ops::Repository repository(options.repository);
    std::cout << ops::recipe_json(resolve(*flags, repository, options), published_model(repository)).dump(2)
              << "\n";
  });
  CLI::App* create = command->add_subcommand(
      "create", "Write a profile with the recipe below experiments/; launching it is disabled");
  create->fallthrough();
  create->add_option("PROFILE", flags->recipe, "Name of the recipe")->required();
  create->add_option("--nodes-config", flags->nodes, "Node map of the profile")->required();
  create->add_option("--output", flags->output, "New file below experiments/")->required();
  create->footer(
      "Example: spark tuning create tp4-rocenante --nodes-config config/nodes-ring4.local.json --output "
      "experiments/tp4.json");
  create->callback([flags, &options] {
    const ops::Repository repository(options.repository);
    const ops::ResolvedRecipe recipe = resolve(*flags, repository, options);
    const model::ModelConfig model = published_model(repository);
    ops::create_from_recipe(repository, recipe, model, flags->nodes, flags->output);
    std::cout << ops::recipe_json(recipe, model).dump(2) << "\n";
    std::cerr << "wrote " << flags->output << "; launching it is disabled (deployment.launch_enabled)\n";
  });
}

void add_topology(CLI::App& app, const SiteOptions& options) {
  auto flags = std::make_shared<DerivedFlags>();
  CLI::App* command =
      app.add_subcommand("topology", "Profiles for another topology, and a probe of the collectives");
  command->require_subcommand(1);
  command->fallthrough();
  CLI::App* create =
      command->add_subcommand("create", "Write the selected profile for another node map below experiments/");
  create->add_option("--nodes-config", flags->nodes, "Node map of the new profile")->required();
  create->add_option("--output", flags->output, "New file below experiments/")->required();
  create->footer(
      "Example: spark topology create --nodes-config config/nodes-ring4.local.json --output "
      "experiments/ring.json");
  create->callback([flags, &options] {
    const ops::Repository repository(options.repository);
    ops::create_topology(repository, options.request.profile, flags->nodes, flags->output);
    std::cerr << "wrote " << flags->output << "; launching it is disabled (deployment.launch_enabled)\n";
  });
  CLI::App* probe =
      command->add_subcommand("probe", "Print (never run) a bounded probe of the collectives for a node");
  probe->fallthrough();
  probe->add_option("NODE", flags->node, "Name of a node in the map")->required();
  probe->add_option("--master-port", flags->port, "Rendezvous of the probe")->capture_default_str();
  probe->footer(
      "Run the commands of all nodes at the same time, with serving stopped.\nExample: spark topology probe "
      "node2");
  probe->callback([flags, &options] {
    const ops::Site site = options.load(ops::Repository(options.repository));
    ops::throw_if_any_fault(site);
    const ops::Node* node = site.nodes.find(flags->node);
    if (node == nullptr) throw Error("\"" + flags->node + "\" is not a node", site.nodes_file);
    std::cout << ops::probe_command(site, *node, flags->port) << "\n";
  });
}

}  // namespace

void add_tuning_commands(CLI::App& app, const SiteOptions& options) {
  add_tuning(app, options);
  add_topology(app, options);
}

}  // namespace spark::app
