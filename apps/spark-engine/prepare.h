// What can be known and refused before anything large is read or allocated: by the server when it starts, and
// by
// --check.
#pragma once

#include <memory>

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

// Throws Error for flags that do not fit the model, for files that cannot be used, and when memory is too
// small.
Prepared prepare(const EngineFlags& flags);

// Whether only programs of this machine can connect.
bool is_local(const engine::HttpOptions& http);

}  // namespace spark::app
