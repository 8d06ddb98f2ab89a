#include "engine/schedule/speculation_config.h"

#include "common/json.h"
#include "common/log.h"

namespace spark::engine {
namespace {

constexpr const char* kFlag = "--speculative-config";

// One of two words; the first when there is none. True for the second.
bool is_second(const JsonReader& field, const char* first, const char* second) {
  const auto word = field.optional_string();
  if (!word || *word == first) return false;
  if (*word != second) {
    field.fault("is \"" + *word + "\"", std::string("choose \"") + first + "\" or \"" + second + "\"");
  }
  return true;
}

}  // namespace

SpeculationOptions read_speculation(const std::string& config, int32_t offered, int32_t ranks) {
  const Json document = parse_json(config, kFlag);
  Faults faults;
  const JsonReader root(document, "", faults);
  SpeculationOptions options;
  if (!document.is_object()) throw Error("must be a JSON object", kFlag);
  if (document.empty()) return options;
  if (offered == 0) {
    throw Error("asks for drafts, and the checkpoint has no drafter", kFlag, "leave the flag out");
  }
  root.reject_unknown({"method", "num_speculative_tokens", "draft_sample_method", "rejection_sample_method",
                       "enable_adaptive_verification", "adaptive_verification_cost_scale",
                       "draft_tensor_parallel_size", "attention_backend"});
  const JsonReader method = root.field("method");
  if (const std::string name = method.optional_string().value_or("dspark"); name != "dspark") {
    method.fault("is \"" + name + "\"", "this checkpoint's drafter is \"dspark\"");
  }
  options.max_drafts = static_cast<int32_t>(
      root.field("num_speculative_tokens").optional_integer(1, offered).value_or(offered));
  options.drawn = is_second(root.field("draft_sample_method"), "greedy", "probabilistic");
  if (is_second(root.field("rejection_sample_method"), "block", "standard")) {
    options.rejection = RejectionMethod::kStandard;
  }
  options.adaptive = root.field("enable_adaptive_verification").optional_boolean().value_or(true);
  options.cost_scale =
      root.field("adaptive_verification_cost_scale").optional_number(0.001, 1000).value_or(1);
  const JsonReader draft_ranks = root.field("draft_tensor_parallel_size");
  if (const auto given = draft_ranks.optional_integer(1, 64); given && *given != ranks) {
    draft_ranks.fault("is " + std::to_string(*given),
                      "the drafter is split like the model, over " + std::to_string(ranks));
  }
  const auto kernels = root.field("attention_backend").optional_string();
  throw_if_any(faults, kFlag);
  if (kernels) log_info(std::string(kFlag) + ": attention_backend has no effect, this engine has its own");
  return options;
}

}  // namespace spark::engine
