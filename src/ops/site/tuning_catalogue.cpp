#include "ops/site/tuning_catalogue.h"

#include "ops/site/json_object.h"
#include "ops/site/text_forms.h"
#include "ops/site/transport.h"

namespace spark::ops {
namespace {

std::vector<TuningSetting> read_group(const JsonReader& reader, const std::vector<std::string>& keys) {
  std::vector<TuningSetting> settings;
  if (!require_object(reader)) return settings;
  reader.reject_unknown(keys);
  for (const std::string& key : keys) {
    const JsonReader value = reader.field(key);
    if (value.present() && value.json()->is_null()) {
      settings.push_back({key, std::nullopt});
      continue;
    }
    std::string text = value.string();
    if (value.present() && value.json()->is_string() && text.empty()) {
      value.fault("is empty", "write null to remove the variable");
    }
    settings.push_back({key, std::move(text)});
  }
  return settings;
}

TuningRecipe read_recipe(const std::string& name, const JsonReader& reader) {
  TuningRecipe recipe;
  recipe.name = name;
  if (!require_object(reader)) return recipe;
  reader.reject_unknown(
      {"base_config", "base_sha256", "status", "node_count", "transport", "rocenante", "nccl"});
  recipe.base_config = reader.field("base_config").string();
  const JsonReader hash = reader.field("base_sha256");
  recipe.base_sha256 = hash.string();
  if (hash.present() && hash.json()->is_string() && !is_sha256(recipe.base_sha256)) {
    hash.fault("is not a SHA-256: 64 hexadecimal digits");
  }
  recipe.status = reader.field("status").string();
  recipe.node_count = reader.field("node_count").integer(3, 4, 3);
  const JsonReader transport = reader.field("transport");
  recipe.transport = transport.string();
  if (transport.present() && transport.json()->is_string() && find_transport(recipe.transport) == nullptr) {
    const auto guess = nearest(recipe.transport, transport_names());
    transport.fault("\"" + recipe.transport + "\" is not a transport",
                    guess ? "did you mean \"" + *guess + "\"?" : std::string());
  }
  recipe.rocenante = read_group(reader.field("rocenante"), rocenante_tuning_keys());
  recipe.nccl = read_group(reader.field("nccl"), nccl_tuning_keys());
  return recipe;
}

}  // namespace

const std::vector<std::string>& rocenante_tuning_keys() {
  static const std::vector<std::string> keys = {
      "VLLM_ROCE_ALLREDUCE_MAX_SIZE", "VLLM_ROCE_ALLGATHER_MAX_SIZE",
      "B12X_ROCE_ALLREDUCE_DISPATCH_MAX_BYTES", "B12X_ROCE_SPIN_LIMIT"};
  return keys;
}

const std::vector<std::string>& nccl_tuning_keys() {
  static const std::vector<std::string> keys = {"NCCL_MIN_NCHANNELS",
                                                "NCCL_MAX_NCHANNELS",
                                                "NCCL_BUFFSIZE",
                                                "NCCL_LL128_BUFFSIZE",
                                                "NCCL_PROTO",
                                                "NCCL_SWITCHLESS_BIDIRECTIONAL",
                                                "NCCL_MIN_TRAFFIC_PER_CHANNEL",
                                                "NCCL_THREAD_THRESHOLDS"};
  return keys;
}

const TuningRecipe* TuningCatalogue::find(std::string_view name) const {
  for (const TuningRecipe& recipe : recipes) {
    if (recipe.name == name) return &recipe;
  }
  return nullptr;
}

TuningCatalogue read_tuning_catalogue(const Json& document, Faults& faults) {
  TuningCatalogue catalogue;
  const JsonReader root(document, "", faults);
  if (!require_object(root)) return catalogue;
  root.reject_unknown({"schema_version", "profiles"});
  root.field("schema_version").integer(1, 1, 1);
  if (const JsonReader profiles = root.field("profiles"); require_object(profiles)) {
    for (const auto& [name, value] : profiles.members())
      catalogue.recipes.push_back(read_recipe(name, value));
  }
  return catalogue;
}

}  // namespace spark::ops
