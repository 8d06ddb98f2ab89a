// Typed engine settings -> exact server arguments and environment.
//
//   {"engine": {"kind": "vllm", "nodes": 3, "max_model_len": 524288, ...}}
//     -> serve_args  /models --served-model-name ... --max-model-len 524288 ...
//        environment NCCL_BUFFSIZE=1048576 ...
//
// Values that follow from others are derived, never written twice: both world sizes and the drafter's follow
// `nodes`, kernels follow kernel_backend, graph sizes follow sequences and drafts, cache folders follow one
// root.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "ops/site/profile.h"

namespace spark::ops {

struct RenderedEngine {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
  // Carrier ("--port", "NCCL_ALGO") -> the setting it comes from, as a path in the profile ("engine.port").
  std::map<std::string, std::string> sources;
};

// `profile` is the merged profile document; faults have paths such as "engine.nccl.max_channels".
RenderedEngine render_engine(const Json& profile, Faults& faults);

struct Setting;

// The text that a setting's carrier holds: 1 or 0, a folder below a root, compact JSON, a comma-joined list.
std::string carried_text(const Json& value, const Setting& row);

// A fault unless the value is of the setting's kind and range.
void check_setting(const JsonReader& reader, const Setting& row);

// The ladder of captured batch sizes up to `largest`: small ones densely, then every fourth, then every
// eighth.
std::vector<int64_t> capture_ladder(int64_t largest);

}  // namespace spark::ops
