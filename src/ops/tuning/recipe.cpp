#include "ops/tuning/recipe.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <sstream>

#include "common/hash.h"
#include "model/split.h"
#include "ops/site/arguments.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr const char* kCapacity = "VLLM_ROCE_ALLREDUCE_MAX_SIZE";
constexpr const char* kGather = "VLLM_ROCE_ALLGATHER_MAX_SIZE";
constexpr const char* kDispatch = "B12X_ROCE_ALLREDUCE_DISPATCH_MAX_BYTES";
constexpr const char* kSpin = "B12X_ROCE_SPIN_LIMIT";
constexpr const char* kMinChannels = "NCCL_MIN_NCHANNELS";
constexpr const char* kMaxChannels = "NCCL_MAX_NCHANNELS";
constexpr const char* kBuffer = "NCCL_BUFFSIZE";
constexpr const char* kLowLatencyBuffer = "NCCL_LL128_BUFFSIZE";
constexpr const char* kProtocol = "NCCL_PROTO";
constexpr const char* kBidirectional = "NCCL_SWITCHLESS_BIDIRECTIONAL";
constexpr const char* kMinTraffic = "NCCL_MIN_TRAFFIC_PER_CHANNEL";
constexpr const char* kThresholds = "NCCL_THREAD_THRESHOLDS";
constexpr int64_t kPack = 16;  // one-shot payloads are whole packs of this many bytes

class RecipeRules {
 public:
  RecipeRules(const ResolvedRecipe& resolved, Faults& faults) : resolved_(resolved), faults_(faults) {}

  void run() {
    const auto capacity = size(kCapacity, true);
    size(kGather, true);
    const auto dispatch = size(kDispatch, false);
    if (capacity && dispatch && *dispatch > *capacity) {
      fault(kDispatch,
            std::to_string(*dispatch) + " is more than the capacity of " + std::to_string(*capacity),
            "lower it, or raise " + std::string(kCapacity));
    }
    count(kSpin, true);
    count(kBuffer, true);
    count(kLowLatencyBuffer, true);
    const auto most = count(kMaxChannels, true);
    const auto least = count(kMinChannels, false);
    if (most && least && *least > *most) {
      fault(kMinChannels,
            std::to_string(*least) + " is more than " + kMaxChannels + ", " + std::to_string(*most), {});
    }
    count(kMinTraffic, false);
    if (const auto text = value(kProtocol); !text || *text != "^LL128") {
      fault(kProtocol, text ? "is \"" + *text + "\"" : "is not set",
            "LL128 is unsafe on this fabric: use ^LL128");
    }
    thresholds();
    node_count_rules();
  }

 private:
  std::optional<std::string> value(const char* name) const {
    const auto found = resolved_.environment.find(name);
    return found == resolved_.environment.end() ? std::nullopt : std::optional(found->second);
  }

  void fault(const std::string& name, std::string what, std::string hint) {
    faults_.push_back({resolved_.recipe.name + "." + name, std::move(what), std::move(hint)});
  }

  bool set_by_recipe(const char* name) const {
    for (const auto* group : {&resolved_.recipe.rocenante, &resolved_.recipe.nccl}) {
      for (const TuningSetting& setting : *group) {
        if (setting.variable == name) return setting.value.has_value();
      }
    }
    return false;
  }

  std::optional<int64_t> size(const char* name, bool required) {
    const auto text = value(name);
    if (!text) {
      if (required) fault(name, "is not set after the recipe", "give it a size, such as 2MB");
      return {};
    }
    const auto bytes = byte_size(*text);
    if (bytes && *bytes > 0 && *bytes % kPack == 0) return bytes;
    fault(name, "\"" + *text + "\" is no multiple of 16 bytes", "write a size such as 2MB or 1048576");
    return {};
  }

  std::optional<int64_t> count(const char* name, bool required) {
    const auto text = value(name);
    if (!text) {
      if (required) fault(name, "is not set after the recipe", "give it a value");
      return {};
    }
    const auto number = whole_number(*text);
    if (number && *number > 0) return number;
    fault(name, "\"" + *text + "\" is not a positive whole number", {});
    return {};
  }

  void thresholds() {
    const auto text = value(kThresholds);
    if (!text) return;
    std::istringstream words(*text);
    std::string word;
    size_t good = 0, all = 0;
    while (words >> word) {
      ++all;
      good += whole_number(word) ? 1 : 0;
    }
    if (all != 6 || good != 6)
      fault(kThresholds, "\"" + *text + "\" is not six whole numbers", "such as -2 -2 -2 1 1 1");
  }

  void node_count_rules() {
    if (resolved_.recipe.node_count == 3) {
      for (const char* name : {kDispatch, kBidirectional, kMinTraffic}) {
        if (set_by_recipe(name))
          fault(name, "is set for three nodes, whose image lacks that control", "write null");
      }
    } else if (value(kBidirectional) != std::optional<std::string>("2")) {
      fault(kBidirectional, "is not 2", "a ring of four uses both directions: write \"2\"");
    }
  }

  const ResolvedRecipe& resolved_;
  Faults& faults_;
};

void check_base(const ResolvedRecipe& resolved, Faults& faults) {
  const TuningRecipe& recipe = resolved.recipe;
  const std::string where = recipe.name + ".";
  if (resolved.base.sha256 != recipe.base_sha256) {
    faults.push_back({where + "base_sha256",
                      recipe.base_config + " has changed: it is " + resolved.base.sha256 + " now",
                      "review what changed (spark config diff), then pin the new value"});
  }
  if (resolved.base.profile.transport_name != recipe.transport) {
    faults.push_back({where + "transport",
                      "is " + recipe.transport + ", the base's is " + resolved.base.profile.transport_name,
                      "name a base with that transport"});
  }
  Faults ignored;
  const EngineSettings engine = read_engine_settings(resolved.base.profile, ignored);
  if (engine.tensor_parallel_size != std::optional(recipe.node_count)) {
    faults.push_back({where + "node_count",
                      "is " + std::to_string(recipe.node_count) + ", the base runs on " +
                          std::to_string(engine.tensor_parallel_size.value_or(0)),
                      "name a base of that size"});
  }
}

int64_t up_to_multiple(int64_t value, int64_t of) {
  return (value + of - 1) / of * of;
}

}  // namespace

std::optional<int64_t> byte_size(const std::string& text) {
  static constexpr std::array<std::pair<const char*, int64_t>, 4> kUnits = {
      {{"KB", int64_t{1} << 10}, {"MB", int64_t{1} << 20}, {"GB", int64_t{1} << 30}, {"B", 1}}};
  for (const auto& [unit, factor] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto number =
        whole_number(std::string_view(text).substr(0, text.size() - std::string_view(unit).size()));
    if (!number || *number < 0 || *number > (int64_t{1} << 40) / factor) return {};
    return *number * factor;
  }
  const auto number = whole_number(text);
  return number && *number >= 0 && *number <= (int64_t{1} << 40) ? number : std::nullopt;
}

TuningCatalogue load_catalogue(const Repository& repository, const std::string& path) {
  Faults faults;
  TuningCatalogue catalogue = read_tuning_catalogue(parse_json(repository.read(path), path), faults);
  throw_if_any(faults, path);
  return catalogue;
}

ResolvedRecipe resolve_recipe(const Repository& repository, const std::string& path,
                              const std::string& name) {
  const TuningCatalogue catalogue = load_catalogue(repository, path);
  const TuningRecipe* recipe = catalogue.find(name);
  if (recipe == nullptr) {
    std::vector<std::string> names;
    std::string listed;
    for (const TuningRecipe& entry : catalogue.recipes) {
      names.push_back(entry.name);
      listed += (listed.empty() ? "" : ", ") + entry.name;
    }
    const auto guess = nearest(name, names);
    throw Error(
        "\"" + name + "\" is not a recipe", path,
        guess ? "did you mean \"" + *guess + "\"?" : "there are: " + (listed.empty() ? "none" : listed));
  }
  ResolvedRecipe resolved;
  resolved.recipe = *recipe;
  resolved.catalogue = path;
  resolved.catalogue_sha256 = sha256_hex(repository.read(path));
  resolved.base = load_base(repository, recipe->base_config);
  resolved.environment = resolved.base.profile.environment;
  for (const auto* group : {&recipe->rocenante, &recipe->nccl}) {
    for (const TuningSetting& setting : *group) {
      resolved.environment.erase(setting.variable);
      if (setting.value) resolved.environment[setting.variable] = *setting.value;
    }
  }
  Faults faults;
  check_base(resolved, faults);
  RecipeRules(resolved, faults).run();
  throw_if_any(faults, path);
  return resolved;
}

Json derived_layout(const ResolvedRecipe& resolved, const model::ModelConfig& model) {
  const int64_t ranks = resolved.recipe.node_count;
  const model::RankSplit split = model::split_for(model, ranks);
  Faults ignored;
  const EngineSettings engine = read_engine_settings(resolved.base.profile, ignored);
  const int64_t rows = 1 + engine.draft_tokens.value_or(0);
  const int64_t decode_rows = engine.max_num_seqs.value_or(1) * rows;
  const int64_t chunk = engine.max_num_batched_tokens.value_or(decode_rows);
  const int64_t limit =
      std::min({decode_rows, engine.max_cudagraph_capture_size.value_or(decode_rows), chunk});
  const int64_t capacity = byte_size(resolved.environment.at(kCapacity)).value_or(0);
  const int64_t row_bytes = 2 * model.hidden_size;
  const int64_t parallel_rows =
      std::max(decode_rows + 1, up_to_multiple(capacity / row_bytes + 1, ranks) - ranks + 1);
  Json graphs = Json::array();
  for (int64_t size = 1; size < limit; size *= 2) graphs.push_back(size);
  graphs.push_back(limit);
  Json layout;
  layout["attention"] = {{"groups", split.padded_groups()},
                         {"heads", split.padded_heads()},
                         {"groups_per_rank", split.groups},
                         {"heads_per_rank", split.heads}};
  layout["vocabulary"] = {{"rows_per_rank", split.vocabulary},
                          {"padding_rows", split.vocabulary * ranks - model.vocab_size}};
  layout["engram_output_per_rank"] = split.engram_output;
  layout["drafter_projection_per_rank"] = split.main_output;
  layout["expert_width"] = {{"per_rank", split.expert_width}, {"half_tile", split.expert_width % 128 == 64}};
  layout["head_bytes"] = {{"bf16", split.vocabulary * model.hidden_size * 2},
                          {"packed", split.vocabulary * model.hidden_size * 3 / 2}};
  layout["decode_rows_per_request"] = rows;
  layout["graph_capacities"] = std::move(graphs);
  layout["sequence_parallel_min_rows"] = parallel_rows;
  layout["examples"] = Json::array();
  for (const int64_t example : {1, 6, 19, 48, 205, 4096}) {
    layout["examples"].push_back(
        {{"rows", example},
         {"one_shot", example * row_bytes <= capacity},
         {"sequence_parallel_rows", example >= parallel_rows ? up_to_multiple(example, ranks) : 0}});
  }
  return layout;
}

Json recipe_json(const ResolvedRecipe& resolved, const model::ModelConfig& model) {
  const TuningRecipe& recipe = resolved.recipe;
  const auto group = [](const std::vector<TuningSetting>& settings) {
    Json json = Json::object();
    for (const TuningSetting& setting : settings)
      json[setting.variable] = setting.value ? Json(*setting.value) : Json();
    return json;
  };
  return {{"profile", recipe.name},
          {"base_config", recipe.base_config},
          {"base_sha256", recipe.base_sha256},
          {"status", recipe.status},
          {"node_count", recipe.node_count},
          {"transport", recipe.transport},
          {"rocenante", group(recipe.rocenante)},
          {"nccl", group(recipe.nccl)},
          {"derived_layout", derived_layout(resolved, model)}};
}

void create_from_recipe(const Repository& repository, const ResolvedRecipe& resolved,
                        const model::ModelConfig& model, const std::string& nodes_config,
                        const std::string& output) {
  const NodeMap map = load_node_map(repository, nodes_config);
  const auto nodes = static_cast<int64_t>(map.nodes.size());
  if (nodes != resolved.recipe.node_count) {
    throw Error("has " + std::to_string(nodes) + " nodes; the recipe is for " +
                    std::to_string(resolved.recipe.node_count),
                nodes_config, "name a recipe for that many nodes");
  }
  Json document = resolved.base.document;
  Json environment = Json::object();
  for (const auto& [name, value] : resolved.environment) environment[name] = value;
  document["environment"] = std::move(environment);
  retarget(document, map, nodes_config);
  document["tuning_origin"] = {{"catalog", resolved.catalogue},
                               {"catalog_sha256", resolved.catalogue_sha256},
                               {"profile", resolved.recipe.name},
                               {"base_config", resolved.recipe.base_config},
                               {"base_sha256", resolved.recipe.base_sha256},
                               {"derived_layout", derived_layout(resolved, model)}};
  write_experiment(repository, output, document, map);
}

}  // namespace spark::ops
