#include "model/config_json.h"

#include <cmath>

namespace spark::model {
namespace {

// Whole numbers are written without a fraction, as the published files do.
Json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// Fields that both forms spell alike.
void add_common(Json& json, const ModelConfig& c) {
  json["vocab_size"] = c.vocab_size;
  json["head_dim"] = c.head_dim;
  json["q_lora_rank"] = c.q_lora_rank;
  json["o_groups"] = c.o_groups;
  json["o_lora_rank"] = c.o_lora_rank;
  json["rope_theta"] = number(c.rope_theta);
  json["compress_rope_theta"] = number(c.compress_rope_theta);
  json["compress_ratios"] = c.compress_ratios;
  json["index_n_heads"] = c.index_n_heads;
  json["index_head_dim"] = c.index_head_dim;
  json["index_topk"] = c.index_topk;
  json["candidate_topk_blocks"] = c.candidate_topk_blocks;
  json["candidate_block_size"] = c.candidate_block_size;
  json["n_routed_experts"] = c.n_routed_experts;
  json["n_shared_experts"] = 1;
  json["norm_topk_prob"] = true;
  json["swiglu_limit"] = c.swiglu_limit;
  json["hc_mult"] = c.hc_mult;
  json["hc_sinkhorn_iters"] = c.hc_sinkhorn_iters;
  json["hc_eps"] = c.hc_eps;
  json["engram_layer_ids"] = c.engram_layer_ids;
  json["engram_num_embeddings"] = c.engram_num_embeddings;
  json["engram_max_ngram_size"] = c.engram_max_ngram_size;
  json["engram_vocab_size"] = c.engram_vocab_size;
  json["engram_n_heads"] = c.engram_n_heads;
  json["engram_head_dim"] = c.engram_head_dim;
  json["engram_compressed_vocab_size"] = c.engram_compressed_vocab_size;
  json["dspark_block_size"] = c.dspark_block_size;
  json["dspark_noise_token_id"] = c.dspark_noise_token_id;
  json["dspark_target_layer_ids"] = c.dspark_target_layer_ids;
  json["dspark_markov_rank"] = c.dspark_markov_rank;
  json["dspark_n_routed_experts"] = c.dspark_n_routed_experts;
  if (c.gate_temp != 1) json["gate_temp"] = c.gate_temp;
}

Json text_json(const ModelConfig& c) {
  Json text;
  text["model_type"] = "deepseek_v41_text";
  add_common(text, c);
  text["hidden_size"] = c.hidden_size;
  text["num_hidden_layers"] = c.num_hidden_layers;
  text["num_attention_heads"] = c.num_attention_heads;
  text["num_key_value_heads"] = 1;
  text["qk_rope_head_dim"] = c.qk_rope_head_dim;
  text["hidden_act"] = "silu";
  text["moe_intermediate_size"] = c.moe_intermediate_size;
  text["num_experts_per_tok"] = c.num_experts_per_tok;
  text["scoring_func"] = "sqrtsoftplus";
  text["topk_method"] = "noaux_tc";
  text["routed_scaling_factor"] = c.routed_scaling_factor;
  text["rms_norm_eps"] = c.rms_norm_eps;
  text["attention_bias"] = false;
  text["attention_dropout"] = 0.0;
  text["initializer_range"] = 0.02;
  text["use_cache"] = true;
  text["tie_word_embeddings"] = false;
  text["max_position_embeddings"] = c.max_position_embeddings;
  text["rope_scaling"] = {{"rope_type", "yarn"},
                          {"factor", number(c.yarn.factor)},
                          {"beta_fast", number(c.yarn.beta_fast)},
                          {"beta_slow", number(c.yarn.beta_slow)},
                          {"original_max_position_embeddings", c.yarn.original_max_position_embeddings}};
  text["sliding_window"] = c.sliding_window;
  text["kv_source_layer_ids"] = c.kv_source_layer_ids;
  text["index_source_layer_ids"] = c.index_source_layer_ids;
  text["candidate_source_layer_id"] = c.candidate_source_layer_id;
  text["engram_pad_token_id"] = c.engram_pad_token_id;
  text["num_nextn_predict_layers"] = c.num_nextn_predict_layers;
  text["dspark_num_experts_per_tok"] = c.dspark_num_experts_per_tok;
  return text;
}

Json vision_json(const VisionConfig& v) {
  Json vision;
  vision["model_type"] = "deepseek_v41_vision";
  vision["num_hidden_layers"] = v.num_hidden_layers;
  vision["hidden_size"] = v.hidden_size;
  vision["num_attention_heads"] = v.num_attention_heads;
  vision["intermediate_size"] = v.intermediate_size;
  vision["patch_size"] = v.patch_size;
  vision["rope_theta"] = number(v.rope_theta);
  vision["downsample_ratio"] = v.downsample_ratio;
  vision["max_image_tokens"] = v.max_image_tokens;
  vision["min_pixels"] = v.min_pixels;
  vision["max_wh_ratio"] = nullptr;
  return vision;
}

}  // namespace

Json published_json(const ModelConfig& c) {
  Json json;
  json["architectures"] = {"DeepseekV41ForCausalLM"};
  json["model_type"] = "deepseek_v41";
  json["dtype"] = "bfloat16";
  json["bos_token_id"] = c.bos_token_id;
  json["eos_token_id"] = c.eos_token_id;
  json["pad_token_id"] = c.pad_token_id;
  if (c.image_token_id >= 0) json["image_token_id"] = c.image_token_id;
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {kBlock, kBlock}},
                                 {"scale_fmt", "ue8m0"},
                                 {"expert_dtype", "fp4"}};
  json["text_config"] = text_json(c);
  if (c.vision) json["vision_config"] = vision_json(*c.vision);
  return json;
}

Json official_json(const ModelConfig& c) {
  Json json;
  json["dtype"] = "fp8";
  json["expert_dtype"] = "fp4";
  add_common(json, c);
  json["dim"] = c.hidden_size;
  json["n_layers"] = c.num_hidden_layers;
  json["n_mtp_layers"] = c.num_nextn_predict_layers;
  json["n_heads"] = c.num_attention_heads;
  json["rope_head_dim"] = c.qk_rope_head_dim;
  json["norm_eps"] = c.rms_norm_eps;
  json["moe_inter_dim"] = c.moe_intermediate_size;
  json["n_activated_experts"] = c.num_experts_per_tok;
  json["score_func"] = "sqrtsoftplus";
  json["route_scale"] = c.routed_scaling_factor;
  json["window_size"] = c.sliding_window;
  json["kv_source_layers"] = c.kv_source_layer_ids;
  json["index_source_layers"] = c.index_source_layer_ids;
  json["candidate_source_layer"] = c.candidate_source_layer_id;
  json["original_seq_len"] = c.yarn.original_max_position_embeddings;
  json["rope_factor"] = number(c.yarn.factor);
  json["beta_fast"] = number(c.yarn.beta_fast);
  json["beta_slow"] = number(c.yarn.beta_slow);
  json["engram_pad_id"] = c.engram_pad_token_id;
  json["dspark_n_activated_experts"] = c.dspark_num_experts_per_tok;
  if (c.image_token_id >= 0) json["image_token_id"] = c.image_token_id;
  json["vision_n_layers"] = c.vision ? c.vision->num_hidden_layers : 0;
  if (!c.vision) return json;
  json["vision_dim"] = c.vision->hidden_size;
  json["vision_n_heads"] = c.vision->num_attention_heads;
  json["vision_inter_dim"] = c.vision->intermediate_size;
  json["vision_patch_size"] = c.vision->patch_size;
  json["vision_rope_theta"] = number(c.vision->rope_theta);
  json["vision_downsample_ratio"] = c.vision->downsample_ratio;
  json["vision_max_n_token"] = c.vision->max_image_tokens;
  return json;
}

}  // namespace spark::model
