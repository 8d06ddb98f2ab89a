#include "engine/serve/generation_config.h"

#include "common/file.h"
#include "common/json.h"
#include "common/log.h"

namespace spark::engine {
namespace {

void read_end_tokens(const JsonReader& ids, std::vector<int32_t>& out) {
  if (!ids.present() || ids.json()->is_null()) return;
  if (!ids.json()->is_array()) return out.push_back(static_cast<int32_t>(ids.integer(0, INT32_MAX)));
  for (const JsonReader& id : ids.items()) out.push_back(static_cast<int32_t>(id.integer(0, INT32_MAX)));
}

// Such files say null where they mean nothing.
Json without_nulls(Json document) {
  if (!document.is_object()) return document;
  Json kept = Json::object();
  for (auto& [key, value] : document.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

}  // namespace

GenerationConfig read_generation_config(const std::string& path) {
  const Json document = without_nulls(parse_json(read_file(path, size_t{1} << 20), path));
  if (!document.is_object()) throw Error("is no object", path);
  Faults faults;
  const JsonReader root(document, "", faults);
  GenerationConfig config;
  api::SamplingFields& sampling = config.sampling;
  sampling.temperature = root.field("temperature").optional_number(0.0, 100.0).value_or(sampling.temperature);
  sampling.top_p = root.field("top_p").optional_number(0.0, 1.0).value_or(sampling.top_p);
  if (sampling.top_p == 0.0) root.field("top_p").fault("must be above 0 and at most 1");
  sampling.top_k = std::max<int64_t>(0, root.field("top_k").optional_integer(-1, INT32_MAX).value_or(0));
  sampling.min_p = root.field("min_p").optional_number(0.0, 1.0).value_or(sampling.min_p);
  config.max_new_tokens = root.field("max_new_tokens").optional_integer(1, INT32_MAX);
  read_end_tokens(root.field("eos_token_id"), config.end_tokens);
  const double penalty = root.field("repetition_penalty").optional_number(0.0, 100.0).value_or(1.0);
  throw_if_any(faults, path, "mend the file, or start with --generation-config vllm to do without it");
  if (penalty != 1.0) log_warning(path + ": repetition_penalty has no effect here");
  return config;
}

}  // namespace spark::engine
