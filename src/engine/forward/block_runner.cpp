#include "engine/forward/block_runner.h"

#include <algorithm>
#include <cmath>

namespace spark::engine {
namespace {

QuantisedRows rows_from(const QuantisedRows& rows, int64_t first, int64_t cols) {
  return {.codes = rows.codes + first * cols, .scales = rows.scales + first * cols / 32};
}

StepRows rows_of(const StepRows& step, RowRange range) {
  StepRows part = step;
  part.rows = range.rows;
  for (const int32_t** field :
       {&part.token, &part.position, &part.sequence, &part.first_row, &part.last_row, &part.window_start}) {
    *field += range.first;
  }
  part.is_image += range.first;
  return part;
}

}  // namespace

RowRange BlockRunner::held_rows(const StepRows& step) const {
  if (!spreads(step)) return {0, step.rows};
  return own_rows(step.rows, communicator_.rank(), communicator_.ranks());
}

StepRows BlockRunner::held(const StepRows& step) const {
  return rows_of(step, held_rows(step));
}

void BlockRunner::join_rows(const StepRows& step, std::initializer_list<SpreadRows> arrays) {
  if (spreads(step)) communicator_.gather_rows({arrays.begin(), arrays.size()}, step.rows);
}

void BlockRunner::join_streams(const StepRows& step) {
  join_rows(step, {{scratch_.h, 2 * config_.stream_width()}, {scratch_.expert_mix.pre, 4 * config_.hc_mult}});
}

void BlockRunner::sum(const StepRows& step, uint16_t* x, int64_t cols) {
  if (spreads(step)) {
    communicator_.sum_own_rows(x, step.rows, narrow(cols));
  } else {
    communicator_.sum_rows(x, step.rows, narrow(cols));
  }
}

void BlockRunner::embed(const StepRows& step, const Weight& table, const uint16_t* overrides,
                        const int32_t* override_rows) {
  backend_.embed({.step = step,
                  .streams = narrow(config_.hc_mult),
                  .hidden = narrow(config_.hidden_size),
                  .table = &table,
                  .first_vocab_row = communicator_.rank() * split_.vocabulary,
                  .overrides = overrides,
                  .override_rows = override_rows,
                  .h = scratch_.h,
                  .pre = scratch_.expert_mix.pre});
  // Every row is whole on one rank and zero on the others, so that BF16 is exact.
  sum(step, scratch_.h, config_.stream_width());
}

void BlockRunner::mix(const StepRows& step, const MhcWeights& weights, const MixBuffers& out) {
  const RowRange own = held_rows(step);
  const int64_t streams = config_.hc_mult;
  backend_.mhc_mix({.rows = own.rows,
                    .streams = narrow(config_.hc_mult),
                    .hidden = narrow(config_.hidden_size),
                    .iterations = narrow(config_.hc_sinkhorn_iters),
                    .eps = static_cast<float>(config_.hc_eps),
                    .norm_eps = norm_eps(),
                    .h = scratch_.h + own.first * config_.stream_width(),
                    .fn = &weights.fn,
                    .scale = weights.scale,
                    .base = weights.base,
                    .pre = out.pre + own.first * streams,
                    .post = out.post + own.first * streams,
                    .comb = out.comb + own.first * streams * streams});
}

void BlockRunner::collapse(const StepRows& step, const float* pre, const uint16_t* norm) {
  const RowRange own = held_rows(step);
  backend_.mhc_collapse({.rows = own.rows,
                         .streams = narrow(config_.hc_mult),
                         .hidden = narrow(config_.hidden_size),
                         .norm_eps = norm_eps(),
                         .h = scratch_.h + own.first * config_.stream_width(),
                         .pre = pre + own.first * config_.hc_mult,
                         .norm_weight = norm,
                         .x = scratch_.x + own.first * config_.hidden_size,
                         .x_q = rows_from(scratch_.x_q, own.first, config_.hidden_size)});
}

void BlockRunner::expand(const StepRows& step, const MixBuffers& mix) {
  const RowRange own = held_rows(step);
  const int64_t streams = config_.hc_mult;
  backend_.mhc_expand({.rows = own.rows,
                       .streams = narrow(config_.hc_mult),
                       .hidden = narrow(config_.hidden_size),
                       .y = scratch_.y + own.first * config_.hidden_size,
                       .post = mix.post + own.first * streams,
                       .comb = mix.comb + own.first * streams * streams,
                       .h = scratch_.h + own.first * config_.stream_width()});
}

void BlockRunner::attention_input(const StepRows& step, const BlockWeights& block) {
  collapse(step, scratch_.expert_mix.pre, block.attention.norm);
  join_rows(step, {{scratch_.x, 2 * config_.hidden_size}});
}

void BlockRunner::begin_attention(const StepRows& step, const BlockWeights& block, const float* cos_sin,
                                  bool reads_input) {
  const AttentionWeights& weights = block.attention;
  const int32_t q_rank = narrow(config_.q_lora_rank);
  const int32_t width = narrow(config_.head_dim);
  mix(step, block.attention_mix, scratch_.attention_mix);
  collapse(step, scratch_.expert_mix.pre, weights.norm);
  const RowRange own = held_rows(step);
  backend_.linear({.rows = own.rows,
                   .x_q = rows_from(scratch_.x_q, own.first, config_.hidden_size),
                   .weight = &weights.wq_a_kv,
                   .y = scratch_.q_kv + int64_t{own.first} * (q_rank + width),
                   .y_stride = q_rank + width});
  join_rows(step, {{scratch_.q_kv, 2 * int64_t{q_rank + width}}});
  if (reads_input) join_rows(step, {{scratch_.x, 2 * config_.hidden_size}});
  backend_.rms_norm({.rows = step.rows,
                     .cols = q_rank,
                     .eps = norm_eps(),
                     .x = scratch_.q_kv,
                     .x_stride = q_rank + width,
                     .weight = weights.q_norm,
                     .y_q = scratch_.qr_q});
  backend_.rms_norm({.rows = step.rows,
                     .cols = width,
                     .eps = norm_eps(),
                     .x = scratch_.q_kv + q_rank,
                     .x_stride = q_rank + width,
                     .weight = weights.kv_norm,
                     .y = scratch_.kv});
  backend_.linear({.rows = step.rows,
                   .x_q = scratch_.qr_q,
                   .weight = &weights.wq_b,
                   .y = scratch_.q,
                   .y_stride = split_.heads * width});
  backend_.rope({.rows = step.rows,
                 .heads = narrow(split_.heads),
                 .width = width,
                 .pairs = narrow(config_.qk_rope_head_dim / 2),
                 .cos_sin = cos_sin,
                 .x = scratch_.q});
}

void BlockRunner::attention_output(const StepRows& step, const BlockWeights& block,
                                   const AttentionView& view) {
  const int32_t o_low = narrow(split_.groups * config_.o_lora_rank);
  backend_.sparse_attention(
      {.step = step,
       .heads = narrow(split_.heads),
       .width = narrow(config_.head_dim),
       .pairs = narrow(config_.qk_rope_head_dim / 2),
       .window = narrow(config_.sliding_window),
       .scale = static_cast<float>(std::pow(static_cast<double>(config_.head_dim), -0.5)),
       .order = view.order,
       .q = scratch_.q,
       .window_cache = view.window,
       .window_end = view.window_end,
       .main_cache = view.main,
       .selected = view.selected,
       .max_selected = view.main.base == nullptr ? 0 : narrow(config_.index_topk),
       .extra = view.extra,
       .sink = block.attention.sink,
       .cos_sin = view.cos_sin,
       .o = scratch_.o});
  backend_.grouped_linear({.rows = step.rows,
                           .groups = narrow(split_.groups),
                           .x = scratch_.o,
                           .weight = &block.attention.wo_a,
                           .y = scratch_.o_low});
  backend_.quantise({.rows = step.rows, .cols = o_low, .x = scratch_.o_low, .out = scratch_.o_low_q});
  backend_.linear({.rows = step.rows,
                   .x_q = scratch_.o_low_q,
                   .weight = &block.attention.wo_b,
                   .y = scratch_.y_f64 == nullptr ? scratch_.y : nullptr,
                   .y_f64 = scratch_.y_f64,
                   .y_stride = config_.hidden_size});
  if (scratch_.y_f64 == nullptr) return sum(step, scratch_.y, config_.hidden_size);
  communicator_.sum_partials({.x = scratch_.y_f64,
                              .rows = step.rows,
                              .cols = narrow(config_.hidden_size),
                              .y = scratch_.y,
                              .own_rows_only = spreads(step)});
}

void BlockRunner::add_attention(const StepRows& step) {
  expand(step, scratch_.attention_mix);
}

void BlockRunner::begin_experts(const StepRows& step, const BlockWeights& block) {
  const ExpertLayerWeights& weights = block.experts;
  mix(step, block.expert_mix, scratch_.expert_mix);
  collapse(step, scratch_.attention_mix.pre, weights.norm);
  const RowRange own = held_rows(step);
  float* logits = scratch_.router_logits + int64_t{own.first} * weights.experts;
  backend_.linear({.rows = own.rows,
                   .x = scratch_.x + own.first * config_.hidden_size,
                   .weight = &weights.gate,
                   .y_f32 = logits,
                   .y_stride = weights.experts});
  backend_.route({.step = held(step),
                  .experts = weights.experts,
                  .top_k = weights.top_k,
                  .scale = static_cast<float>(config_.routed_scaling_factor),
                  .logits = logits,
                  .bias = weights.bias,
                  .image_bias = weights.image_bias,
                  .ids = scratch_.expert_ids + int64_t{own.first} * weights.top_k,
                  .weights = scratch_.expert_weights + int64_t{own.first} * weights.top_k});
  join_rows(step, {{scratch_.x_q.codes, config_.hidden_size},
                   {scratch_.x_q.scales, config_.hidden_size / 32},
                   {scratch_.expert_ids, 4 * int64_t{weights.top_k}},
                   {scratch_.expert_weights, 4 * int64_t{weights.top_k}}});
}

ExpertsArgs BlockRunner::expert_args(const StepRows& step, const BlockWeights& block, RowRange range) const {
  const ExpertLayerWeights& weights = block.experts;
  const int64_t chosen = int64_t{range.first} * weights.top_k;
  return {.step = rows_of(step, range),
          .hidden = narrow(config_.hidden_size),
          .width = narrow(split_.expert_width),
          .top_k = weights.top_k,
          .limit = static_cast<float>(config_.swiglu_limit),
          .x_q = rows_from(scratch_.x_q, range.first, config_.hidden_size),
          .ids = scratch_.expert_ids + chosen,
          .weights = scratch_.expert_weights + chosen,
          .bank = &weights.bank,
          .shared = &weights.shared};
}

void BlockRunner::expert_output(const StepRows& step, const BlockWeights& block) {
  if (scratch_.y_f64 == nullptr) {
    ExpertsArgs args = expert_args(step, block, {0, step.rows});
    args.y = scratch_.y;
    backend_.experts(args);
    return sum(step, scratch_.y, config_.hidden_size);
  }
  // Every rank gets all rows, also where it goes on with its own: slices and ranks do not share borders.
  for (int32_t first = 0; first < step.rows; first += kExpertSlice) {
    const RowRange range{first, std::min(kExpertSlice, step.rows - first)};
    ExpertsArgs args = expert_args(step, block, range);
    args.y_f64 = scratch_.y_f64;
    backend_.experts(args);
    communicator_.sum_partials({.x = scratch_.y_f64,
                                .rows = range.rows,
                                .terms = args.top_k + 1,
                                .cols = args.hidden,
                                .y = scratch_.y + int64_t{first} * config_.hidden_size});
  }
}

void BlockRunner::add_experts(const StepRows& step) {
  expand(step, scratch_.expert_mix);
}

void BlockRunner::final_hidden(const StepRows& step, const uint16_t* norm, uint16_t* u, uint16_t* x) {
  const RowRange own = held_rows(step);
  const int64_t first = own.first * config_.hidden_size;
  backend_.mhc_collapse({.rows = own.rows,
                         .streams = narrow(config_.hc_mult),
                         .hidden = narrow(config_.hidden_size),
                         .norm_eps = norm_eps(),
                         .h = scratch_.h + own.first * config_.stream_width(),
                         .pre = scratch_.expert_mix.pre + own.first * config_.hc_mult,
                         .norm_weight = norm,
                         .u = u == nullptr ? nullptr : u + first,
                         .x = x + first});
  join_rows(step, {{x, 2 * config_.hidden_size}});
  if (u != nullptr) join_rows(step, {{u, 2 * config_.hidden_size}});
}

}  // namespace spark::engine
