#include "model/config_rules.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "model/engram_primes.h"

namespace spark::model {
namespace {

class Rules {
 public:
  Rules(const ModelConfig& config, const FieldOrigins& origins, Faults& faults)
      : c_(config), origins_(origins), faults_(faults) {}

  void widths();
  void heads();
  void ratios();
  void sources();
  void candidates();
  void tokens();
  void engram();
  void drafter();
  void vision();

 private:
  bool good(std::initializer_list<const char*> names) const {
    return std::none_of(names.begin(), names.end(),
                        [&](const char* name) { return origins_.broken.count(name) != 0; });
  }
  void fault(const char* name, std::string what, std::string hint = {}) {
    const auto found = origins_.paths.find(name);
    faults_.push_back(
        {found == origins_.paths.end() ? name : found->second, std::move(what), std::move(hint)});
  }
  void whole_blocks(const char* name, int64_t value) {
    if (!good({name}) || value % kBlock == 0) return;
    fault(name, "is " + std::to_string(value) + "; quantised widths must be multiples of " +
                    std::to_string(kBlock));
  }
  // Strictly ascending and below `limit`; false (with a fault) otherwise.
  bool ascending(const char* name, const std::vector<int64_t>& values, int64_t limit) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0 && values[i] <= values[i - 1]) {
        fault(name,
              "must ascend, but " + std::to_string(values[i]) + " follows " + std::to_string(values[i - 1]));
        return false;
      }
      if (values[i] >= limit) {
        fault(name, "names layer " + std::to_string(values[i]) + " of a model with layers 0 to " +
                        std::to_string(limit - 1));
        return false;
      }
    }
    return true;
  }
  int64_t ratio(int64_t layer) const { return c_.compress_ratios[static_cast<size_t>(layer)]; }
  static bool contains(const std::vector<int64_t>& values, int64_t value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }

  const ModelConfig& c_;
  const FieldOrigins& origins_;
  Faults& faults_;
  bool ratios_good_ = false;
  bool sources_good_ = false;
};

void Rules::widths() {
  whole_blocks("hidden_size", c_.hidden_size);
  whole_blocks("head_dim", c_.head_dim);
  whole_blocks("q_lora_rank", c_.q_lora_rank);
  whole_blocks("o_lora_rank", c_.o_lora_rank);
  whole_blocks("moe_intermediate_size", c_.moe_intermediate_size);
  whole_blocks("index_head_dim", c_.index_head_dim);
  whole_blocks("engram_head_dim", c_.engram_head_dim);
}

void Rules::heads() {
  if (good({"num_attention_heads", "o_groups"}) && c_.num_attention_heads % c_.o_groups != 0) {
    fault("o_groups", "is " + std::to_string(c_.o_groups) + ", which does not divide the " +
                          std::to_string(c_.num_attention_heads) + " attention heads");
  }
  if (!good({"qk_rope_head_dim"})) return;
  const std::string rope = std::to_string(c_.qk_rope_head_dim);
  if (c_.qk_rope_head_dim % 2 != 0) fault("qk_rope_head_dim", "is " + rope + "; channels rotate in pairs");
  if (good({"head_dim"}) && c_.qk_rope_head_dim > c_.head_dim) {
    fault("qk_rope_head_dim", "is " + rope + ", more than head_dim " + std::to_string(c_.head_dim));
  }
  if (good({"index_head_dim"}) && c_.qk_rope_head_dim > c_.index_head_dim) {
    fault("qk_rope_head_dim",
          "is " + rope + ", more than index_head_dim " + std::to_string(c_.index_head_dim));
  }
  if (good({"num_experts_per_tok", "n_routed_experts"}) && c_.num_experts_per_tok > c_.n_routed_experts) {
    fault("num_experts_per_tok", "is " + std::to_string(c_.num_experts_per_tok) + " of only " +
                                     std::to_string(c_.n_routed_experts) + " experts");
  }
}

void Rules::ratios() {
  if (!good({"compress_ratios", "num_hidden_layers", "num_nextn_predict_layers"})) return;
  const auto length = static_cast<int64_t>(c_.compress_ratios.size());
  if (length != c_.all_layers()) {
    fault("compress_ratios", "has " + std::to_string(length) + " entries; " +
                                 std::to_string(c_.num_hidden_layers) + " layers and " +
                                 std::to_string(c_.num_nextn_predict_layers) + " drafter layers need " +
                                 std::to_string(c_.all_layers()));
    return;
  }
  ratios_good_ = true;
  for (int64_t layer = c_.num_hidden_layers; layer < length; ++layer) {
    if (ratio(layer) == 0) continue;
    fault("compress_ratios", "entry " + std::to_string(layer) + " is " + std::to_string(ratio(layer)) +
                                 "; drafter layers have a window only, so it must be 0");
  }
}

void Rules::sources() {
  if (!good({"kv_source_layer_ids", "index_source_layer_ids", "num_hidden_layers"})) return;
  const bool kv_good = ascending("kv_source_layer_ids", c_.kv_source_layer_ids, c_.num_hidden_layers);
  const bool index_good =
      ascending("index_source_layer_ids", c_.index_source_layer_ids, c_.num_hidden_layers);
  if (!kv_good || !index_good || !ratios_good_) return;
  sources_good_ = true;
  const auto needs_ratio = [&](const char* name, const std::vector<int64_t>& layers) {
    for (const int64_t layer : layers) {
      if (ratio(layer) != 0) continue;
      fault(name, "names layer " + std::to_string(layer) + ", whose compress ratio is 0 (window only)");
      sources_good_ = false;
    }
  };
  needs_ratio("kv_source_layer_ids", c_.kv_source_layer_ids);
  needs_ratio("index_source_layer_ids", c_.index_source_layer_ids);
  for (const int64_t layer : c_.kv_source_layer_ids) {
    if (contains(c_.index_source_layer_ids, layer)) continue;
    fault("index_source_layer_ids",
          "lacks layer " + std::to_string(layer) +
              ", which owns a compressed cache; an older selection cannot apply to it");
    sources_good_ = false;
  }
  int64_t source = -1;
  for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
    if (contains(c_.kv_source_layer_ids, layer)) source = layer;
    if (ratio(layer) == 0) continue;
    if (source < 0) {
      fault("kv_source_layer_ids", "layer " + std::to_string(layer) + " has ratio " +
                                       std::to_string(ratio(layer)) + " but no source at or before it");
    } else if (ratio(source) != ratio(layer)) {
      fault("compress_ratios", "layer " + std::to_string(layer) + " has ratio " +
                                   std::to_string(ratio(layer)) + " but reads the cache of layer " +
                                   std::to_string(source) + ", whose ratio is " +
                                   std::to_string(ratio(source)));
    }
  }
}

void Rules::candidates() {
  if (good({"candidate_topk_blocks", "candidate_block_size", "index_topk"})) {
    const int64_t guaranteed = (c_.candidate_topk_blocks - 1) * c_.candidate_block_size + 1;
    if (guaranteed < c_.index_topk) {
      fault("candidate_topk_blocks",
            "guarantees only " + std::to_string(guaranteed) +
                " candidates ((blocks - 1) * block size + 1), fewer than index_topk " +
                std::to_string(c_.index_topk));
    }
  }
  const int64_t layer = c_.candidate_source_layer_id;
  if (!good({"candidate_source_layer_id"}) || layer < 0 || !sources_good_) return;
  const char* name = "candidate_source_layer_id";
  const std::string is = "is layer " + std::to_string(layer);
  if (!contains(c_.kv_source_layer_ids, layer)) {
    fault(name, is + ", which is not one of kv_source_layer_ids");
  } else if (ratio(layer) != 1) {
    fault(name, is + ", whose compress ratio is " + std::to_string(ratio(layer)) +
                    "; candidates are positions of a "
                    "ratio-1 cache");
  } else if (c_.kv_source_layer_ids.back() != layer) {
    fault(name, is + ", but layer " + std::to_string(c_.kv_source_layer_ids.back()) +
                    " starts another compressed cache after it, to which its candidates cannot apply");
  }
}

void Rules::tokens() {
  if (!good({"vocab_size"})) return;
  const auto inside = [&](const char* name, int64_t id) {
    if (!good({name}) || id < c_.vocab_size) return;
    fault(name, "is " + std::to_string(id) + ", outside the vocabulary of " + std::to_string(c_.vocab_size));
  };
  inside("bos_token_id", c_.bos_token_id);
  inside("eos_token_id", c_.eos_token_id);
  inside("pad_token_id", c_.pad_token_id);
  inside("image_token_id", c_.image_token_id);
  inside("engram_pad_token_id", c_.engram_pad_token_id);
  inside("dspark_noise_token_id", c_.dspark_noise_token_id);
  if (good({"engram_compressed_vocab_size"}) && c_.engram_compressed_vocab_size > c_.vocab_size) {
    fault("engram_compressed_vocab_size", "is " + std::to_string(c_.engram_compressed_vocab_size) +
                                              ", more than the vocabulary of " +
                                              std::to_string(c_.vocab_size) + " that it collapses");
  }
}

void Rules::engram() {
  if (!good({"engram_layer_ids", "engram_num_embeddings", "num_hidden_layers"})) return;
  if (!ascending("engram_layer_ids", c_.engram_layer_ids, c_.num_hidden_layers)) return;
  if (c_.engram_num_embeddings.size() != c_.engram_layer_ids.size()) {
    fault("engram_num_embeddings", "has " + std::to_string(c_.engram_num_embeddings.size()) +
                                       " entries for " + std::to_string(c_.engram_layer_ids.size()) +
                                       " Engram layers");
    return;
  }
  if (!good({"engram_max_ngram_size", "engram_vocab_size", "engram_n_heads"})) return;
  const EngramPrimes primes = engram_primes(c_);
  for (size_t i = 0; i < primes.size(); ++i) {
    int64_t rows = 0;
    for (const auto& heads : primes[i]) rows = std::accumulate(heads.begin(), heads.end(), rows);
    if (rows == c_.engram_num_embeddings[i]) continue;
    fault("engram_num_embeddings",
          "entry " + std::to_string(i) + " is " + std::to_string(c_.engram_num_embeddings[i]) +
              "; the hash primes of layer " + std::to_string(c_.engram_layer_ids[i]) + " sum to " +
              std::to_string(rows));
  }
}

void Rules::drafter() {
  if (!good({"num_nextn_predict_layers"}) || c_.num_nextn_predict_layers == 0) return;
  if (good({"dspark_target_layer_ids", "num_hidden_layers"})) {
    if (c_.dspark_target_layer_ids.empty()) fault("dspark_target_layer_ids", "must name at least one layer");
    ascending("dspark_target_layer_ids", c_.dspark_target_layer_ids, c_.num_hidden_layers);
  }
  if (good({"dspark_num_experts_per_tok", "dspark_n_routed_experts"}) &&
      c_.dspark_num_experts_per_tok > c_.dspark_n_routed_experts) {
    fault("dspark_num_experts_per_tok", "is " + std::to_string(c_.dspark_num_experts_per_tok) + " of only " +
                                            std::to_string(c_.dspark_n_routed_experts) + " experts");
  }
}

void Rules::vision() {
  if (!c_.vision || !good({"vision_config"})) return;
  const VisionConfig& v = *c_.vision;
  if (v.hidden_size % v.num_attention_heads != 0 || v.hidden_size / v.num_attention_heads % 4 != 0) {
    fault("vision_config", "hidden_size " + std::to_string(v.hidden_size) + " over " +
                               std::to_string(v.num_attention_heads) +
                               " heads must give a whole multiple of 4 channels (two rotary axes in pairs)");
  }
  if (good({"image_token_id"}) && c_.image_token_id < 0) {
    fault("image_token_id", "is missing, but the checkpoint has a vision tower");
  }
}

}  // namespace

void check_relations(const ModelConfig& config, const FieldOrigins& origins, Faults& faults) {
  Rules rules(config, origins, faults);
  rules.widths();
  rules.heads();
  rules.ratios();
  rules.sources();
  rules.candidates();
  rules.tokens();
  rules.engram();
  rules.drafter();
  rules.vision();
}

}  // namespace spark::model
