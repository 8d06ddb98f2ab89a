// A configuration's consequences for a reader: layer plan, tensors, caches, split over ranks.
//
//   const ModelReport report = make_model_report(config, 3);
//   std::cout << report_text(report);
//   std::cout << report_json(report).dump(2) << "\n";
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "model/config.h"
#include "model/cost.h"
#include "model/layer_plan.h"
#include "model/split.h"
#include "model/tensors.h"

namespace spark::model {

struct ModelReport {
  ModelConfig config;
  LayerPlan plan;
  std::vector<ComponentTotal> components;
  ComponentTotal total;  // its component means nothing
  CacheCost cache;
  RankSplit split;
  std::vector<ComponentBytes> rank_components;
  RankMemory rank_memory;
};

// Throws Error when the widths do not split over `ranks`.
ModelReport make_model_report(const ModelConfig& config, int64_t ranks);

// Tables for a terminal; the part about ranks only when there are several.
std::string report_text(const ModelReport& report);
Json report_json(const ModelReport& report);

}  // namespace spark::model
