#include "rank_model.h"

#include <algorithm>
#include <set>

namespace spark::bench_gpu {

using namespace engine;  // the vocabulary of the forward pass

namespace {

model::ModelConfig real_config() {
  model::ModelConfig c;
  c.vocab_size = 129280;
  c.hidden_size = 5120;
  c.num_hidden_layers = 40;
  c.max_position_embeddings = 1048576;
  c.num_attention_heads = 64;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.sliding_window = 128;
  c.rms_norm_eps = 1e-20;
  c.compress_ratios = {0, 0};
  c.compress_ratios.insert(c.compress_ratios.end(), 18, 2);
  c.compress_ratios.insert(c.compress_ratios.end(), 20, 1);
  c.compress_ratios.insert(c.compress_ratios.end(), 3, 0);
  c.kv_source_layer_ids = {2, 8, 14, 20};
  c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_source_layer_id = 20;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;
  c.moe_intermediate_size = 2304;
  c.n_routed_experts = 384;
  c.num_experts_per_tok = 6;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 10;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.engram_layer_ids = {1, 14};
  c.engram_num_embeddings = {384006168, 384016682};
  c.engram_max_ngram_size = 4;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.num_nextn_predict_layers = 3;
  c.dspark_block_size = 5;
  c.dspark_target_layer_ids = {37, 38, 39};
  c.dspark_markov_rank = 256;
  c.dspark_n_routed_experts = 128;
  c.dspark_num_experts_per_tok = 3;
  return c;
}

}  // namespace

RankModel::RankModel(CudaBackend& cuda, int ranks, int most_rows)
    : cuda_(cuda),
      backend_(cuda),
      config_(real_config()),
      plan_(model::make_layer_plan(config_)),
      split_(model::split_for(config_, ranks)),
      scratch_(allocate_block_scratch(cuda, config_, split_, most_rows, CollectiveDtype::kBf16)),
      index_(allocate_index_scratch(cuda, config_, most_rows)),
      engram_(allocate_engram_scratch(cuda, config_, split_, most_rows)),
      runner_(backend_, communicator_, config_, split_, scratch_) {
  for (const model::LayerRole& role : plan_.layers) {
    LayerWeights layer{.role = role, .block = make_block(384, 6)};
    if (role.owns_kv()) make_compressor(layer);
    if (role.runs_indexer()) {
      layer.indexer = {.wq_b = fp8(config_.index_width(), config_.q_lora_rank),
                       .weights_proj = bf16(config_.index_n_heads, config_.hidden_size)};
    }
    if (role.engram >= 0) {
      layer.engram = {.wkv = fp8(split_.engram_output, config_.engram_width()),
                      .q_weight = vector(config_.stream_width()),
                      .k_weight = vector(config_.stream_width())};
    }
    layers_.push_back(std::move(layer));
  }
  for (int m = 0; m < 3; ++m) {
    drafter_.push_back(make_block(128, 3));
    drafter_kv_.push_back(fp8(config_.head_dim, config_.hidden_size));
  }
  head_ = bf16(split_.vocabulary, config_.hidden_size);
  embed_ = bf16(split_.vocabulary, config_.hidden_size);
  markov_embed_ = bf16(config_.vocab_size, config_.dspark_markov_rank);
  markov_head_ = bf16(split_.vocabulary, config_.dspark_markov_rank);
  confidence_ = bf16(1, config_.hidden_size + config_.dspark_markov_rank);
  main_proj_ = fp8(split_.main_output, config_.main_proj_input());
  norm_ = vector(config_.hidden_size);
  const int64_t rows = most_rows;
  for (float** a : {&angles_.plain, &angles_.compressed, &angles_.pair}) *a = reserve<float>(cuda, rows * 64);
  std::vector<float> freq(32);
  for (size_t i = 0; i < freq.size(); ++i) freq[i] = 1.0F / static_cast<float>(1 + i * i);
  freq_ = place(cuda, freq);
  aux_ = random_bf16(cuda, rows * config_.main_proj_input(), 1, 71);
  aux_q_ = allocate_quantised(cuda, rows, config_.main_proj_input());
  main_x_ = random_bf16(cuda, rows * config_.hidden_size, 1, 72);
  main_q_ = allocate_quantised(cuda, rows, config_.hidden_size);
  records_ = reserve<uint8_t>(cuda, rows * window_record_bytes(512));
  collapsed_ = reserve<uint16_t>(cuda, rows * config_.hidden_size);
  logits_ = reserve<float>(cuda, rows * split_.vocabulary);
  drafts_ = reserve<int32_t>(cuda, rows);
  confidences_ = reserve<float>(cuda, rows);
  best_ = reserve<int32_t>(cuda, rows);
  engram_codes_ = random_codes(cuda, rows, config_.engram_width(), 73);
  pair_state_ = reserve<float>(cuda, int64_t{64} * kRing * 2 * config_.head_dim);
  fill_index_queries(rows);
}

void RankModel::prepare(int rows, const Steps& steps, int head_rows) {
  steps_ = steps;
  head_rows_ = head_rows;
  const int streams = steps_.streams;
  // Ratio-2 caches of three layers, one of ratio 1; windows of all layers share one set of records.
  for (int i = 0; i < 4; ++i) caches_[i] = make_caches(cuda_, streams, kContext, i == 3 ? 1 : 2);
  // Draft rows: five a stream, or as many as there are rows.
  const int each = std::min(5, rows);
  std::vector<int32_t> token, position, sequence, first, last, start, end;
  for (int s = 0; s < streams; ++s) {
    for (int i = 0; i < each; ++i) {
      token.push_back(100 + i);
      position.push_back(kContext + i);
      sequence.push_back(s);
      first.push_back(s * each);
      last.push_back(s * each + each - 1);
      start.push_back(0);
      end.push_back(kContext - 1);
    }
  }
  draft_step_ = {.rows = streams * each,
                 .token = place(cuda_, token),
                 .position = place(cuda_, position),
                 .sequence = place(cuda_, sequence),
                 .first_row = place(cuda_, first),
                 .last_row = place(cuda_, last),
                 .window_start = place(cuda_, start),
                 .is_image = place(cuda_, std::vector<uint8_t>(token.size()))};
  window_end_ = place(cuda_, end);
  draft_rows_ = each;
}

void RankModel::fill_index_queries(int64_t rows) {
  // Steps that leave the indexer out still attend to something.
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<int32_t> list(512);
    for (size_t j = 0; j < list.size(); ++j) list[j] = static_cast<int32_t>(j * 31);
    cuda_.upload(index_.selected + i * 512, list.data(), list.size() * sizeof(int32_t));
  }
}

MhcWeights RankModel::make_mhc() {
  return {
      .fn = cuda_.synthetic_weight(WeightFormat::kF32, config_.hc_mixes(), config_.stream_width(), ++seed_),
      .scale = place(cuda_, std::vector<float>(3, 0.1F)),
      .base = place(cuda_, std::vector<float>(24, 0.1F))};
}

BlockWeights RankModel::make_block(int experts, int top_k) {
  BlockWeights b;
  b.attention_mix = make_mhc();
  b.expert_mix = make_mhc();
  b.attention = {.norm = vector(config_.hidden_size),
                 .wq_a_kv = fp8(config_.q_lora_rank + config_.head_dim, config_.hidden_size),
                 .q_norm = vector(config_.q_lora_rank),
                 .kv_norm = vector(config_.head_dim),
                 .wq_b = fp8(split_.heads * config_.head_dim, config_.q_lora_rank),
                 .sink = place(cuda_, std::vector<float>(static_cast<size_t>(split_.heads), 0.5F)),
                 .wo_a = fp8(split_.groups * config_.o_lora_rank, config_.o_group_input()),
                 .wo_b = fp8(config_.hidden_size, split_.groups * config_.o_lora_rank)};
  std::vector<float> bias(static_cast<size_t>(experts));
  Random random(++seed_);
  for (float& v : bias) v = 0.05F * random.normal();
  b.experts = {.norm = vector(config_.hidden_size),
               .gate = bf16(experts, config_.hidden_size),
               .bias = place(cuda_, bias),
               .image_bias = nullptr,
               .bank = cuda_.synthetic_experts(experts, config_.hidden_size, split_.expert_width, ++seed_),
               .shared = {.w1 = fp8(split_.expert_width, config_.hidden_size),
                          .w3 = fp8(split_.expert_width, config_.hidden_size),
                          .w2 = fp8(config_.hidden_size, split_.expert_width)},
               .experts = experts,
               .top_k = top_k};
  return b;
}

void RankModel::make_compressor(LayerWeights& layer) {
  layer.compressor = {
      .wkv = bf16(config_.head_dim, config_.hidden_size),
      .wgate = layer.role.compress_ratio > 1 ? bf16(config_.head_dim, config_.hidden_size) : Weight{},
      .norm = vector(config_.head_dim),
      .wk = bf16(config_.index_head_dim, config_.head_dim),
      .k_norm = vector(config_.index_head_dim)};
}

int64_t RankModel::step_bytes(int rows) const {
  const auto expected = [](double experts, double top_k, double n) {
    double miss = 1;
    for (int i = 0; i < static_cast<int>(n); ++i) miss *= 1 - top_k / experts;
    return experts * (1 - miss);
  };
  const double expert = 3.0 * 5120 * static_cast<double>(split_.expert_width) * 17 / 32;
  double total = 0;
  for (const LayerWeights& layer : layers_) {
    total += block_bytes(layer.block) + expected(384, 6, rows) * expert;
    total += bytes_of(layer.compressor.wkv) + bytes_of(layer.compressor.wgate) +
             bytes_of(layer.compressor.wk) + bytes_of(layer.indexer.wq_b) +
             bytes_of(layer.indexer.weights_proj) + bytes_of(layer.engram.wkv);
    total += steps_.streams * 133.0 * 528;
    if (layer.role.kv_source >= 0) total += rows * 512.0 * 288;
    if (layer.role.runs_indexer()) {
      const int64_t entries = kContext / layer.role.compress_ratio;
      total += layer.role.uses_candidates ? rows * 16384.0 * 68
                                          : static_cast<double>(steps_.streams * entries * 68);
    }
  }
  const int draft = draft_step_.rows;
  for (size_t m = 0; m < drafter_.size(); ++m) {
    total += block_bytes(drafter_[m]) + expected(128, 3, draft) * expert + bytes_of(drafter_kv_[m]);
  }
  total += bytes_of(main_proj_) + 2 * bytes_of(head_) + draft_rows_ * bytes_of(markov_head_);
  return static_cast<int64_t>(total);
}

double RankModel::block_bytes(const BlockWeights& b) const {
  double total = 0;
  for (const Weight* w : {&b.attention_mix.fn, &b.expert_mix.fn, &b.attention.wq_a_kv, &b.attention.wq_b,
                          &b.attention.wo_a, &b.attention.wo_b, &b.experts.gate, &b.experts.shared.w1,
                          &b.experts.shared.w3, &b.experts.shared.w2}) {
    total += bytes_of(*w);
  }
  return total;
}

int RankModel::distinct_experts(int rows) const {
  std::vector<int32_t> ids(static_cast<size_t>(rows) * 6);
  cuda_.download(ids.data(), scratch_.expert_ids, ids.size() * sizeof(int32_t));
  return static_cast<int>(std::set<int32_t>(ids.begin(), ids.end()).size());
}

}  // namespace spark::bench_gpu
