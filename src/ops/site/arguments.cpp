#include "ops/site/arguments.h"

#include <limits>

#include "ops/site/settings.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

bool is_name(const std::string& word) {
  return word.size() > 2 && word.compare(0, 2, "--") == 0;
}

bool is_switch(const std::string& name) {
  const Setting* row = setting_of_argument(name);
  return row != nullptr && (row->kind == SettingKind::kSwitch || row->kind == SettingKind::kSwitchOff ||
                            row->kind == SettingKind::kSwitchPair);
}

class SettingsReader {
 public:
  SettingsReader(const ServerArguments& arguments, Faults& faults) : arguments_(arguments), faults_(faults) {}

  std::string text(const char* name) const { return arguments_.value(name).value_or(""); }

  std::optional<int64_t> count(const char* name, int64_t low = 1,
                               int64_t high = std::numeric_limits<int64_t>::max()) const {
    if (!arguments_.has(name)) return {};
    const auto given = arguments_.value(name);
    if (!given) {
      fault(name, "has no value");
      return {};
    }
    const auto number = whole_number(*given);
    if (!number) {
      fault(name, "is \"" + *given + "\"; it must be a whole number");
    } else if (*number < low || *number > high) {
      fault(name, "is " + *given + "; it must be " +
                      (high == std::numeric_limits<int64_t>::max()
                           ? "at least " + std::to_string(low)
                           : "between " + std::to_string(low) + " and " + std::to_string(high)));
    } else {
      return number;
    }
    return {};
  }

  void speculative(EngineSettings& settings) const {
    static constexpr const char* kName = "--speculative-config";
    const auto given = arguments_.value(kName);
    if (!given) {
      if (arguments_.has(kName)) fault(kName, "has no value");
      return;
    }
    Json config;
    try {
      config = parse_json(*given, kName);
    } catch (const Error& error) {
      fault(kName, error.what());
      return;
    }
    if (!config.is_object()) {
      fault(kName, "must be a JSON object");
      return;
    }
    if (!config.empty()) {
      const JsonReader reader(config, std::string("serve_args.") + kName, faults_);
      settings.draft_tokens = reader.field("num_speculative_tokens").optional_integer(1, 64);
      settings.draft_tensor_parallel_size =
          reader.field("draft_tensor_parallel_size").optional_integer(1, 64);
    }
    settings.speculative = std::move(config);
  }

 private:
  void fault(const std::string& name, const std::string& what) const {
    faults_.push_back({"serve_args." + name, what, {}});
  }

  const ServerArguments& arguments_;
  Faults& faults_;
};

}  // namespace

ServerArguments::ServerArguments(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!is_name(word)) {
      all_.push_back({"", word, i});
      continue;
    }
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      all_.push_back({word.substr(0, equals), word.substr(equals + 1), i});
    } else if (!is_switch(word) && i + 1 < words.size() && !is_name(words[i + 1])) {
      all_.push_back({word, words[i + 1], i});
      ++i;
    } else {
      all_.push_back({word, std::nullopt, i});
    }
  }
}

const ServerArgument* ServerArguments::find(std::string_view name) const {
  for (auto at = all_.rbegin(); at != all_.rend(); ++at) {
    if (at->name == name) return &*at;
  }
  return nullptr;
}

std::optional<std::string> ServerArguments::value(std::string_view name) const {
  const ServerArgument* found = find(name);
  return found == nullptr ? std::nullopt : found->value;
}

EngineSettings read_engine_settings(const ClusterProfile& profile, Faults& faults) {
  const ServerArguments arguments(profile.serve_args);
  const SettingsReader reader(arguments, faults);
  EngineSettings settings;
  if (!arguments.all().empty() && arguments.all().front().name.empty()) {
    settings.model_path = *arguments.all().front().value;
  }
  settings.served_model_name = reader.text("--served-model-name");
  settings.host = reader.text("--host");
  settings.port = reader.count("--port", 1, 65535);
  settings.tensor_parallel_size = reader.count("--tensor-parallel-size");
  settings.nnodes = reader.count("--nnodes");
  settings.max_model_len = reader.count("--max-model-len");
  settings.max_num_seqs = reader.count("--max-num-seqs");
  settings.max_num_batched_tokens = reader.count("--max-num-batched-tokens");
  settings.max_parallel_prefills = reader.count("--max-parallel-prefills");
  settings.kv_cache_memory_bytes =
      reader.count("--kv-cache-memory-bytes", profile.engine_kind == EngineKind::kNative ? 0 : 1);
  settings.block_size = reader.count("--block-size");
  settings.max_cudagraph_capture_size = reader.count("--max-cudagraph-capture-size", 0);
  reader.speculative(settings);
  return settings;
}

}  // namespace spark::ops
