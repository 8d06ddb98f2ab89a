#include "model/config.h"

#include <algorithm>

#include "model/config_rules.h"

namespace spark::model {
namespace {

// Upper bounds keep every product of sizes inside 63 bits and a tensor catalogue inside memory; each is
// several times the published model.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 17;
constexpr int64_t kMaxLayers = 256;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxExperts = 2048;
constexpr int64_t kMaxContext = int64_t{1} << 30;
constexpr int64_t kMaxTableRows = int64_t{1} << 36;
constexpr int64_t kMaxEngramVocabulary = int64_t{1} << 31;
constexpr size_t kMaxEntries = 2 * kMaxLayers;  // of a list: main layers and drafter layers
constexpr size_t kMaxQuoted = 80;               // characters of a wrong value that a message repeats

// Reads fields by their nested name, from whichever name set the file has.
class ConfigReader {
 public:
  ConfigReader(const Json& json, Faults& faults)
      : root_(json, "", faults), text_(root_.field("text_config")), faults_(&faults) {
    nested_ = text_.present();
    if (nested_) known_.insert("text_config");
  }

  bool nested() const { return nested_; }
  const JsonReader& root() const { return root_; }
  const FieldOrigins& origins() const { return origins_; }

  // A field of the text part; `flat` is its official name, empty where the flat set has none.
  JsonReader at(const std::string& name, const std::string& flat) {
    return find(nested_ ? text_ : root_, name, flat);
  }
  // A field of the file's top level.
  JsonReader top(const std::string& name, const std::string& flat) { return find(root_, name, flat); }

  // Runs `read` and marks the field as broken if it added a fault.
  template <typename Read>
  auto guarded(const std::string& name, Read read) {
    const size_t before = faults_->size();
    auto value = read();
    if (faults_->size() != before) origins_.broken.insert(name);
    return value;
  }

  int64_t integer(const std::string& name, const std::string& flat, int64_t low, int64_t high) {
    const JsonReader reader = at(name, flat);
    return guarded(name, [&] { return reader.integer(low, high); });
  }
  int64_t integer_or(const JsonReader& reader, const std::string& name, int64_t low, int64_t high,
                     int64_t fallback) {
    return guarded(name, [&] { return reader.optional_integer(low, high).value_or(fallback); });
  }
  int32_t token(const JsonReader& reader, const std::string& name, int32_t fallback) {
    return static_cast<int32_t>(integer_or(reader, name, 0, kMaxVocabulary - 1, fallback));
  }
  double number(const std::string& name, const std::string& flat, double low, double high) {
    const JsonReader reader = at(name, flat);
    return guarded(name, [&] { return reader.number(low, high); });
  }
  std::vector<int64_t> integers(const std::string& name, const std::string& flat, int64_t low, int64_t high) {
    const JsonReader reader = at(name, flat);
    return guarded(name, [&] {
      std::vector<int64_t> values;
      if (reader.present() && reader.json()->is_array() && reader.json()->size() > kMaxEntries) {
        reader.fault("has " + std::to_string(reader.json()->size()) + " entries; at most " +
                     std::to_string(kMaxEntries) + " make sense");
        return values;
      }
      for (const JsonReader& item : reader.items()) values.push_back(item.integer(low, high));
      return values;
    });
  }

  // This program computes one variant of each of these; another value would give wrong answers.
  void fixed(const JsonReader& reader, const Json& value) {
    if (!reader.present() || *reader.json() == value) return;
    std::string found = reader.json()->dump(-1, ' ', true);
    if (found.size() > kMaxQuoted) found = found.substr(0, kMaxQuoted) + "...";
    reader.fault("is " + found + "; this program computes " + value.dump() + " only");
  }

  void tolerate(const std::string& path) { known_.insert(path); }

  std::vector<std::string> ignored() const {
    std::vector<std::string> paths;
    collect_ignored(*root_.json(), "", paths);
    return paths;
  }

 private:
  JsonReader find(const JsonReader& scope, const std::string& name, const std::string& flat) {
    JsonReader reader = scope.field(nested_ || flat.empty() ? name : flat);
    known_.insert(reader.path());
    origins_.paths[name] = reader.path();
    return reader;
  }

  void collect_ignored(const Json& object, const std::string& prefix, std::vector<std::string>& paths) const {
    if (!object.is_object()) return;
    for (auto it = object.begin(); it != object.end(); ++it) {
      const std::string path = prefix.empty() ? it.key() : prefix + "." + it.key();
      if (known_.count(path) == 0)
        paths.push_back(path);
      else
        collect_ignored(it.value(), path, paths);
    }
  }

  JsonReader root_;
  JsonReader text_;
  Faults* faults_;
  bool nested_ = false;
  FieldOrigins origins_;
  std::set<std::string, std::less<>> known_;
};

void read_identity(ConfigReader& in, ModelConfig& c) {
  for (const char* path : {"architectures", "transformers_version", "text_config.initializer_range",
                           "text_config.use_cache", "text_config.attention_dropout"}) {
    in.tolerate(path);
  }
  if (in.nested()) {
    in.fixed(in.top("model_type", ""), "deepseek_v41");
    in.fixed(in.at("model_type", ""), "deepseek_v41_text");
    in.fixed(in.top("dtype", ""), "bfloat16");
    const JsonReader quantisation = in.top("quantization_config", "");
    const std::pair<const char*, Json> expected[] = {{"quant_method", "fp8"},
                                                     {"activation_scheme", "dynamic"},
                                                     {"weight_block_size", Json::array({kBlock, kBlock})},
                                                     {"scale_fmt", "ue8m0"},
                                                     {"expert_dtype", "fp4"}};
    if (!quantisation.present())
      quantisation.fault("is missing", "this program reads FP8 and FP4 checkpoints only");
    for (const auto& [key, value] : expected) {
      in.fixed(quantisation.field(key), value);
      in.tolerate(quantisation.path() + "." + key);
    }
  } else {
    in.fixed(in.top("dtype", "dtype"), "fp8");
    in.fixed(in.top("expert_dtype", "expert_dtype"), "fp4");
  }
  c.bos_token_id = in.token(in.top("bos_token_id", ""), "bos_token_id", 0);
  c.eos_token_id = in.token(in.top("eos_token_id", ""), "eos_token_id", 1);
  c.pad_token_id = in.token(in.top("pad_token_id", ""), "pad_token_id", 2);
  c.image_token_id = in.token(in.top("image_token_id", "image_token_id"), "image_token_id", -1);
}

void read_yarn(ConfigReader& in, ModelConfig& c) {
  if (!in.nested()) {
    c.yarn.factor = in.number("rope_scaling.factor", "rope_factor", 1, 1e6);
    c.yarn.beta_fast = in.number("rope_scaling.beta_fast", "beta_fast", 1e-3, 1e6);
    c.yarn.beta_slow = in.number("rope_scaling.beta_slow", "beta_slow", 1e-3, 1e6);
    c.yarn.original_max_position_embeddings =
        in.integer("rope_scaling.original_max_position_embeddings", "original_seq_len", 1, kMaxContext);
    return;
  }
  const JsonReader scaling = in.at("rope_scaling", "");
  if (!scaling.present() || !scaling.json()->is_object()) {
    scaling.fault("must be an object that describes YaRN");
    return;
  }
  const auto field = [&](const char* key) {
    in.tolerate(scaling.path() + "." + key);
    return scaling.field(key);
  };
  const JsonReader rope_type = field("rope_type");
  const JsonReader type = field("type");  // the spelling of V4
  const JsonReader& kind = rope_type.present() ? rope_type : type;
  if (!kind.present()) rope_type.fault("is missing");
  in.fixed(kind, "yarn");
  c.yarn.factor = field("factor").number(1, 1e6, 1);
  c.yarn.beta_fast = field("beta_fast").number(1e-3, 1e6, 32);
  c.yarn.beta_slow = field("beta_slow").number(1e-3, 1e6, 1);
  c.yarn.original_max_position_embeddings =
      field("original_max_position_embeddings").integer(1, kMaxContext, 1);
}

void read_attention(ConfigReader& in, ModelConfig& c) {
  c.num_attention_heads = in.integer("num_attention_heads", "n_heads", 1, kMaxHeads);
  c.head_dim = in.integer("head_dim", "head_dim", kBlock, kMaxHeadDim);
  c.qk_rope_head_dim = in.integer("qk_rope_head_dim", "rope_head_dim", 2, kMaxHeadDim);
  c.q_lora_rank = in.integer("q_lora_rank", "q_lora_rank", kBlock, kMaxWidth);
  c.o_groups = in.integer("o_groups", "o_groups", 1, kMaxHeads);
  c.o_lora_rank = in.integer("o_lora_rank", "o_lora_rank", kBlock, kMaxWidth);
  c.sliding_window = in.integer("sliding_window", "window_size", 1, int64_t{1} << 16);
  c.rms_norm_eps = in.number("rms_norm_eps", "norm_eps", 0, 1e-2);
  c.rope_theta = in.number("rope_theta", "rope_theta", 2, 1e12);
  c.compress_rope_theta = in.number("compress_rope_theta", "compress_rope_theta", 2, 1e12);
  read_yarn(in, c);
  c.compress_ratios = in.integers("compress_ratios", "compress_ratios", 0, 2);
  c.kv_source_layer_ids = in.integers("kv_source_layer_ids", "kv_source_layers", 0, kMaxLayers - 1);
  c.index_source_layer_ids = in.integers("index_source_layer_ids", "index_source_layers", 0, kMaxLayers - 1);
  c.index_n_heads = in.integer("index_n_heads", "index_n_heads", 1, kMaxHeads);
  c.index_head_dim = in.integer("index_head_dim", "index_head_dim", kBlock, kMaxHeadDim);
  c.index_topk = in.integer("index_topk", "index_topk", 1, int64_t{1} << 16);
  c.candidate_source_layer_id =
      in.integer("candidate_source_layer_id", "candidate_source_layer", -1, kMaxLayers - 1);
  c.candidate_topk_blocks = in.integer("candidate_topk_blocks", "candidate_topk_blocks", 1, int64_t{1} << 20);
  c.candidate_block_size = in.integer("candidate_block_size", "candidate_block_size", 1, 1024);
}

void read_experts(ConfigReader& in, ModelConfig& c) {
  c.moe_intermediate_size = in.integer("moe_intermediate_size", "moe_inter_dim", kBlock, kMaxWidth);
  c.n_routed_experts = in.integer("n_routed_experts", "n_routed_experts", 1, kMaxExperts);
  c.num_experts_per_tok = in.integer("num_experts_per_tok", "n_activated_experts", 1, kMaxExperts);
  c.routed_scaling_factor = in.number("routed_scaling_factor", "route_scale", 1e-6, 1e6);
  const JsonReader temperature = in.at("gate_temp", "gate_temp");
  c.gate_temp = in.guarded("gate_temp", [&] { return temperature.optional_number(1e-6, 1e6).value_or(1.0); });
  c.swiglu_limit = in.number("swiglu_limit", "swiglu_limit", 1e-6, 1e6);
  in.fixed(in.at("n_shared_experts", "n_shared_experts"), 1);
  in.fixed(in.at("scoring_func", "score_func"), "sqrtsoftplus");
  in.fixed(in.at("norm_topk_prob", "norm_topk_prob"), true);
  if (in.nested()) {
    in.fixed(in.at("topk_method", ""), "noaux_tc");
    in.fixed(in.at("hidden_act", ""), "silu");
    in.fixed(in.at("num_key_value_heads", ""), 1);
    in.fixed(in.at("attention_bias", ""), false);
    in.fixed(in.at("tie_word_embeddings", ""), false);
  }
  c.hc_mult = in.integer("hc_mult", "hc_mult", 1, 8);
  c.hc_sinkhorn_iters = in.integer("hc_sinkhorn_iters", "hc_sinkhorn_iters", 1, 1000);
  c.hc_eps = in.number("hc_eps", "hc_eps", 0, 1);
}

void read_engram(ConfigReader& in, ModelConfig& c) {
  c.engram_layer_ids = in.integers("engram_layer_ids", "engram_layer_ids", 0, kMaxLayers - 1);
  c.engram_num_embeddings = in.integers("engram_num_embeddings", "engram_num_embeddings", 1, kMaxTableRows);
  c.engram_max_ngram_size = in.integer("engram_max_ngram_size", "engram_max_ngram_size", 2, 8);
  c.engram_vocab_size = in.integer("engram_vocab_size", "engram_vocab_size", 2, kMaxEngramVocabulary);
  c.engram_n_heads = in.integer("engram_n_heads", "engram_n_heads", 1, 64);
  c.engram_head_dim = in.integer("engram_head_dim", "engram_head_dim", kBlock, kMaxHeadDim);
  c.engram_pad_token_id =
      static_cast<int32_t>(in.integer("engram_pad_token_id", "engram_pad_id", 0, kMaxVocabulary - 1));
  c.engram_compressed_vocab_size =
      in.integer("engram_compressed_vocab_size", "engram_compressed_vocab_size", 1, kMaxVocabulary);
}

void read_drafter(ConfigReader& in, ModelConfig& c) {
  c.num_nextn_predict_layers = in.integer("num_nextn_predict_layers", "n_mtp_layers", 0, kMaxLayers);
  c.dspark_block_size = in.integer("dspark_block_size", "dspark_block_size", 1, 64);
  c.dspark_noise_token_id = static_cast<int32_t>(
      in.integer("dspark_noise_token_id", "dspark_noise_token_id", 0, kMaxVocabulary - 1));
  c.dspark_target_layer_ids =
      in.integers("dspark_target_layer_ids", "dspark_target_layer_ids", 0, kMaxLayers - 1);
  c.dspark_markov_rank = in.integer("dspark_markov_rank", "dspark_markov_rank", 1, kMaxWidth);
  c.dspark_n_routed_experts =
      in.integer("dspark_n_routed_experts", "dspark_n_routed_experts", 1, kMaxExperts);
  c.dspark_num_experts_per_tok =
      in.integer("dspark_num_experts_per_tok", "dspark_n_activated_experts", 1, kMaxExperts);
}

void read_vision(ConfigReader& in, ModelConfig& c) {
  const JsonReader nested = in.top("vision_config", "vision_n_layers");
  if (!nested.present() || nested.json()->is_null()) return;
  if (!in.nested() && *nested.json() == 0) return;  // how a text-only flat file says so
  const auto field = [&](const std::string& name, const std::string& flat) {
    JsonReader reader = in.nested() ? nested.field(name) : in.root().field(flat);
    in.tolerate(reader.path());
    return reader;
  };
  if (in.nested() && !nested.json()->is_object()) {
    nested.fault("must be an object or null");
    return;
  }
  VisionConfig& v = c.vision.emplace();
  const auto integer = [&](const char* name, const char* flat, int64_t low, int64_t high) {
    return in.guarded("vision_config", [&] { return field(name, flat).integer(low, high, low); });
  };
  if (in.nested()) in.fixed(field("model_type", ""), "deepseek_v41_vision");
  v.num_hidden_layers = integer("num_hidden_layers", "vision_n_layers", 1, kMaxLayers);
  v.hidden_size = integer("hidden_size", "vision_dim", 4, kMaxWidth);
  v.num_attention_heads = integer("num_attention_heads", "vision_n_heads", 1, kMaxHeads);
  v.intermediate_size = integer("intermediate_size", "vision_inter_dim", 1, kMaxWidth);
  v.patch_size = integer("patch_size", "vision_patch_size", 1, 256);
  v.downsample_ratio = integer("downsample_ratio", "vision_downsample_ratio", 1, 16);
  v.max_image_tokens = integer("max_image_tokens", "vision_max_n_token", 4, int64_t{1} << 20);
  const JsonReader theta = field("rope_theta", "vision_rope_theta");
  v.rope_theta = in.guarded("vision_config", [&] { return theta.number(2, 1e12, 10000); });
  // Flat files do not carry the pixel floor; the official code has it as a constant.
  const JsonReader pixels = field("min_pixels", "vision_min_pixels");
  v.min_pixels = in.integer_or(pixels, "vision_config", 1, int64_t{1} << 40, 295936);
  const JsonReader ratio = field("max_wh_ratio", "vision_max_wh_ratio");
  in.fixed(ratio, nullptr);
}

}  // namespace

ModelConfig parse_model_config(const Json& json, Faults& faults, std::vector<std::string>* ignored_keys) {
  ModelConfig config;
  if (!json.is_object()) {
    faults.push_back({"", "must be a JSON object", ""});
    return config;
  }
  if (!json.contains("text_config") && !json.contains("dim")) {
    const std::string kind = json.contains("model_type") ? json["model_type"].dump() : "none";
    faults.push_back(
        {"", "has neither \"text_config\" (the published form) nor \"dim\" (the official flat form)",
         "model_type is " + kind + "; this program runs DeepSeek V4.1 Flash (\"deepseek_v41\")"});
    return config;
  }
  ConfigReader in(json, faults);
  read_identity(in, config);
  config.vocab_size = in.integer("vocab_size", "vocab_size", 4, kMaxVocabulary);
  config.hidden_size = in.integer("hidden_size", "dim", kBlock, kMaxWidth);
  config.num_hidden_layers = in.integer("num_hidden_layers", "n_layers", 1, kMaxLayers);
  // The flat form has no such field; the published value is the limit of the official code's tables.
  const JsonReader positions = in.at("max_position_embeddings", "");
  config.max_position_embeddings =
      in.integer_or(positions, "max_position_embeddings", 1, kMaxContext, int64_t{1} << 20);
  read_attention(in, config);
  read_experts(in, config);
  read_engram(in, config);
  read_drafter(in, config);
  read_vision(in, config);
  check_relations(config, in.origins(), faults);
  if (ignored_keys != nullptr) *ignored_keys = in.ignored();
  return config;
}

ModelConfig read_model_config(const Json& json, const std::string& source,
                              std::vector<std::string>* ignored_keys) {
  Faults faults;
  ModelConfig config = parse_model_config(json, faults, ignored_keys);
  throw_if_any(faults, source, "compare it with the config.json of the published checkpoint");
  return config;
}

}  // namespace spark::model
