// The layers of a step: what Decoder::forward() runs.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/forward/decoder.h"

namespace spark::engine {
namespace {

std::string layer_name(const LayerWeights& layer, const char* tensor) {
  return "layers." + std::to_string(layer.role.layer) + "." + tensor;
}

}  // namespace

const float* Decoder::angles_of(const model::LayerRole& role) const {
  return role.compress_ratio == 0 ? angles_.plain : angles_.compressed;
}

int32_t Decoder::entry_bound(int64_t ratio) const {
  return longest_ / narrow(ratio);
}

void Decoder::observe(const std::string& name, ObservedType type, int64_t cols, const void* data) {
  backend_->finish();
  observer_->tensor({.name = name, .type = type, .rows = step_.rows, .cols = cols, .data = data});
}

void Decoder::compute_angles() {
  const auto angles = [&](const float* freq, int32_t back, float* out) {
    backend_->rope_angles({.step = step_,
                           .back = back,
                           .pairs = narrow(config_.qk_rope_head_dim / 2),
                           .freq = freq,
                           .cos_sin = out});
  };
  angles(plain_freq_, 0, angles_.plain);
  angles(compressed_freq_, 0, angles_.compressed);
  angles(compressed_freq_, 1, angles_.pair);
}

void Decoder::forward() {
  step_ = all_rows_;
  has_entries_ = false;
  compute_angles();
  runner_.embed(step_, weights_.embed, has_injected_ ? injected_ : nullptr,
                has_injected_ ? arrays_.override_rows() : nullptr);
  for (const LayerWeights& layer : weights_.layers) {
    if (skips_decoder_ && layer.role.layer == plan_.first_decoder_layer) enter_decoder(layer);
    if (step_.rows == 0) return;  // no row goes on
    run_layer(layer);
  }
  runner_.final_hidden(step_, weights_.norm, nullptr, runner_.scratch().x);
  if (drafter_ != nullptr) {
    runner_.join_rows(step_, {{aux_, 2 * config_.main_proj_input()}});
    drafter_->follow(step_, aux_, angles_.plain);
  }
  if (observer_ != nullptr) {
    observe("final_hidden", ObservedType::kBf16, config_.hidden_size, runner_.scratch().x);
    observe("drafter_aux", ObservedType::kBf16, config_.main_proj_input(), aux_);
  }
}

// The first decoder layer makes entries of all rows from its input; from then on the step has fewer rows.
void Decoder::enter_decoder(const LayerWeights& layer) {
  runner_.attention_input(step_, layer.block);
  compress(layer);
  has_entries_ = decoder_rows_.rows > 0;
  const bool fewer = decoder_rows_.rows < step_.rows;
  if (fewer) {
    runner_.join_streams(step_);
    keep_decoder_rows();
  }
  step_ = decoder_rows_;
  if (fewer && step_.rows > 0) compute_angles();
}

// Moves what passes between layers, the streams and their mix, to the front. Rows only move down and in
// order, so a slice at a time never overwrites what is still to be moved.
void Decoder::keep_decoder_rows() {
  const BlockScratch& scratch = runner_.scratch();
  const int32_t slice = narrow(std::min<int64_t>(kKeptSlice, decoder_rows_.rows));
  const int32_t* in_order = kept_rows_ + all_rows_.rows;
  const auto move = [&](uint16_t* x, int64_t cols, uint16_t* by) {
    for (int32_t begin = 0; begin < decoder_rows_.rows; begin += slice) {
      const int32_t rows = std::min(slice, decoder_rows_.rows - begin);
      backend_->gather_rows(
          {.rows = rows, .cols = narrow(cols), .in = x, .row = kept_rows_ + begin, .out = by});
      backend_->gather_rows(
          {.rows = rows, .cols = narrow(cols), .in = by, .row = in_order, .out = x + begin * cols});
    }
  };
  move(scratch.h, config_.stream_width(), kept_h_);
  move(reinterpret_cast<uint16_t*>(scratch.expert_mix.pre), 2 * config_.hc_mult, kept_pre_);
}

void Decoder::run_layer(const LayerWeights& layer) {
  const BlockScratch& scratch = runner_.scratch();
  if (observer_ != nullptr) {
    backend_->finish();
    observer_->before_layer(narrow(layer.role.layer), {.rows = step_.rows,
                                                       .h = scratch.h,
                                                       .pre = scratch.expert_mix.pre,
                                                       .selected = index_.selected,
                                                       .candidate_blocks = index_.candidate_blocks});
  }
  if (layer.role.engram >= 0) inject_engram(layer);
  if (layer.role.aux >= 0) {
    const RowRange own = runner_.held_rows(step_);
    backend_->stream_mean(
        {.rows = own.rows,
         .streams = narrow(config_.hc_mult),
         .hidden = narrow(config_.hidden_size),
         .h = scratch.h + own.first * config_.stream_width(),
         .out = aux_ + own.first * config_.main_proj_input() + layer.role.aux * config_.hidden_size,
         .out_stride = config_.main_proj_input()});
  }
  attend(layer);
  runner_.begin_experts(step_, layer.block);
  if (observer_ != nullptr) {
    const ExpertLayerWeights& experts = layer.block.experts;
    observe(layer_name(layer, "ffn_in"), ObservedType::kBf16, config_.hidden_size, scratch.x);
    observe(layer_name(layer, "ffn.ids"), ObservedType::kI32, experts.top_k, scratch.expert_ids);
    observe(layer_name(layer, "ffn.weights"), ObservedType::kF32, experts.top_k, scratch.expert_weights);
  }
  runner_.expert_output(step_, layer.block);
  if (observer_ != nullptr) {
    observe(layer_name(layer, "ffn_out"), ObservedType::kBf16, config_.hidden_size, scratch.y);
  }
  runner_.add_experts(step_);
  if (observer_ != nullptr) {
    observe(layer_name(layer, "h"), ObservedType::kBf16, config_.stream_width(), scratch.h);
    observe(layer_name(layer, "pre"), ObservedType::kF32, config_.hc_mult, scratch.expert_mix.pre);
  }
}

void Decoder::inject_engram(const LayerWeights& layer) {
  const int64_t table = layer.role.engram;
  backend_->engram_dequantise({.rows = step_.rows,
                               .cols = narrow(config_.engram_width()),
                               .codes = engram_.codes(table),
                               .scales = engram_.scales(table),
                               .x = engram_scratch_.x});
  backend_->quantise({.rows = step_.rows,
                      .cols = narrow(config_.engram_width()),
                      .x = engram_scratch_.x,
                      .out = engram_scratch_.x_q});
  backend_->linear({.rows = step_.rows,
                    .x_q = engram_scratch_.x_q,
                    .weight = &layer.engram.wkv,
                    .y = engram_scratch_.part,
                    .y_stride = split_.engram_output});
  if (split_.ranks > 1) {
    communicator_.gather_columns({.part = engram_scratch_.part,
                                  .rows = step_.rows,
                                  .part_cols = narrow(split_.engram_output),
                                  .all_cols = narrow(config_.engram_output()),
                                  .element_bytes = sizeof(uint16_t),
                                  .all = engram_scratch_.kv});
  }
  const RowRange own = runner_.held_rows(step_);
  backend_->engram_inject({.step = runner_.held(step_),
                           .streams = narrow(config_.hc_mult),
                           .hidden = narrow(config_.hidden_size),
                           .norm_eps = runner_.norm_eps(),
                           .kv = engram_scratch_.kv + own.first * config_.engram_output(),
                           .q_weight = layer.engram.q_weight,
                           .k_weight = layer.engram.k_weight,
                           .h = runner_.scratch().h + own.first * config_.stream_width(),
                           .gate = observer_ != nullptr ? observed_gates_ : nullptr});
  if (observer_ != nullptr) {
    observe(layer_name(layer, "engram_gate"), ObservedType::kF32, config_.hc_mult, observed_gates_);
    observe(layer_name(layer, "h_after_engram"), ObservedType::kBf16, config_.stream_width(),
            runner_.scratch().h);
  }
}

void Decoder::attend(const LayerWeights& layer) {
  const BlockScratch& scratch = runner_.scratch();
  const float* angles = angles_of(layer.role);
  const PagedCache window = cache_.window(narrow(layer.role.layer));
  const bool makes_entries = layer.role.owns_kv() && !has_entries_;
  runner_.begin_attention(step_, layer.block, angles, makes_entries || layer.role.runs_indexer());
  if (observer_ != nullptr) {
    observe(layer_name(layer, "attn_in"), ObservedType::kBf16, config_.hidden_size, scratch.x);
  }
  backend_->window_write({.step = step_,
                          .width = narrow(config_.head_dim),
                          .pairs = narrow(config_.qk_rope_head_dim / 2),
                          .cos_sin = angles,
                          .kv = scratch.kv,
                          .cache = window});
  if (layer.role.owns_kv() && !std::exchange(has_entries_, false)) compress(layer);
  if (layer.role.runs_indexer()) select(layer);
  AttentionView view{.cos_sin = angles, .window = window};
  if (layer.role.kv_source >= 0) {
    view.main = cache_.main(narrow(layer.role.kv_source));
    view.selected = index_.selected;
  }
  runner_.attention_output(step_, layer.block, view);
  if (observer_ != nullptr) {
    observe(layer_name(layer, "attn_out"), ObservedType::kBf16, config_.hidden_size, scratch.y);
  }
  runner_.add_attention(step_);
}

void Decoder::compress(const LayerWeights& layer) {
  const CompressorWeights& weights = layer.compressor;
  const uint16_t* x = runner_.scratch().x;
  const int64_t width = config_.head_dim;
  const int32_t source = narrow(layer.role.layer);
  if (layer.role.compress_ratio == 1) {
    backend_->linear(
        {.rows = step_.rows, .x = x, .weight = &weights.wkv, .y = index_.pooled, .y_stride = width});
  } else {
    backend_->linear(
        {.rows = step_.rows, .x = x, .weight = &weights.wkv, .y_f32 = index_.kv, .y_stride = width});
    backend_->linear(
        {.rows = step_.rows, .x = x, .weight = &weights.wgate, .y_f32 = index_.score, .y_stride = width});
    backend_->pool_pairs({.step = step_,
                          .width = narrow(width),
                          .ring = kPairRing,
                          .kv = index_.kv,
                          .score = index_.score,
                          .state = cache_.pair_state(source),
                          .pooled = index_.pooled});
  }
  backend_->rms_norm({.rows = step_.rows,
                      .cols = narrow(width),
                      .eps = runner_.norm_eps(),
                      .x = index_.pooled,
                      .x_stride = width,
                      .weight = weights.norm,
                      .y = index_.latent});
  backend_->linear({.rows = step_.rows,
                    .x = index_.latent,
                    .weight = &weights.wk,
                    .y = index_.key_raw,
                    .y_stride = config_.index_head_dim});
  backend_->rms_norm({.rows = step_.rows,
                      .cols = narrow(config_.index_head_dim),
                      .eps = runner_.norm_eps(),
                      .x = index_.key_raw,
                      .x_stride = config_.index_head_dim,
                      .weight = weights.k_norm,
                      .y = index_.key});
  backend_->entry_write({.step = step_,
                         .ratio = narrow(layer.role.compress_ratio),
                         .width = narrow(width),
                         .key_width = narrow(config_.index_head_dim),
                         .pairs = narrow(config_.qk_rope_head_dim / 2),
                         .cos_sin = layer.role.compress_ratio == 1 ? angles_.compressed : angles_.pair,
                         .latent = index_.latent,
                         .key = index_.key,
                         .main_cache = cache_.main(source),
                         .key_cache = cache_.keys(source)});
}

void Decoder::select(const LayerWeights& layer) {
  const model::LayerRole& role = layer.role;
  const double factor = std::pow(static_cast<double>(config_.index_head_dim), -0.5) *
                        std::pow(static_cast<double>(config_.index_n_heads), -0.5);
  backend_->linear({.rows = step_.rows,
                    .x_q = runner_.scratch().qr_q,
                    .weight = &layer.indexer.wq_b,
                    .y = index_.q,
                    .y_stride = config_.index_width()});
  backend_->index_query({.rows = step_.rows,
                         .heads = narrow(config_.index_n_heads),
                         .width = narrow(config_.index_head_dim),
                         .pairs = narrow(config_.qk_rope_head_dim / 2),
                         .cos_sin = angles_.compressed,
                         .q = index_.q,
                         .packed = index_.q_packed,
                         .scales = index_.q_scales});
  backend_->linear({.rows = step_.rows,
                    .x = runner_.scratch().x,
                    .weight = &layer.indexer.weights_proj,
                    .y = index_.head_weight,
                    .y_stride = config_.index_n_heads});
  CandidateMode mode = CandidateMode::kNone;
  if (role.is_candidate_source) mode = CandidateMode::kProduce;
  if (role.uses_candidates) mode = CandidateMode::kRestrict;
  backend_->index_select({.step = step_,
                          .heads = narrow(config_.index_n_heads),
                          .width = narrow(config_.index_head_dim),
                          .ratio = narrow(role.compress_ratio),
                          .top_k = narrow(config_.index_topk),
                          .q_packed = index_.q_packed,
                          .q_scales = index_.q_scales,
                          .head_weight = index_.head_weight,
                          .weight_factor = static_cast<float>(factor),
                          .key_cache = cache_.keys(narrow(role.kv_source)),
                          .max_entries = entry_bound(role.compress_ratio),
                          .mode = mode,
                          .block_size = narrow(config_.candidate_block_size),
                          .max_blocks = narrow(config_.candidate_topk_blocks),
                          .candidate_blocks = index_.candidate_blocks,
                          .selected = index_.selected,
                          .scores = observer_ != nullptr ? observed_scores_ : nullptr});
  if (observer_ == nullptr) return;
  observe(layer_name(layer, "attn.indexer.scores"), ObservedType::kBf16, entry_bound(role.compress_ratio),
          observed_scores_);
  observe(layer_name(layer, "attn.selected"), ObservedType::kI32, config_.index_topk, index_.selected);
  if (mode != CandidateMode::kNone) {
    observe(layer_name(layer, "attn.indexer.candidate_blocks"), ObservedType::kI32,
            config_.candidate_topk_blocks, index_.candidate_blocks);
  }
}

}  // namespace spark::engine
