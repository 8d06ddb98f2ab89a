#include "engine/forward/weights.h"

#include "common/error.h"

namespace spark::engine {

std::span<const uint8_t> WeightLoader::keep(WeightPart part, Copies& copies) {
  if (part.copy.empty() && part.memory == nullptr) return part.bytes;
  const bool is_copy = !part.copy.empty();
  HostCopy& kept = copies.emplace_back(HostCopy{std::move(part.copy), std::move(part.memory)});
  return is_copy ? std::span<const uint8_t>(kept.bytes) : part.bytes;
}

Weight WeightLoader::host_matrix(const std::string& name, Copies& copies) {
  WeightPart part = shards_.part(name + ".weight");
  SPARK_CHECK(part.shape.size() == 2);
  Weight weight{.rows = part.shape[0], .cols = part.shape[1]};
  const model::Dtype dtype = part.dtype;
  weight.data = keep(std::move(part), copies).data();
  switch (dtype) {
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
      throw Error("has dtype " + std::string(model::dtype_name(dtype)) + ", which no weight uses",
                  name + ".weight");
  }
  weight.scales = keep(shards_.part(name + ".scale"), copies).data();
  return weight;
}

Weight WeightLoader::place(const Weight& host, Copies copies) {
  Weight placed = backend_.place(host);
  if (copies.empty()) return placed;
  if (backend_.keeps_host(host.format)) {
    for (auto& copy : copies) kept_.push_back(std::move(copy));
  } else {
    if (placed.data == host.data) placed.data = nullptr;
    if (placed.scales == host.scales) placed.scales = nullptr;
  }
  return placed;
}

Weight WeightLoader::matrix(const std::string& name) {
  Copies copies;
  const Weight host = host_matrix(name, copies);
  return place(host, std::move(copies));
}

Weight WeightLoader::joined(const std::string& first, const std::string& second) {
  Copies parts;
  const Weight a = host_matrix(first, parts);
  const Weight b = host_matrix(second, parts);
  SPARK_CHECK(a.format == WeightFormat::kFp8 && b.format == WeightFormat::kFp8 && a.cols == b.cols);
  SPARK_CHECK(a.rows % 32 == 0 && b.rows % 32 == 0);
  Copies copies(2);
  const auto join = [](const void* x, const void* y, int64_t x_bytes, int64_t y_bytes,
                       std::vector<uint8_t>& all) {
    const auto* from_x = static_cast<const uint8_t*>(x);
    const auto* from_y = static_cast<const uint8_t*>(y);
    all.reserve(static_cast<size_t>(x_bytes + y_bytes));
    all.insert(all.end(), from_x, from_x + x_bytes);
    all.insert(all.end(), from_y, from_y + y_bytes);
    return all.data();
  };
  const int64_t tiles = (a.cols + 31) / 32;
  const Weight host{
      .format = WeightFormat::kFp8,
      .rows = a.rows + b.rows,
      .cols = a.cols,
      .data = join(a.data, b.data, a.rows * a.cols, b.rows * b.cols, copies[0].bytes),
      .scales = join(a.scales, b.scales, a.rows / 32 * tiles, b.rows / 32 * tiles, copies[1].bytes)};
  return place(host, std::move(copies));
}

Weight WeightLoader::plain(const std::string& name) {
  WeightPart part = shards_.part(name);
  SPARK_CHECK(part.shape.size() == 2 && part.dtype == model::Dtype::kF32);
  Weight host{.format = WeightFormat::kF32, .rows = part.shape[0], .cols = part.shape[1]};
  Copies copies;
  host.data = keep(std::move(part), copies).data();
  return place(host, std::move(copies));
}

const void* WeightLoader::copy_of(const std::string& name, model::Dtype dtype) {
  const WeightPart part = shards_.part(name);
  SPARK_CHECK(part.dtype == dtype);
  void* copy = backend_.allocate(part.bytes.size(), "weights");
  backend_.upload(copy, part.bytes.data(), part.bytes.size());
  return copy;
}

const float* WeightLoader::f32(const std::string& name) {
  return static_cast<const float*>(copy_of(name, model::Dtype::kF32));
}

const uint16_t* WeightLoader::bf16(const std::string& name) {
  return static_cast<const uint16_t*>(copy_of(name, model::Dtype::kBf16));
}

ExpertWeights WeightLoader::host_expert(const std::string& prefix, Copies& copies) {
  return {.w1 = host_matrix(prefix + ".w1", copies),
          .w3 = host_matrix(prefix + ".w3", copies),
          .w2 = host_matrix(prefix + ".w2", copies)};
}

ExpertWeights WeightLoader::expert(const std::string& prefix) {
  return {.w1 = matrix(prefix + ".w1"), .w3 = matrix(prefix + ".w3"), .w2 = matrix(prefix + ".w2")};
}

ExpertBank WeightLoader::bank(const std::string& prefix, int32_t experts) {
  Copies copies;
  std::vector<ExpertWeights> host;
  for (int32_t e = 0; e < experts; ++e) {
    host.push_back(host_expert(prefix + "." + std::to_string(e), copies));
  }
  ExpertBank bank = backend_.place_experts(host);
  if (copies.empty()) return bank;
  if (backend_.keeps_host(WeightFormat::kFp4)) {
    for (auto& copy : copies) kept_.push_back(std::move(copy));
    return bank;
  }
  for (ExpertWeights& expert : bank.experts) {
    for (Weight* weight : {&expert.w1, &expert.w3, &expert.w2}) weight->data = weight->scales = nullptr;
  }
  return bank;
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
