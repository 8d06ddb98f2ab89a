#include "ops/site/engine_render.h"

#include <algorithm>
#include <set>

#include "ops/site/json_object.h"
#include "ops/site/settings.h"

namespace spark::ops {
namespace {

constexpr int64_t kLargestExactDouble = int64_t{1} << 53;

struct EngineTables {
  std::span<const Setting> arguments;
  std::span<const Setting> variables;
  std::span<const Setting> ingredients;
};

EngineTables tables_of(EngineKind kind) {
  if (kind == EngineKind::kNative) return {native_arguments(), {}, native_ingredients()};
  return {vllm_arguments(), vllm_variables(), vllm_ingredients()};
}

// Every settable key with its row. The first row of a key is the one that validates it.
std::map<std::string, const Setting*> settable_keys(const EngineTables& tables) {
  std::map<std::string, const Setting*> keys;
  for (const auto& rows : {tables.arguments, tables.variables, tables.ingredients}) {
    for (const Setting& row : rows) {
      if (row.key[0] != '@') keys.emplace(row.key, &row);
    }
  }
  return keys;
}

void check_words(const JsonReader& reader, const std::string& text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) continue;
    reader.fault("holds a control character", "remove it");
    return;
  }
}

// `words` are parted by blanks; none: anything goes.
void check_choice(const JsonReader& reader, const std::string& text, const std::string& words) {
  if (words.empty() || text.empty() || (" " + words + " ").find(" " + text + " ") != std::string::npos)
    return;
  reader.fault("is \"" + text + "\"", "choose one of " + words);
}

class EngineRenderer {
 public:
  EngineRenderer(const Json& profile, Faults& faults)
      : profile_(profile), faults_(faults), engine_(profile["engine"]) {}

  RenderedEngine render() {
    const JsonReader reader(engine_, "engine", faults_);
    if (!require_object(reader)) return {};
    if (text("kind", "vllm") == "native") kind_ = EngineKind::kNative;
    keys_ = settable_keys(tables_of(kind_));
    const size_t before = faults_.size();
    check_object(reader, "");
    require(reader);
    if (faults_.size() == before) fill();
    return std::move(out_);
  }

 private:
  // Checks every member of one object of the engine section; `prefix` is its key path with a trailing dot.
  void check_object(const JsonReader& reader, const std::string& prefix) {
    std::vector<std::string> known;
    std::set<std::string> groups;
    for (const auto& [key, row] : keys_) {
      if (key.rfind(prefix, 0) != 0) continue;
      const std::string rest = key.substr(prefix.size());
      const std::string head = rest.substr(0, rest.find('.'));
      if (head != rest) groups.insert(head);
      if (known.empty() || known.back() != head) known.push_back(head);
    }
    reader.reject_unknown(known);
    for (const auto& [name, value] : reader.members()) {
      const auto row = keys_.find(prefix + name);
      if (row != keys_.end()) {
        check_setting(value, *row->second);
      } else if (groups.count(name) != 0 && require_object(value)) {
        check_object(value, prefix + name + ".");
      }
    }
  }

  void require(const JsonReader& reader) {
    std::vector<const char*> required = {
        "model_path", "served_model_name", "host",         "port",
        "nodes",      "max_model_len",     "max_num_seqs", "max_num_batched_tokens"};
    if (kind_ == EngineKind::kNative)
      required.insert(required.end(), {"service", "program", "memory_max_gib"});
    for (const char* key : required) {
      if (!reader.field(key).present()) reader.field(key).fault("is missing");
    }
    // The native engine's drafter comes with the checkpoint; {} turns it off.
    if (kind_ == EngineKind::kVllm && find("speculative") != nullptr) {
      for (const char* key : {"method", "num_speculative_tokens"}) {
        if (!reader.field("speculative").field(key).present())
          reader.field("speculative").field(key).fault("is missing");
      }
    }
  }

  const Json* find(const std::string& key) const {
    const Json* at = &engine_;
    for (size_t begin = 0; begin <= key.size();) {
      const size_t dot = std::min(key.find('.', begin), key.size());
      const auto found = at->is_object() ? at->find(key.substr(begin, dot - begin)) : at->end();
      if (!at->is_object() || found == at->end()) return nullptr;
      at = &*found;
      begin = dot + 1;
    }
    return at;
  }

  std::string text(const std::string& key, const std::string& fallback) const {
    const Json* value = find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : fallback;
  }

  std::string kernel_backend() const {
    const auto found = profile_.find("kernel_backend");
    return found != profile_.end() && found->is_string() ? found->get<std::string>() : kDefaultKernelFamily;
  }

  const TransportTraits* transport() const {
    const auto fabric = profile_.find("fabric");
    std::string name = kDefaultTransport;
    if (fabric != profile_.end() && fabric->is_object() && fabric->contains("transport") &&
        (*fabric)["transport"].is_string()) {
      name = (*fabric)["transport"].get<std::string>();
    }
    return find_transport(name);
  }

  bool applies(SettingWhen when) const {
    switch (when) {
      case SettingWhen::kAlways:
        return true;
      case SettingWhen::kTilelang:
        return kernel_backend() == "tilelang";
      case SettingWhen::kSparknet:
        return transport() != nullptr && transport()->one_shot && transport()->sparknet;
      case SettingWhen::kRocenante:
        return transport() != nullptr && transport()->one_shot && !transport()->sparknet;
    }
    return false;
  }

  int64_t capture_size() const {
    if (const Json* given = find("max_cudagraph_capture_size")) return given->get<int64_t>();
    const Json* drafts = find("speculative.num_speculative_tokens");
    return find("max_num_seqs")->get<int64_t>() * (1 + (drafts == nullptr ? 0 : drafts->get<int64_t>()));
  }

  std::string attention_backend() const {
    const KernelFamily* family = find_kernel_family(kernel_backend());
    return family == nullptr ? kernel_backend() : family->attention_backend;
  }

  Json speculative() const {
    const Json& given = *find("speculative");
    if (kind_ == EngineKind::kNative) return given;
    Json config = Json::object();
    const auto copy = [&](const char* key) {
      if (given.contains(key)) config[key] = given[key];
    };
    copy("method");
    copy("num_speculative_tokens");
    config["draft_tensor_parallel_size"] = *find("nodes");
    config["attention_backend"] = attention_backend();
    for (const char* key : {"draft_sample_method", "rejection_sample_method", "enable_adaptive_verification",
                            "adaptive_verification_cost_scale"}) {
      copy(key);
    }
    return config;
  }

  Json compilation() const {
    Json config = *find("compilation");
    config["cudagraph_capture_sizes"] = capture_ladder(capture_size());
    return config;
  }

  // The value of a row and, in `source`, where it comes from; null when the setting is absent.
  Json value_of(const std::string& key, std::string& source) const {
    source = key;
    if (key[0] != '@') {
      const Json* value = find(key);
      return value == nullptr ? Json() : *value;
    }
    if (key == "@capture_size") {
      source = find("max_cudagraph_capture_size") != nullptr ? "max_cudagraph_capture_size" : "max_num_seqs";
      return find("compilation") == nullptr && source == "max_num_seqs" ? Json() : Json(capture_size());
    }
    if (key == "@speculative") {
      source = "speculative";
      return find("speculative") == nullptr ? Json() : speculative();
    }
    if (key == "@compilation") {
      source = "compilation";
      return find("compilation") == nullptr ? Json() : compilation();
    }
    if (key == "@cost_directory" || key == "@vllm_cache") {
      const bool cost = key == "@cost_directory";
      source = cost ? "dspark.cost_set" : "cache.vllm_generation";
      const Json* leaf = find(source);
      const Json* root = find("cache.root");
      if (leaf == nullptr || root == nullptr) return {};
      return root->get<std::string>() + (cost ? "/dspark-costs/" : "/jit/") + leaf->get<std::string>();
    }
    source = "kernel_backend";
    return key == "@attention_backend" ? attention_backend() : kernel_backend();
  }

  void note_source(const std::string& carrier, const std::string& source) {
    out_.sources[carrier] = source == "kernel_backend" ? source : "engine." + source;
  }

  void fill() {
    const EngineTables tables = tables_of(kind_);
    std::string source;
    for (const Setting& row : tables.arguments) {
      const Json value = value_of(row.key, source);
      if (value.is_null()) continue;
      if (row.kind == SettingKind::kSwitchPair) {
        out_.arguments.push_back(value.get<bool>() ? row.name : negative_name(row.name));
        note_source(out_.arguments.back(), source);
        continue;
      }
      if (row.kind == SettingKind::kSwitch || row.kind == SettingKind::kSwitchOff) {
        if (value.get<bool>() == (row.kind == SettingKind::kSwitch)) {
          out_.arguments.emplace_back(row.name);
          note_source(row.name, source);
        }
        continue;
      }
      if (row.name[0] != '\0') out_.arguments.emplace_back(row.name);
      out_.arguments.push_back(carried_text(value, row));
      note_source(row.name, source);
    }
    if (const Json* extra = find("extra_arguments")) {
      for (const Json& item : *extra) out_.arguments.push_back(item.get<std::string>());
    }
    for (const Setting& row : tables.variables) {
      if (!applies(row.when)) continue;
      const Json value = value_of(row.key, source);
      if (value.is_null()) continue;
      out_.environment[row.name] = carried_text(value, row);
      note_source(row.name, source);
    }
  }

  const Json& profile_;
  Faults& faults_;
  const Json& engine_;
  EngineKind kind_ = EngineKind::kVllm;
  std::map<std::string, const Setting*> keys_;
  RenderedEngine out_;
};

}  // namespace

void check_setting(const JsonReader& reader, const Setting& row) {
  const auto low = static_cast<int64_t>(row.low);
  const auto high = static_cast<int64_t>(std::min(row.high, static_cast<double>(kLargestExactDouble)));
  switch (row.kind) {
    case SettingKind::kInteger:
      if (const int64_t value = reader.integer(low, high, low); value % row.multiple != 0) {
        reader.fault("is " + std::to_string(value) + ", no multiple of " + std::to_string(row.multiple));
      }
      return;
    case SettingKind::kNumber:
      reader.number(row.low, row.high);
      return;
    case SettingKind::kText:
    case SettingKind::kPathBelow: {
      const std::string text = reader.string();
      if (reader.json()->is_string() && text.empty()) reader.fault("is empty");
      check_words(reader, text);
      check_choice(reader, text, row.words);
      return;
    }
    case SettingKind::kDigit:
    case SettingKind::kSwitch:
    case SettingKind::kSwitchOff:
    case SettingKind::kSwitchPair:
      reader.boolean();
      return;
    case SettingKind::kList:
      for (const JsonReader& item : reader.items()) check_words(item, item.string());
      return;
    case SettingKind::kObject:
      require_object(reader);
      return;
  }
}

std::string carried_text(const Json& value, const Setting& row) {
  switch (row.kind) {
    case SettingKind::kDigit:
      return value.get<bool>() ? "1" : "0";
    case SettingKind::kPathBelow:
      return value.get<std::string>() + row.suffix;
    case SettingKind::kList: {
      std::string joined;
      for (const Json& item : value) joined += (joined.empty() ? "" : ",") + item.get<std::string>();
      return joined;
    }
    default:
      return value.is_string() ? value.get<std::string>() : value.dump();
  }
}

std::vector<int64_t> capture_ladder(int64_t largest) {
  std::vector<int64_t> sizes;
  for (const int64_t size : {1, 2, 3}) {
    if (size <= largest) sizes.push_back(size);
  }
  for (int64_t size = 4; size <= largest; size += size < 8 ? 2 : size < 32 ? 4 : 8) sizes.push_back(size);
  if (largest > 0 && sizes.back() != largest) sizes.push_back(largest);
  return sizes;
}

RenderedEngine render_engine(const Json& profile, Faults& faults) {
  return EngineRenderer(profile, faults).render();
}

}  // namespace spark::ops
