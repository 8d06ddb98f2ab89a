#include "ops/launch/steps.h"

namespace spark::ops {
namespace {

constexpr const char* kStepNames[kStepKinds] = {
    "claim",    "retire", "arm",    "launch",  "ready", "steady",   "discard", "release", "stop",
    "evidence", "remove", "disarm", "restore", "fetch", "checkout", "prune",   "keep"};

bool find_step_kind(const std::string& name, StepKind& kind) {
  for (int i = 0; i < kStepKinds; ++i) {
    if (name != kStepNames[i]) continue;
    kind = static_cast<StepKind>(i);
    return true;
  }
  return false;
}

}  // namespace

const char* step_name(StepKind kind) {
  return kStepNames[static_cast<size_t>(kind)];
}

bool may_fail(StepKind kind) {
  return kind == StepKind::kDiscard || kind == StepKind::kRelease || kind == StepKind::kEvidence;
}

std::string Step::parameter(const std::string& name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::string() : found->second;
}

Json waves_json(const Waves& waves) {
  Json list = Json::array();
  for (const Wave& wave : waves) {
    Json steps = Json::array();
    for (const Step& step : wave) {
      Json item = {{"step", step_name(step.kind)}, {"node", step.node}};
      for (const auto& [name, value] : step.parameters) item[name] = value;
      steps.push_back(std::move(item));
    }
    list.push_back(std::move(steps));
  }
  return list;
}

Waves read_waves(const JsonReader& reader) {
  Waves waves;
  for (const JsonReader& wave : reader.items()) {
    waves.emplace_back();
    for (const JsonReader& item : wave.items()) {
      Step step;
      for (const auto& [name, value] : item.members()) {
        if (name == "step") {
          if (!find_step_kind(value.string(), step.kind)) value.fault("is no step");
        } else if (name == "node") {
          step.node = value.string();
        } else {
          step.parameters[name] = value.string();
        }
      }
      waves.back().push_back(std::move(step));
    }
  }
  return waves;
}

}  // namespace spark::ops
