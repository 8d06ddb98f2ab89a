// The published hyper-parameters, written out from the model's documentation, in both name sets.
#pragma once

#include <string>

#include "common/json.h"
#include "model/config.h"

namespace spark::model {

inline Json published_nested() {
  Json config = parse_json(R"({
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
    "transformers_version": "5.6.0", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    "image_token_id": 129264,
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                            "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
    "text_config": {
      "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
      "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
      "q_lora_rank": 1280, "o_groups": 8, "o_lora_rank": 1024, "hidden_act": "silu", "moe_intermediate_size": 2304,
      "n_routed_experts": 384, "num_experts_per_tok": 6, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus",
      "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
      "rms_norm_eps": 1e-20, "attention_bias": false, "attention_dropout": 0.0, "initializer_range": 0.02,
      "use_cache": true, "tie_word_embeddings": false, "max_position_embeddings": 1048576, "rope_theta": 10000,
      "compress_rope_theta": 160000,
      "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                       "original_max_position_embeddings": 65536},
      "sliding_window": 128, "kv_source_layer_ids": [2, 8, 14, 20],
      "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32, "index_head_dim": 128,
      "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
      "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 14],
      "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4, "engram_vocab_size": 16000000,
      "engram_n_heads": 8, "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
      "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
      "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
      "dspark_num_experts_per_tok": 3},
    "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024,
      "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14, "rope_theta": 10000,
      "downsample_ratio": 3, "max_image_tokens": 1024, "min_pixels": 295936, "max_wh_ratio": null}
  })",
                           "published config");
  Json ratios = Json::array({0, 0});
  for (int i = 0; i < 18; ++i) ratios.push_back(2);
  for (int i = 0; i < 20; ++i) ratios.push_back(1);
  for (int i = 0; i < 3; ++i) ratios.push_back(0);
  config["text_config"]["compress_ratios"] = ratios;
  return config;
}

inline Json published_flat() {
  const Json nested = published_nested();
  const Json& text = nested["text_config"];
  const Json& vision = nested["vision_config"];
  Json flat;
  flat["dtype"] = "fp8";
  flat["expert_dtype"] = "fp4";
  flat["image_token_id"] = nested["image_token_id"];
  const std::pair<const char*, const char*> names[] = {
      {"vocab_size", "vocab_size"},
      {"hidden_size", "dim"},
      {"num_hidden_layers", "n_layers"},
      {"num_attention_heads", "n_heads"},
      {"head_dim", "head_dim"},
      {"qk_rope_head_dim", "rope_head_dim"},
      {"q_lora_rank", "q_lora_rank"},
      {"o_groups", "o_groups"},
      {"o_lora_rank", "o_lora_rank"},
      {"moe_intermediate_size", "moe_inter_dim"},
      {"n_routed_experts", "n_routed_experts"},
      {"num_experts_per_tok", "n_activated_experts"},
      {"n_shared_experts", "n_shared_experts"},
      {"scoring_func", "score_func"},
      {"norm_topk_prob", "norm_topk_prob"},
      {"routed_scaling_factor", "route_scale"},
      {"swiglu_limit", "swiglu_limit"},
      {"rms_norm_eps", "norm_eps"},
      {"rope_theta", "rope_theta"},
      {"compress_rope_theta", "compress_rope_theta"},
      {"sliding_window", "window_size"},
      {"compress_ratios", "compress_ratios"},
      {"kv_source_layer_ids", "kv_source_layers"},
      {"index_source_layer_ids", "index_source_layers"},
      {"index_n_heads", "index_n_heads"},
      {"index_head_dim", "index_head_dim"},
      {"index_topk", "index_topk"},
      {"candidate_source_layer_id", "candidate_source_layer"},
      {"candidate_topk_blocks", "candidate_topk_blocks"},
      {"candidate_block_size", "candidate_block_size"},
      {"hc_mult", "hc_mult"},
      {"hc_sinkhorn_iters", "hc_sinkhorn_iters"},
      {"hc_eps", "hc_eps"},
      {"engram_layer_ids", "engram_layer_ids"},
      {"engram_num_embeddings", "engram_num_embeddings"},
      {"engram_max_ngram_size", "engram_max_ngram_size"},
      {"engram_vocab_size", "engram_vocab_size"},
      {"engram_n_heads", "engram_n_heads"},
      {"engram_head_dim", "engram_head_dim"},
      {"engram_pad_token_id", "engram_pad_id"},
      {"engram_compressed_vocab_size", "engram_compressed_vocab_size"},
      {"num_nextn_predict_layers", "n_mtp_layers"},
      {"dspark_block_size", "dspark_block_size"},
      {"dspark_noise_token_id", "dspark_noise_token_id"},
      {"dspark_target_layer_ids", "dspark_target_layer_ids"},
      {"dspark_markov_rank", "dspark_markov_rank"},
      {"dspark_n_routed_experts", "dspark_n_routed_experts"},
      {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}};
  for (const auto& [from, to] : names) flat[to] = text[from];
  flat["rope_factor"] = text["rope_scaling"]["factor"];
  flat["beta_fast"] = text["rope_scaling"]["beta_fast"];
  flat["beta_slow"] = text["rope_scaling"]["beta_slow"];
  flat["original_seq_len"] = text["rope_scaling"]["original_max_position_embeddings"];
  flat["vision_n_layers"] = vision["num_hidden_layers"];
  flat["vision_dim"] = vision["hidden_size"];
  flat["vision_n_heads"] = vision["num_attention_heads"];
  flat["vision_inter_dim"] = vision["intermediate_size"];
  flat["vision_patch_size"] = vision["patch_size"];
  flat["vision_rope_theta"] = vision["rope_theta"];
  flat["vision_downsample_ratio"] = vision["downsample_ratio"];
  flat["vision_max_n_token"] = vision["max_image_tokens"];
  return flat;
}

inline ModelConfig published_config() {
  return read_model_config(published_nested(), "published config");
}

}  // namespace spark::model
