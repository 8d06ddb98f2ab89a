#include "engine/forward/drafter.h"

#include <algorithm>

#include "common/error.h"
#include "engine/collective/together.h"
#include "engine/forward/scratch.h"

namespace spark::engine {

Drafter::Drafter(Backend& backend, Communicator& communicator, const model::ModelConfig& config,
                 const model::RankSplit& split, WeightLoader& loader, const DecoderWeights& decoder,
                 CachePool& cache, const float* plain_freq, const CacheLimits& limits, CollectiveDtype sums)
    : backend_(backend),
      communicator_(communicator),
      config_(config),
      split_(split),
      decoder_(decoder),
      cache_(cache),
      weights_(load_drafter_weights(loader, config)),
      arrays_(backend, limits.max_sequences * static_cast<int32_t>(config.dspark_block_size)),
      runner_(backend, communicator, config, split,
              allocate_block_scratch(backend, config, split, limits.max_sequences * config.dspark_block_size,
                                     sums)),
      plain_freq_(plain_freq) {
  const int64_t drafts = limits.max_sequences * config.dspark_block_size;
  const int64_t rows = limits.max_step_rows;
  angles_ = allocate_array<float>(backend, drafts * config.qk_rope_head_dim);
  records_ =
      allocate_array<uint8_t>(backend, drafts * window_record_bytes(static_cast<int32_t>(config.head_dim)));
  collapsed_ = allocate_array<uint16_t>(backend, drafts * config.hidden_size);
  const bool solo = split.ranks == 1;
  base_part_ = allocate_array<float>(backend, drafts * split.vocabulary);
  base_ = solo ? base_part_ : allocate_array<float>(backend, drafts * config.vocab_size);
  tokens_ = allocate_array<int32_t>(backend, drafts);
  confidence_ = allocate_array<float>(backend, drafts);
  aux_q_ = allocate_quantised(backend, rows, config.main_proj_input());
  main_part_ = allocate_array<uint16_t>(backend, rows * split.main_output);
  main_raw_ = solo ? main_part_ : allocate_array<uint16_t>(backend, rows * config.hidden_size);
  main_x_ = allocate_array<uint16_t>(backend, rows * config.hidden_size);
  main_q_ = allocate_quantised(backend, rows, config.hidden_size);
  kv_raw_ = allocate_array<uint16_t>(backend, rows * config.head_dim);
  kv_ = allocate_array<uint16_t>(backend, rows * config.head_dim);
}

void Drafter::follow(const StepRows& step, const uint16_t* aux, const float* cos_sin) {
  const int32_t hidden = static_cast<int32_t>(config_.hidden_size);
  const int32_t width = static_cast<int32_t>(config_.head_dim);
  backend_.quantise(
      {.rows = step.rows, .cols = static_cast<int32_t>(config_.main_proj_input()), .x = aux, .out = aux_q_});
  backend_.linear({.rows = step.rows,
                   .x_q = aux_q_,
                   .weight = &weights_.main_proj,
                   .y = main_part_,
                   .y_stride = split_.main_output});
  if (split_.ranks > 1) {
    communicator_.gather_columns({.part = main_part_,
                                  .rows = step.rows,
                                  .part_cols = narrow(split_.main_output),
                                  .all_cols = hidden,
                                  .element_bytes = sizeof(uint16_t),
                                  .all = main_raw_});
  }
  backend_.rms_norm({.rows = step.rows,
                     .cols = hidden,
                     .eps = runner_.norm_eps(),
                     .x = main_raw_,
                     .x_stride = hidden,
                     .weight = weights_.main_norm,
                     .y = main_x_,
                     .y_q = main_q_});
  for (size_t m = 0; m < weights_.blocks.size(); ++m) {
    backend_.linear(
        {.rows = step.rows, .x_q = main_q_, .weight = &weights_.wkv[m], .y = kv_raw_, .y_stride = width});
    backend_.rms_norm({.rows = step.rows,
                       .cols = width,
                       .eps = runner_.norm_eps(),
                       .x = kv_raw_,
                       .x_stride = width,
                       .weight = weights_.blocks[m].attention.kv_norm,
                       .y = kv_});
    backend_.window_write(
        {.step = step,
         .width = width,
         .pairs = static_cast<int32_t>(config_.qk_rope_head_dim / 2),
         .cos_sin = cos_sin,
         .kv = kv_,
         .cache = cache_.window(static_cast<int32_t>(config_.num_hidden_layers) + static_cast<int32_t>(m))});
  }
}

Drafts Drafter::draft(std::span<const DraftRequest> requests) {
  SPARK_CHECK(static_cast<int32_t>(requests.size()) <= cache_.shape().limits.max_sequences);
  arrays_.clear();
  for (const DraftRequest& request : requests) {
    SPARK_CHECK(cache_.is_open(request.sequence) && request.position >= 0 &&
                request.position < cache_.length(request.sequence));
    for (int32_t i = 0; i < block_size(); ++i) {
      arrays_.add({.token = i == 0 ? request.anchor : config_.dspark_noise_token_id,
                   .position = request.position + 1 + i,
                   .sequence = request.sequence,
                   .window_end = request.position});
    }
  }
  host_tokens_.assign(static_cast<size_t>(arrays_.size()), 0);
  host_confidence_.assign(static_cast<size_t>(arrays_.size()), 0.0F);
  proposals_.clear();
  if (arrays_.size() > 0) {
    cache_.upload_tables();
    const StepRows step = arrays_.upload();
    const bool drawn = std::any_of(requests.begin(), requests.end(),
                                   [](const DraftRequest& each) { return each.filter.temperature > 0; });
    const uint64_t key = (uint64_t{1} << 63) | (drawn ? uint64_t{1} << 62 : 0) |
                         (logits_wanted_ ? uint64_t{1} << 61 : 0) | static_cast<uint64_t>(step.rows);
    const auto work = [&] {
      forward(step);
      if (!drawn) head(step, -1, logits_wanted_ ? logits_ : nullptr);
    };
    together(communicator_, [&] {
      if (communicator_.recordable()) {
        backend_.run_recorded(key, work);
      } else {
        work();
      }
    });
    if (drawn) draw(step, requests);
    backend_.download(host_tokens_.data(), tokens_, host_tokens_.size() * sizeof(int32_t));
    backend_.download(host_confidence_.data(), confidence_, host_confidence_.size() * sizeof(float));
  }
  return {.tokens = host_tokens_, .confidence = host_confidence_, .proposals = proposals_};
}

void Drafter::forward(const StepRows& step) {
  const int32_t pairs = static_cast<int32_t>(config_.qk_rope_head_dim / 2);
  const int32_t width = static_cast<int32_t>(config_.head_dim);
  const BlockScratch& scratch = runner_.scratch();
  backend_.rope_angles({.step = step, .pairs = pairs, .freq = plain_freq_, .cos_sin = angles_});
  runner_.embed(step, decoder_.embed, nullptr, nullptr);
  for (size_t m = 0; m < weights_.blocks.size(); ++m) {
    const BlockWeights& block = weights_.blocks[m];
    runner_.begin_attention(step, block, angles_, false);
    backend_.window_write({.step = step,
                           .width = width,
                           .pairs = pairs,
                           .cos_sin = angles_,
                           .kv = scratch.kv,
                           .records = records_});
    runner_.attention_output(
        step, block,
        {.cos_sin = angles_,
         .window = cache_.window(static_cast<int32_t>(config_.num_hidden_layers) + static_cast<int32_t>(m)),
         .order = WindowOrder::kRingSlot,
         .window_end = arrays_.window_end(),
         .extra = records_});
    runner_.add_attention(step);
    runner_.begin_experts(step, block);
    runner_.expert_output(step, block);
    runner_.add_experts(step);
  }
  runner_.final_hidden(step, weights_.norm, collapsed_, scratch.x);
  backend_.linear({.rows = step.rows,
                   .x = scratch.x,
                   .weight = &decoder_.head,
                   .y_f32 = base_part_,
                   .y_stride = split_.vocabulary});
  if (split_.ranks > 1) {
    communicator_.gather_columns({.part = base_part_,
                                  .rows = step.rows,
                                  .part_cols = narrow(split_.vocabulary),
                                  .all_cols = narrow(config_.vocab_size),
                                  .element_bytes = sizeof(float),
                                  .all = base_});
  }
}

void Drafter::head(const StepRows& step, int32_t place, float* logits) {
  backend_.draft({.step = step,
                  .vocab = static_cast<int32_t>(config_.vocab_size),
                  .hidden = static_cast<int32_t>(config_.hidden_size),
                  .rank = static_cast<int32_t>(config_.dspark_markov_rank),
                  .block_rows = block_size(),
                  .place = place,
                  .x = collapsed_,
                  .base = base_,
                  .embed = &weights_.markov_embed,
                  .head = &weights_.markov_head,
                  .confidence_proj = &weights_.confidence_proj,
                  .draft = tokens_,
                  .confidence = confidence_,
                  .logits = logits});
}

// Place by place: the next draft's logits depend on the token drawn.
void Drafter::draw(const StepRows& step, std::span<const DraftRequest> requests) {
  SPARK_CHECK(block_size() <= kMaxDrafts);
  allocate_logits();
  const size_t vocab = static_cast<size_t>(config_.vocab_size);
  row_logits_.resize(vocab);
  size_t drawing = 0;
  for (const DraftRequest& request : requests) drawing += request.filter.temperature > 0 ? 1 : 0;
  const size_t block = static_cast<size_t>(block_size());
  proposals_.resize(drawing * block);
  for (size_t place = 0; place < block; ++place) {
    head(step, static_cast<int32_t>(place), logits_);
    size_t proposal = place;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!(requests[i].filter.temperature > 0)) continue;
      const size_t row = i * block + place;
      backend_.download(row_logits_.data(), logits_ + row * vocab, vocab * sizeof(float));
      proposals_[proposal].assign(row_logits_, requests[i].filter);
      const int32_t token = proposals_[proposal].draw(requests[i].uniforms[place]);
      backend_.upload(tokens_ + row, &token, sizeof(token));
      proposal += block;
    }
  }
}

void Drafter::allocate_logits() {
  const int64_t drafts = cache_.shape().limits.max_sequences * config_.dspark_block_size;
  if (logits_ == nullptr) logits_ = allocate_array<float>(backend_, drafts * config_.vocab_size);
}

void Drafter::keep_logits() {
  allocate_logits();
  logits_wanted_ = true;
}

std::vector<float> Drafter::download(const float* from) const {
  std::vector<float> host(static_cast<size_t>(arrays_.size()) * static_cast<size_t>(config_.vocab_size));
  backend_.download(host.data(), from, host.size() * sizeof(float));
  return host;
}

std::vector<float> Drafter::base_logits() const {
  return download(base_);
}

std::vector<float> Drafter::logits() const {
  SPARK_CHECK(logits_ != nullptr);
  return download(logits_);
}

}  // namespace spark::engine
