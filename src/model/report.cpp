#include "model/report.h"

#include "common/table.h"
#include "common/units.h"

namespace spark::model {
namespace {

std::string count(int64_t value) {
  return format_count(static_cast<uint64_t>(value));
}
std::string bytes(int64_t value) {
  return format_bytes(static_cast<uint64_t>(value));
}
std::string layer_or_dash(int64_t layer) {
  return layer < 0 ? "-" : std::to_string(layer);
}

std::string notes_of(const LayerRole& role) {
  std::string notes;
  const auto add = [&](const std::string& note) { notes += (notes.empty() ? "" : ", ") + note; };
  if (role.engram >= 0) add("Engram table " + std::to_string(role.engram) + " before it");
  if (role.is_candidate_source) add("chooses the candidates");
  if (role.uses_candidates) add("scores candidates only");
  if (role.aux >= 0) add("input feeds the drafter");
  return notes;
}

// The drafter's inputs are told apart in JSON only; a run of such layers is one line here.
bool look_alike(const LayerRole& a, const LayerRole& b) {
  return a.compress_ratio == b.compress_ratio && a.mode == b.mode && a.kv_source == b.kv_source &&
         a.index_source == b.index_source && notes_of(a) == notes_of(b);
}

Table plan_table(const ModelReport& report) {
  Table table({{"layers"},
               {"ratio", Align::kRight},
               {"attention"},
               {"cache of", Align::kRight},
               {"selection of", Align::kRight},
               {"notes"}});
  const auto add = [&](const std::string& layers, const LayerRole& role, const std::string& notes) {
    table.add({layers, std::to_string(role.compress_ratio), std::string(name_of(role.mode)),
               layer_or_dash(role.kv_source), layer_or_dash(role.index_source), notes});
  };
  const auto& layers = report.plan.layers;
  for (size_t first = 0; first < layers.size();) {
    size_t last = first;
    while (last + 1 < layers.size() && look_alike(layers[first], layers[last + 1])) ++last;
    const std::string name = std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
    add(name, layers[first], notes_of(layers[first]));
    first = last + 1;
  }
  if (!report.plan.drafter.empty()) {
    const std::string drafts = std::to_string(report.config.dspark_block_size);
    add("drafter 0-" + std::to_string(report.plan.drafter.size() - 1), report.plan.drafter[0],
        "blocks of " + drafts + " drafts");
  }
  return table;
}

Table component_table(const ModelReport& report) {
  Table table({{"component"},
               {"tensors", Align::kRight},
               {"bytes", Align::kRight},
               {"", Align::kRight},
               {"parameters", Align::kRight}});
  const auto add = [&](std::string_view name, const ComponentTotal& total) {
    table.add({std::string(name), count(total.tensors), count(total.bytes), bytes(total.bytes),
               count(total.parameters)});
  };
  for (const ComponentTotal& total : report.components) add(name_of(total.component), total);
  add("total", report.total);
  return table;
}

std::string cache_text(const ModelReport& report) {
  const CacheCost& cache = report.cache;
  return "Cache records: window " + std::to_string(cache.window_record) + " B, compressed " +
         std::to_string(cache.main_record) + " B, index key " + std::to_string(cache.index_record) + " B.\n" +
         "A sequence takes " + bytes(cache.fixed_per_sequence) + ", and " +
         format_fixed(cache.growth_per_token, 1) + " B for every token.\n";
}

std::string rank_text(const ModelReport& report) {
  const RankSplit& split = report.split;
  Table table({{"component"}, {"cut", Align::kRight}, {"copied", Align::kRight}});
  for (const ComponentBytes& part : report.rank_components) {
    if (part.component == Component::kEngramTable) continue;
    table.add({std::string(name_of(part.component)), bytes(part.split), bytes(part.replicated)});
  }
  return "Each of " + std::to_string(split.ranks) + " ranks: " + std::to_string(split.heads) +
         " query heads in " + std::to_string(split.groups) + " groups, expert width " +
         std::to_string(split.expert_width) + ", " + count(split.vocabulary) + " vocabulary rows.\n\n" +
         table.text() + "\nIn device memory, head packed to 12 bits: " + bytes(report.rank_memory.total) +
         " a rank, vision tower included (spark-engine does not load it: spark plan counts what it does). "
         "Engram tables stay on disk or in host memory.\n";
}

Json role_json(const LayerRole& role) {
  Json json;
  json["layer"] = role.layer;
  json["compress_ratio"] = role.compress_ratio;
  json["attention"] = name_of(role.mode);
  json["kv_source"] = role.kv_source;
  json["index_source"] = role.index_source;
  json["is_candidate_source"] = role.is_candidate_source;
  json["uses_candidates"] = role.uses_candidates;
  json["engram"] = role.engram;
  json["aux"] = role.aux;
  return json;
}

}  // namespace

ModelReport make_model_report(const ModelConfig& config, int64_t ranks) {
  ModelReport report;
  report.config = config;
  report.split = split_for(config, ranks);
  report.plan = make_layer_plan(config);
  const std::vector<TensorEntry> tensors = tensor_catalogue(config);
  report.components = component_totals(tensors);
  for (const ComponentTotal& part : report.components) {
    report.total.tensors += part.tensors;
    report.total.bytes += part.bytes;
    report.total.parameters += part.parameters;
  }
  report.cache = cache_cost(config);
  report.rank_components = rank_bytes(tensors, report.split);
  report.rank_memory = rank_memory(tensors, report.split);
  return report;
}

std::string report_text(const ModelReport& report) {
  const ModelConfig& c = report.config;
  std::string text = std::to_string(c.num_hidden_layers) + " layers, " +
                     std::to_string(c.num_nextn_predict_layers) + " drafter layers, hidden size " +
                     std::to_string(c.hidden_size) + ", " + count(c.vocab_size) + " tokens, " +
                     std::to_string(c.n_routed_experts) + " experts (" +
                     std::to_string(c.num_experts_per_tok) + " per token), " +
                     (c.vision ? "with" : "without") + " vision tower\n\n";
  text += plan_table(report).text() + "\n" + component_table(report).text() + "\n" + cache_text(report);
  if (report.split.ranks > 1) text += "\n" + rank_text(report);
  return text;
}

Json report_json(const ModelReport& report) {
  Json json;
  Json layers = Json::array();
  for (const LayerRole& role : report.plan.layers) layers.push_back(role_json(role));
  json["layers"] = std::move(layers);
  json["drafter_layers"] = report.plan.drafter.size();
  Json components = Json::array();
  for (const ComponentTotal& part : report.components) {
    components.push_back({{"component", name_of(part.component)},
                          {"tensors", part.tensors},
                          {"bytes", part.bytes},
                          {"parameters", part.parameters}});
  }
  json["components"] = std::move(components);
  json["total"] = {{"tensors", report.total.tensors},
                   {"bytes", report.total.bytes},
                   {"parameters", report.total.parameters}};
  json["cache"] = {{"window_record_bytes", report.cache.window_record},
                   {"main_record_bytes", report.cache.main_record},
                   {"index_record_bytes", report.cache.index_record},
                   {"bytes_per_token", report.cache.growth_per_token},
                   {"bytes_per_sequence", report.cache.fixed_per_sequence}};
  Json parts = Json::array();
  for (const ComponentBytes& part : report.rank_components) {
    parts.push_back({{"component", name_of(part.component)},
                     {"cut_bytes", part.split},
                     {"copied_bytes", part.replicated}});
  }
  json["tensor_parallel"] = {{"ranks", report.split.ranks},
                             {"heads", report.split.heads},
                             {"groups", report.split.groups},
                             {"expert_width", report.split.expert_width},
                             {"vocabulary_rows", report.split.vocabulary},
                             {"device_bytes", report.rank_memory.total},
                             {"components", std::move(parts)}};
  return json;
}

}  // namespace spark::model
