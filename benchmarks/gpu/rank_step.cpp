// One step of a tensor-parallel rank at full size, with synthetic weights: 40 layers, the drafter's block,
// the heads. The order of operations is the engine's (BlockRunner); the all-reduces are absent. Timed as one
// graph.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <set>

#include "caches.h"
#include "engine/forward/block_runner.h"
#include "engine/forward/scratch.h"
#include "engine/forward/weights.h"
#include "harness.h"
#include "model/layer_plan.h"
#include "skipping_backend.h"

namespace spark::bench_gpu {
namespace {

using namespace engine;  // the vocabulary of the forward pass

constexpr int kContext = 32768;

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

class RankModel {
 public:
  RankModel(CudaBackend& cuda, int ranks, int most_rows)
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
    for (float** a : {&angles_.plain, &angles_.compressed, &angles_.pair})
      *a = reserve<float>(cuda, rows * 64);
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

  StepResult measure(int rows, bool split_up) {
    prepare(rows, make_steps(cuda_, rows, kContext));
    StepResult result{.ranks = static_cast<int>(split_.ranks), .rows = rows};
    result.bytes = step_bytes(rows);
    result.step_us = time(true, true);
    result.draft_us = time(false, true);
    run_backbone();
    std::vector<int32_t> ids(static_cast<size_t>(rows) * 6);
    cuda_.download(ids.data(), scratch_.expert_ids, ids.size() * sizeof(int32_t));
    result.distinct_experts = static_cast<int>(std::set<int32_t>(ids.begin(), ids.end()).size());
    if (split_up) {
      leave_out(result, {"experts", "dense FP8", "dense BF16", "vocabulary head", "draft head", "sparse MLA",
                         "indexer", "mHC mix", "mHC collapse, expand", "casts and norms",
                         "rope, cache writes", "route"});
    }
    return result;
  }

  StepResult measure_prompt(int rows, bool split_up) {
    prepare(rows, make_prompt(cuda_, rows, kContext));
    head_rows_ = 1;
    rounds_ = 3;
    StepResult result{.ranks = static_cast<int>(split_.ranks), .rows = rows};
    result.step_us = time(true, false);
    if (split_up) {
      leave_out(result, {"experts", "dense FP8", "dense BF16", "sparse MLA", "indexer", "mHC mix",
                         "mHC collapse, expand", "casts and norms", "rope, cache writes", "route"});
    }
    return result;
  }

 private:
  static constexpr int kRing = 8;

  void leave_out(StepResult& result, std::initializer_list<const char*> kinds) {
    const bool drafter = result.draft_us > 0;
    for (const char* kind : kinds) {
      backend_.skip({kind});
      result.without.emplace_back(kind, time(true, drafter));
    }
    backend_.skip({});
  }

  Weight fp8(int64_t out, int64_t in) {
    return count(cuda_.synthetic_weight(WeightFormat::kFp8, out, in, ++seed_));
  }
  Weight bf16(int64_t out, int64_t in) {
    return count(cuda_.synthetic_weight(WeightFormat::kBf16, out, in, ++seed_));
  }
  Weight count(const Weight& w) { return w; }
  const uint16_t* vector(int64_t n) { return random_bf16(cuda_, n, 1, ++seed_); }

  MhcWeights make_mhc() {
    return {
        .fn = cuda_.synthetic_weight(WeightFormat::kF32, config_.hc_mixes(), config_.stream_width(), ++seed_),
        .scale = place(cuda_, std::vector<float>(3, 0.1F)),
        .base = place(cuda_, std::vector<float>(24, 0.1F))};
  }

  BlockWeights make_block(int experts, int top_k) {
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

  void make_compressor(LayerWeights& layer) {
    layer.compressor = {
        .wkv = bf16(config_.head_dim, config_.hidden_size),
        .wgate = layer.role.compress_ratio > 1 ? bf16(config_.head_dim, config_.hidden_size) : Weight{},
        .norm = vector(config_.head_dim),
        .wk = bf16(config_.index_head_dim, config_.head_dim),
        .k_norm = vector(config_.index_head_dim)};
  }

  void fill_index_queries(int64_t rows) {
    // Steps that leave the indexer out still attend to something.
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<int32_t> list(512);
      for (size_t j = 0; j < list.size(); ++j) list[j] = static_cast<int32_t>(j * 31);
      cuda_.upload(index_.selected + i * 512, list.data(), list.size() * sizeof(int32_t));
    }
  }

  void prepare(int rows, const Steps& steps) {
    steps_ = steps;
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

  double time(bool backbone, bool drafter) {
    return time_graph(
        cuda_,
        [&] {
          if (backbone) run_backbone();
          if (drafter) run_drafter();
        },
        1, rounds_);
  }

  const Caches& caches_of(int64_t source) const {
    return caches_[source == 2 ? 0 : source == 8 ? 1 : source == 14 ? 2 : 3];
  }

  void run_backbone() {
    const StepRows& step = steps_.step;
    backend_.rope_angles({.step = step, .pairs = 32, .freq = freq_, .cos_sin = angles_.plain});
    backend_.rope_angles({.step = step, .pairs = 32, .freq = freq_, .cos_sin = angles_.compressed});
    backend_.rope_angles({.step = step, .back = 1, .pairs = 32, .freq = freq_, .cos_sin = angles_.pair});
    runner_.embed(step, embed_, nullptr, nullptr);
    for (const LayerWeights& layer : layers_) run_layer(step, layer);
    runner_.final_hidden(step, norm_, nullptr, scratch_.x);
    follow(step);
    const int heads = std::min(step.rows, head_rows_);
    head(scratch_.x, heads);
    cuda_.argmax(logits_, heads, split_.vocabulary, best_);
  }

  void head(const uint16_t* x, int rows) {
    backend_.linear(
        {.rows = rows, .x = x, .weight = &head_, .y_f32 = logits_, .y_stride = split_.vocabulary});
  }

  void run_layer(const StepRows& step, const LayerWeights& layer) {
    if (layer.role.engram >= 0) inject(step, layer);
    if (layer.role.aux >= 0) {
      backend_.stream_mean({.rows = step.rows,
                            .streams = 4,
                            .hidden = 5120,
                            .h = scratch_.h,
                            .out = aux_ + layer.role.aux * 5120,
                            .out_stride = config_.main_proj_input()});
    }
    const float* angles = layer.role.compress_ratio == 0 ? angles_.plain : angles_.compressed;
    runner_.begin_attention(step, layer.block, angles, true);
    backend_.window_write({.step = step,
                           .width = 512,
                           .pairs = 32,
                           .cos_sin = angles,
                           .kv = scratch_.kv,
                           .cache = caches_[0].window});
    if (layer.role.owns_kv()) compress(step, layer);
    if (layer.role.runs_indexer()) select(step, layer);
    AttentionView view{.cos_sin = angles, .window = caches_[0].window};
    if (layer.role.kv_source >= 0) {
      view.main = caches_of(layer.role.kv_source).main;
      view.selected = index_.selected;
    }
    runner_.attention_output(step, layer.block, view);
    runner_.add_attention(step);
    runner_.begin_experts(step, layer.block);
    runner_.expert_output(step, layer.block);
    runner_.add_experts(step);
  }

  void inject(const StepRows& step, const LayerWeights& layer) {
    backend_.engram_dequantise({.rows = step.rows,
                                .cols = 6144,
                                .codes = engram_codes_.codes,
                                .scales = engram_codes_.scales,
                                .x = engram_.x});
    backend_.quantise({.rows = step.rows, .cols = 6144, .x = engram_.x, .out = engram_.x_q});
    // A rank computes its part of the outputs; the gather is absent, so the rest keeps old values.
    backend_.linear({.rows = step.rows,
                     .x_q = engram_.x_q,
                     .weight = &layer.engram.wkv,
                     .y = engram_.kv,
                     .y_stride = config_.engram_output()});
    backend_.engram_inject({.step = step,
                            .streams = 4,
                            .hidden = 5120,
                            .kv = engram_.kv,
                            .q_weight = layer.engram.q_weight,
                            .k_weight = layer.engram.k_weight,
                            .h = scratch_.h});
  }

  void compress(const StepRows& step, const LayerWeights& layer) {
    const CompressorWeights& w = layer.compressor;
    const int ratio = static_cast<int>(layer.role.compress_ratio);
    if (ratio == 1) {
      backend_.linear(
          {.rows = step.rows, .x = scratch_.x, .weight = &w.wkv, .y = index_.pooled, .y_stride = 512});
    } else {
      backend_.linear(
          {.rows = step.rows, .x = scratch_.x, .weight = &w.wkv, .y_f32 = index_.kv, .y_stride = 512});
      backend_.linear(
          {.rows = step.rows, .x = scratch_.x, .weight = &w.wgate, .y_f32 = index_.score, .y_stride = 512});
      backend_.pool_pairs({.step = step,
                           .width = 512,
                           .ring = kRing,
                           .kv = index_.kv,
                           .score = index_.score,
                           .state = pair_state_,
                           .pooled = index_.pooled});
    }
    backend_.rms_norm({.rows = step.rows,
                       .cols = 512,
                       .x = index_.pooled,
                       .x_stride = 512,
                       .weight = w.norm,
                       .y = index_.latent});
    backend_.linear(
        {.rows = step.rows, .x = index_.latent, .weight = &w.wk, .y = index_.key_raw, .y_stride = 128});
    backend_.rms_norm({.rows = step.rows,
                       .cols = 128,
                       .x = index_.key_raw,
                       .x_stride = 128,
                       .weight = w.k_norm,
                       .y = index_.key});
    const Caches& caches = caches_of(layer.role.layer);
    backend_.entry_write({.step = step,
                          .ratio = ratio,
                          .width = 512,
                          .key_width = 128,
                          .pairs = 32,
                          .cos_sin = ratio == 1 ? angles_.compressed : angles_.pair,
                          .latent = index_.latent,
                          .key = index_.key,
                          .main_cache = caches.main,
                          .key_cache = caches.keys});
  }

  void select(const StepRows& step, const LayerWeights& layer) {
    backend_.linear({.rows = step.rows,
                     .x_q = scratch_.qr_q,
                     .weight = &layer.indexer.wq_b,
                     .y = index_.q,
                     .y_stride = config_.index_width()});
    backend_.index_query({.rows = step.rows,
                          .heads = 32,
                          .width = 128,
                          .pairs = 32,
                          .cos_sin = angles_.compressed,
                          .q = index_.q,
                          .packed = index_.q_packed,
                          .scales = index_.q_scales});
    backend_.linear({.rows = step.rows,
                     .x = scratch_.x,
                     .weight = &layer.indexer.weights_proj,
                     .y = index_.head_weight,
                     .y_stride = 32});
    const int ratio = static_cast<int>(layer.role.compress_ratio);
    CandidateMode mode = CandidateMode::kNone;
    if (layer.role.is_candidate_source) mode = CandidateMode::kProduce;
    if (layer.role.uses_candidates) mode = CandidateMode::kRestrict;
    backend_.index_select({.step = step,
                           .heads = 32,
                           .width = 128,
                           .ratio = ratio,
                           .top_k = 512,
                           .q_packed = index_.q_packed,
                           .q_scales = index_.q_scales,
                           .head_weight = index_.head_weight,
                           .weight_factor = 1.0F / 64,
                           .key_cache = caches_of(layer.role.kv_source).keys,
                           .max_entries = kContext / ratio,
                           .mode = mode,
                           .block_size = 8,
                           .max_blocks = 2048,
                           .candidate_blocks = index_.candidate_blocks,
                           .selected = index_.selected});
  }

  // The drafter's context side.
  void follow(const StepRows& step) {
    backend_.quantise({.rows = step.rows, .cols = 15360, .x = aux_, .out = aux_q_});
    backend_.linear(
        {.rows = step.rows, .x_q = aux_q_, .weight = &main_proj_, .y = main_x_, .y_stride = 5120});
    backend_.rms_norm(
        {.rows = step.rows, .cols = 5120, .x = main_x_, .x_stride = 5120, .weight = norm_, .y_q = main_q_});
    for (size_t m = 0; m < drafter_.size(); ++m) {
      backend_.linear(
          {.rows = step.rows, .x_q = main_q_, .weight = &drafter_kv_[m], .y = scratch_.kv, .y_stride = 512});
      backend_.rms_norm({.rows = step.rows,
                         .cols = 512,
                         .x = scratch_.kv,
                         .x_stride = 512,
                         .weight = drafter_[m].attention.kv_norm,
                         .y = scratch_.kv});
      backend_.window_write({.step = step,
                             .width = 512,
                             .pairs = 32,
                             .cos_sin = angles_.plain,
                             .kv = scratch_.kv,
                             .cache = caches_[1].window});
    }
  }

  void run_drafter() {
    const StepRows& step = draft_step_;
    backend_.rope_angles({.step = step, .pairs = 32, .freq = freq_, .cos_sin = angles_.plain});
    runner_.embed(step, embed_, nullptr, nullptr);
    for (const BlockWeights& block : drafter_) {
      runner_.begin_attention(step, block, angles_.plain, false);
      backend_.window_write({.step = step,
                             .width = 512,
                             .pairs = 32,
                             .cos_sin = angles_.plain,
                             .kv = scratch_.kv,
                             .records = records_});
      runner_.attention_output(step, block,
                               {.cos_sin = angles_.plain,
                                .window = caches_[1].window,
                                .order = WindowOrder::kRingSlot,
                                .window_end = window_end_,
                                .extra = records_});
      runner_.add_attention(step);
      runner_.begin_experts(step, block);
      runner_.expert_output(step, block);
      runner_.add_experts(step);
    }
    runner_.final_hidden(step, norm_, collapsed_, scratch_.x);
    head(scratch_.x, step.rows);
    backend_.draft({.step = step,
                    .vocab = static_cast<int32_t>(split_.vocabulary),
                    .hidden = 5120,
                    .rank = 256,
                    .block_rows = draft_rows_,
                    .x = collapsed_,
                    .base = logits_,
                    .embed = &markov_embed_,
                    .head = &markov_head_,
                    .confidence_proj = &confidence_,
                    .draft = drafts_,
                    .confidence = confidences_});
  }

  // Weights, caches and keys that the step must read. Routed experts: those the router chose in the last run
  // cannot be known here, so independent uniform routing is assumed, as in the specification's floors.
  int64_t step_bytes(int rows) const {
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

  double bytes_of(const Weight& w) const {
    return w.empty() ? 0 : static_cast<double>(cuda_.weight_bytes(w));
  }

  double block_bytes(const BlockWeights& b) const {
    double total = 0;
    for (const Weight* w : {&b.attention_mix.fn, &b.expert_mix.fn, &b.attention.wq_a_kv, &b.attention.wq_b,
                            &b.attention.wo_a, &b.attention.wo_b, &b.experts.gate, &b.experts.shared.w1,
                            &b.experts.shared.w3, &b.experts.shared.w2}) {
      total += bytes_of(*w);
    }
    return total;
  }

  CudaBackend& cuda_;
  SkippingBackend backend_;
  SoloCommunicator communicator_;
  const model::ModelConfig config_;
  const model::LayerPlan plan_;
  const model::RankSplit split_;
  BlockScratch scratch_;
  IndexScratch index_;
  EngramScratch engram_;
  BlockRunner runner_;
  uint64_t seed_ = 1000;
  std::vector<LayerWeights> layers_;
  std::vector<BlockWeights> drafter_;
  std::vector<Weight> drafter_kv_;
  Weight head_, embed_, markov_embed_, markov_head_, confidence_, main_proj_;
  const uint16_t* norm_ = nullptr;
  AngleBuffers angles_;
  const float* freq_ = nullptr;
  uint16_t* aux_ = nullptr;
  QuantisedRows aux_q_;
  uint16_t* main_x_ = nullptr;
  QuantisedRows main_q_;
  uint8_t* records_ = nullptr;
  uint16_t* collapsed_ = nullptr;
  float* logits_ = nullptr;
  int32_t* drafts_ = nullptr;
  float* confidences_ = nullptr;
  int32_t* best_ = nullptr;
  QuantisedRows engram_codes_;
  float* pair_state_ = nullptr;
  Steps steps_;
  Caches caches_[4];
  StepRows draft_step_;
  const int32_t* window_end_ = nullptr;
  int draft_rows_ = 0;
  int head_rows_ = std::numeric_limits<int>::max();
  int rounds_ = 12;
};

}  // namespace

std::vector<StepResult> measure_steps(int ranks, std::span<const int> rows, double bytes_per_us, bool brief) {
  std::vector<StepResult> results;
  {
    const auto cuda = engine::make_cuda_backend({});
    RankModel model(*cuda, ranks, 64);
    for (const int m : rows) {
      results.push_back(model.measure(m, !brief && m == 6 && ranks == 4));
      results.back().floor_us = static_cast<double>(results.back().bytes) / bytes_per_us;
    }
  }
  if (!brief) {
    const auto cuda = engine::make_cuda_backend({.dependent_launch = false, .side_stream = false});
    RankModel model(*cuda, ranks, 64);
    for (StepResult& r : results) r.plain_us = model.measure(r.rows, false).step_us;
  }
  return results;
}

std::vector<StepResult> measure_prefill(int ranks, std::span<const int> rows, bool brief) {
  const auto cuda = engine::make_cuda_backend({});
  RankModel model(*cuda, ranks, *std::max_element(rows.begin(), rows.end()));
  std::vector<StepResult> results;
  for (const int m : rows) results.push_back(model.measure_prompt(m, !brief && m == rows.back()));
  return results;
}

}  // namespace spark::bench_gpu
