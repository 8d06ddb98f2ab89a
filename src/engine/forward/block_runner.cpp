#include "engine/forward/block_runner.h"

#include <cmath>

namespace spark::engine {
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
  // Every row is whole on one rank and zero on the others.
  communicator_.sum_rows(scratch_.h, step.rows, narrow(config_.stream_width()));
}

void BlockRunner::mix(const StepRows& step, const MhcWeights& weights, const MixBuffers& out) {
  backend_.mhc_mix({.rows = step.rows,
                    .streams = narrow(config_.hc_mult),
                    .hidden = narrow(config_.hidden_size),
                    .iterations = narrow(config_.hc_sinkhorn_iters),
                    .eps = static_cast<float>(config_.hc_eps),
                    .norm_eps = norm_eps(),
                    .h = scratch_.h,
                    .fn = &weights.fn,
                    .scale = weights.scale,
                    .base = weights.base,
                    .pre = out.pre,
                    .post = out.post,
                    .comb = out.comb});
}

void BlockRunner::collapse(const StepRows& step, const float* pre, const uint16_t* norm) {
  backend_.mhc_collapse({.rows = step.rows,
                         .streams = narrow(config_.hc_mult),
                         .hidden = narrow(config_.hidden_size),
                         .norm_eps = norm_eps(),
                         .h = scratch_.h,
                         .pre = pre,
                         .norm_weight = norm,
                         .x = scratch_.x,
                         .x_q = scratch_.x_q});
}

void BlockRunner::expand(const StepRows& step, const MixBuffers& mix) {
  backend_.mhc_expand({.rows = step.rows,
                       .streams = narrow(config_.hc_mult),
                       .hidden = narrow(config_.hidden_size),
                       .y = scratch_.y,
                       .post = mix.post,
                       .comb = mix.comb,
                       .h = scratch_.h});
}

void BlockRunner::attention_input(const StepRows& step, const BlockWeights& block) {
  collapse(step, scratch_.expert_mix.pre, block.attention.norm);
}

void BlockRunner::begin_attention(const StepRows& step, const BlockWeights& block, const float* cos_sin) {
  const AttentionWeights& weights = block.attention;
  const int32_t q_rank = narrow(config_.q_lora_rank);
  const int32_t width = narrow(config_.head_dim);
  mix(step, block.attention_mix, scratch_.attention_mix);
  attention_input(step, block);
  backend_.linear({.rows = step.rows,
                   .x_q = scratch_.x_q,
                   .weight = &weights.wq_a_kv,
                   .y = scratch_.q_kv,
                   .y_stride = q_rank + width});
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
                   .y = scratch_.y,
                   .y_stride = config_.hidden_size});
  communicator_.sum_rows(scratch_.y, step.rows, narrow(config_.hidden_size));
}

void BlockRunner::add_attention(const StepRows& step) {
  expand(step, scratch_.attention_mix);
}

void BlockRunner::begin_experts(const StepRows& step, const BlockWeights& block) {
  const ExpertLayerWeights& weights = block.experts;
  mix(step, block.expert_mix, scratch_.expert_mix);
  collapse(step, scratch_.attention_mix.pre, weights.norm);
  backend_.linear({.rows = step.rows,
                   .x = scratch_.x,
                   .weight = &weights.gate,
                   .y_f32 = scratch_.router_logits,
                   .y_stride = weights.experts});
  backend_.route({.step = step,
                  .experts = weights.experts,
                  .top_k = weights.top_k,
                  .scale = static_cast<float>(config_.routed_scaling_factor),
                  .logits = scratch_.router_logits,
                  .bias = weights.bias,
                  .image_bias = weights.image_bias,
                  .ids = scratch_.expert_ids,
                  .weights = scratch_.expert_weights});
}

void BlockRunner::expert_output(const StepRows& step, const BlockWeights& block) {
  const ExpertLayerWeights& weights = block.experts;
  backend_.experts({.step = step,
                    .hidden = narrow(config_.hidden_size),
                    .width = narrow(split_.expert_width),
                    .top_k = weights.top_k,
                    .limit = static_cast<float>(config_.swiglu_limit),
                    .x_q = scratch_.x_q,
                    .ids = scratch_.expert_ids,
                    .weights = scratch_.expert_weights,
                    .bank = &weights.bank,
                    .shared = &weights.shared,
                    .y = scratch_.y});
  communicator_.sum_rows(scratch_.y, step.rows, narrow(config_.hidden_size));
}

void BlockRunner::add_experts(const StepRows& step) {
  expand(step, scratch_.expert_mix);
}

void BlockRunner::final_hidden(const StepRows& step, const uint16_t* norm, uint16_t* u, uint16_t* x) {
  backend_.mhc_collapse({.rows = step.rows,
                         .streams = narrow(config_.hc_mult),
                         .hidden = narrow(config_.hidden_size),
                         .norm_eps = norm_eps(),
                         .h = scratch_.h,
                         .pre = scratch_.expert_mix.pre,
                         .norm_weight = norm,
                         .u = u,
                         .x = x});
}

}  // namespace spark::engine
