#include "engine/forward/weights.h"

#include "common/error.h"

namespace spark::engine {

Weight WeightLoader::host_matrix(const std::string& name) const {
  const TensorView view = checkpoint_.tensor(name + ".weight");
  SPARK_CHECK(view.shape.size() == 2);
  Weight weight{.rows = view.shape[0], .cols = view.shape[1], .data = view.bytes.data()};
  switch (view.dtype) {
    case model::Dtype::kBf16:
      weight.format = WeightFormat::kBf16;
      return weight;
    case model::Dtype::kF8E4m3:
      weight.format = WeightFormat::kFp8;
      break;
    case model::Dtype::kI8:
      weight.format = WeightFormat::kFp4;
      weight.cols *= 2;
      break;
    default:
      throw Error("has dtype " + std::string(model::dtype_name(view.dtype)) + ", which no weight uses",
                  name + ".weight");
  }
  weight.scales = checkpoint_.tensor(name + ".scale").bytes.data();
  return weight;
}

Weight WeightLoader::matrix(const std::string& name) {
  return backend_.place(host_matrix(name));
}

Weight WeightLoader::joined(const std::string& first, const std::string& second) {
  const Weight a = host_matrix(first);
  const Weight b = host_matrix(second);
  SPARK_CHECK(a.format == WeightFormat::kFp8 && b.format == WeightFormat::kFp8 && a.cols == b.cols);
  SPARK_CHECK(a.rows % 32 == 0 && b.rows % 32 == 0);
  const auto join = [&](const void* x, const void* y, int64_t x_bytes, int64_t y_bytes) {
    std::vector<uint8_t>& all = joined_.emplace_back();
    const auto* from_x = static_cast<const uint8_t*>(x);
    const auto* from_y = static_cast<const uint8_t*>(y);
    all.reserve(static_cast<size_t>(x_bytes + y_bytes));
    all.insert(all.end(), from_x, from_x + x_bytes);
    all.insert(all.end(), from_y, from_y + y_bytes);
    return all.data();
  };
  const int64_t tiles = (a.cols + 31) / 32;
  return backend_.place({.format = WeightFormat::kFp8,
                         .rows = a.rows + b.rows,
                         .cols = a.cols,
                         .data = join(a.data, b.data, a.rows * a.cols, b.rows * b.cols),
                         .scales = join(a.scales, b.scales, a.rows / 32 * tiles, b.rows / 32 * tiles)});
}

Weight WeightLoader::plain(const std::string& name) {
  const TensorView view = checkpoint_.tensor(name);
  SPARK_CHECK(view.shape.size() == 2 && view.dtype == model::Dtype::kF32);
  return backend_.place({.format = WeightFormat::kF32,
                         .rows = view.shape[0],
                         .cols = view.shape[1],
                         .data = view.bytes.data()});
}

const void* WeightLoader::copy_of(const std::string& name, model::Dtype dtype) {
  const TensorView view = checkpoint_.tensor(name);
  SPARK_CHECK(view.dtype == dtype);
  void* copy = backend_.allocate(view.bytes.size(), "weights");
  backend_.upload(copy, view.bytes.data(), view.bytes.size());
  return copy;
}

const float* WeightLoader::f32(const std::string& name) {
  return static_cast<const float*>(copy_of(name, model::Dtype::kF32));
}

const uint16_t* WeightLoader::bf16(const std::string& name) {
  return static_cast<const uint16_t*>(copy_of(name, model::Dtype::kBf16));
}

ExpertWeights WeightLoader::host_expert(const std::string& prefix) const {
  return {.w1 = host_matrix(prefix + ".w1"),
          .w3 = host_matrix(prefix + ".w3"),
          .w2 = host_matrix(prefix + ".w2")};
}

ExpertWeights WeightLoader::expert(const std::string& prefix) {
  const ExpertWeights host = host_expert(prefix);
  return {.w1 = backend_.place(host.w1), .w3 = backend_.place(host.w3), .w2 = backend_.place(host.w2)};
}

ExpertBank WeightLoader::bank(const std::string& prefix, int32_t experts) {
  std::vector<ExpertWeights> host;
  for (int32_t e = 0; e < experts; ++e) host.push_back(host_expert(prefix + "." + std::to_string(e)));
  return backend_.place_experts(host);
}

namespace {

MhcWeights load_mhc(WeightLoader& loader, const std::string& prefix) {
  return {.fn = loader.plain(prefix + "_fn"),
          .scale = loader.f32(prefix + "_scale"),
          .base = loader.f32(prefix + "_base")};
}

AttentionWeights load_attention(WeightLoader& loader, const std::string& prefix) {
  const std::string attn = prefix + ".attn.";
  return {.norm = loader.bf16(prefix + ".attn_norm.weight"),
          .wq_a_kv = loader.joined(attn + "wq_a", attn + "wkv"),
          .q_norm = loader.bf16(attn + "q_norm.weight"),
          .kv_norm = loader.bf16(attn + "kv_norm.weight"),
          .wq_b = loader.matrix(attn + "wq_b"),
          .sink = loader.f32(attn + "attn_sink"),
          .wo_a = loader.matrix(attn + "wo_a"),
          .wo_b = loader.matrix(attn + "wo_b")};
}

ExpertLayerWeights load_experts(WeightLoader& loader, const std::string& prefix, const ExpertShape& shape) {
  const std::string ffn = prefix + ".ffn.";
  const std::string image_bias = ffn + "gate.bias_vl";
  return {.norm = loader.bf16(prefix + ".ffn_norm.weight"),
          .gate = loader.matrix(ffn + "gate"),
          .bias = loader.f32(ffn + "gate.bias"),
          .image_bias = loader.contains(image_bias) ? loader.f32(image_bias) : nullptr,
          .bank = loader.bank(ffn + "experts", shape.experts),
          .shared = loader.expert(ffn + "shared_experts"),
          .experts = shape.experts,
          .top_k = shape.top_k};
}

CompressorWeights load_compressor(WeightLoader& loader, const std::string& prefix, int64_t ratio) {
  const std::string attn = prefix + ".attn.";
  return {.wkv = loader.matrix(attn + "compressor.wkv"),
          .wgate = ratio > 1 ? loader.matrix(attn + "compressor.wgate") : Weight{},
          .norm = loader.bf16(attn + "compressor.norm.weight"),
          .wk = loader.matrix(attn + "indexer.wk"),
          .k_norm = loader.bf16(attn + "indexer.k_norm.weight")};
}

LayerWeights load_layer(WeightLoader& loader, const model::LayerRole& role, const ExpertShape& shape) {
  const std::string prefix = "layers." + std::to_string(role.layer);
  LayerWeights layer{.role = role, .block = load_block(loader, prefix, shape)};
  if (role.owns_kv()) layer.compressor = load_compressor(loader, prefix, role.compress_ratio);
  if (role.runs_indexer()) {
    layer.indexer = {.wq_b = loader.matrix(prefix + ".attn.indexer.wq_b"),
                     .weights_proj = loader.matrix(prefix + ".attn.indexer.weights_proj")};
  }
  if (role.engram >= 0) {
    layer.engram = {.wkv = loader.matrix(prefix + ".engram.wkv"),
                    .q_weight = loader.bf16(prefix + ".engram.q_weight"),
                    .k_weight = loader.bf16(prefix + ".engram.k_weight")};
  }
  return layer;
}

}  // namespace

BlockWeights load_block(WeightLoader& loader, const std::string& prefix, const ExpertShape& shape) {
  return {.attention_mix = load_mhc(loader, prefix + ".hc_attn"),
          .expert_mix = load_mhc(loader, prefix + ".hc_ffn"),
          .attention = load_attention(loader, prefix),
          .experts = load_experts(loader, prefix, shape)};
}

DecoderWeights load_decoder_weights(WeightLoader& loader, const model::ModelConfig& config,
                                    const model::LayerPlan& plan) {
  const ExpertShape shape{.experts = static_cast<int32_t>(config.n_routed_experts),
                          .top_k = static_cast<int32_t>(config.num_experts_per_tok)};
  DecoderWeights weights{.embed = loader.matrix("embed"),
                         .head = loader.matrix("head"),
                         .norm = loader.bf16("norm.weight"),
                         .layers = {}};
  for (const model::LayerRole& role : plan.layers) weights.layers.push_back(load_layer(loader, role, shape));
  return weights;
}

DrafterWeights load_drafter_weights(WeightLoader& loader, const model::ModelConfig& config) {
  const ExpertShape shape{.experts = static_cast<int32_t>(config.dspark_n_routed_experts),
                          .top_k = static_cast<int32_t>(config.dspark_num_experts_per_tok)};
  const std::string last = "mtp." + std::to_string(config.num_nextn_predict_layers - 1);
  DrafterWeights weights{.main_proj = loader.matrix("mtp.0.main_proj"),
                         .main_norm = loader.bf16("mtp.0.main_norm.weight"),
                         .blocks = {},
                         .wkv = {},
                         .norm = loader.bf16(last + ".norm.weight"),
                         .markov_embed = loader.matrix(last + ".markov_head.embed"),
                         .markov_head = loader.matrix(last + ".markov_head.head"),
                         .confidence_proj = loader.matrix(last + ".confidence_head.proj")};
  for (int64_t m = 0; m < config.num_nextn_predict_layers; ++m) {
    const std::string prefix = "mtp." + std::to_string(m);
    weights.blocks.push_back(load_block(loader, prefix, shape));
    weights.wkv.push_back(loader.matrix(prefix + ".attn.wkv"));
  }
  return weights;
}

}  // namespace spark::engine
