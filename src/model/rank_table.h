// What each rank of a tensor-parallel group holds, for groups of one to `most` ranks, as Markdown tables:
// those of docs/engine.md, which `spark model ranks` prints.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"

namespace spark::model {

// A number of ranks that the widths do not split over has no column.
std::string rank_tables_markdown(const ModelConfig& config, int64_t most = 4);

}  // namespace spark::model
