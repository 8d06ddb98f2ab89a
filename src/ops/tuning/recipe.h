// Named transport recipes: what the values of a tuning catalogue must satisfy together, and how a recipe
// becomes a profile.
//
//   const TuningCatalogue catalogue = load_catalogue(repository, "config/tuning.json");
//   const ResolvedRecipe recipe = resolve_recipe(repository, catalogue, "tp4-rocenante");   // Error: every
//   fault recipe.environment.at("NCCL_BUFFSIZE"); create_from_recipe(repository, recipe, "config/nodes.json",
//   "experiments/tp4.json");
//
// Byte sizes are written N, NB, NKB, NMB or NGB, binary.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/config.h"
#include "ops/site/tuning_catalogue.h"
#include "ops/tuning/derived_profile.h"

namespace spark::ops {

inline constexpr const char* kDefaultCatalogue = "config/tuning.json";

struct ResolvedRecipe {
  TuningRecipe recipe;
  std::string catalogue;  // its file
  std::string catalogue_sha256;
  BaseProfile base;
  std::map<std::string, std::string> environment;  // of the base, with the recipe applied
};

TuningCatalogue load_catalogue(const Repository& repository, const std::string& path);

// Throws Error: no such recipe, a base that changed since it was pinned, or values that do not go together.
ResolvedRecipe resolve_recipe(const Repository& repository, const std::string& catalogue,
                              const std::string& name);

// What follows from a recipe for the model's shapes on its ranks: a report, nothing reads it back.
Json derived_layout(const ResolvedRecipe& recipe, const model::ModelConfig& model);

Json recipe_json(const ResolvedRecipe& recipe, const model::ModelConfig& model);

// Writes the profile below experiments/. Launching it is disabled.
void create_from_recipe(const Repository& repository, const ResolvedRecipe& recipe,
                        const model::ModelConfig& model, const std::string& nodes_config,
                        const std::string& output);

std::optional<int64_t> byte_size(const std::string& text);  // "2MB" -> 2097152

}  // namespace spark::ops
