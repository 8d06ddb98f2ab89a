// The operations of a step, in the engine's order.
#include <algorithm>

#include "rank_model.h"

namespace spark::bench_gpu {

using namespace engine;  // the vocabulary of the forward pass

void RankModel::run_backbone() {
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

void RankModel::run_drafter() {
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

void RankModel::head(const uint16_t* x, int rows) {
  backend_.linear({.rows = rows, .x = x, .weight = &head_, .y_f32 = logits_, .y_stride = split_.vocabulary});
}

void RankModel::run_layer(const StepRows& step, const LayerWeights& layer) {
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

void RankModel::inject(const StepRows& step, const LayerWeights& layer) {
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

void RankModel::compress(const StepRows& step, const LayerWeights& layer) {
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

void RankModel::select(const StepRows& step, const LayerWeights& layer) {
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
void RankModel::follow(const StepRows& step) {
  backend_.quantise({.rows = step.rows, .cols = 15360, .x = aux_, .out = aux_q_});
  backend_.linear({.rows = step.rows, .x_q = aux_q_, .weight = &main_proj_, .y = main_x_, .y_stride = 5120});
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

}  // namespace spark::bench_gpu
