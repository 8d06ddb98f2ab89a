// What can be known and refused before anything large is read or allocated: by the server when it starts, and
// by --check.
#pragma once

#include <memory>
#include <optional>

#include "common/error.h"
#include "engine/forward/memory_plan.h"
#include "engine/serve/service.h"
#include "flags.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace spark::app {

struct Prepared {
  model::ModelConfig config;
  std::unique_ptr<text::Tokenizer> tokenizer;
  engine::LoadOptions load;
  engine::ServiceOptions service;
  engine::MemoryPlan memory;
};

// What a start needs. Adds a fault for each flag that does not fit the model and each file that cannot be
// used; when there is none, also for memory that is too small. What it returns may be used only then. Without
// a list the first fault is thrown, as an Error.
Prepared prepare(const EngineFlags& flags, Faults* faults);

// For a checkpoint that has faults itself: adds those of the flags and of the files beside it, as far as its
// configuration, where that can be used, lets them be known.
void check_flags(const EngineFlags& flags, const std::optional<model::ModelConfig>& config, Faults& faults);

// Whether only programs of this machine can connect.
bool is_local(const engine::HttpOptions& http);

}  // namespace spark::app
