// The tuning catalogue: named transport recipes, each pinned to the profile it was made for. Reading checks
// that a recipe has exactly its fields and that values are non-empty strings or null (null removes the
// variable); what the values must satisfy together is ops/tuning's business.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"

namespace spark::ops {

struct TuningSetting {
  std::string variable;
  std::optional<std::string> value;  // nullopt: the variable is removed
};

struct TuningRecipe {
  std::string name;
  std::string base_config;
  std::string base_sha256;
  std::string status;
  int64_t node_count = 0;
  std::string transport;
  std::vector<TuningSetting> rocenante;
  std::vector<TuningSetting> nccl;
};

struct TuningCatalogue {
  std::vector<TuningRecipe> recipes;

  const TuningRecipe* find(std::string_view name) const;
};

TuningCatalogue read_tuning_catalogue(const Json& document, Faults& faults);

// The exact keys of a recipe's two groups.
const std::vector<std::string>& rocenante_tuning_keys();
const std::vector<std::string>& nccl_tuning_keys();

}  // namespace spark::ops
