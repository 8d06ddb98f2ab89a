#include "ops/plan/speed.h"

#include <algorithm>
#include <cmath>

#include "model/cost.h"
#include "model/layer_plan.h"
#include "model/split.h"
#include "ops/plan/memory.h"

namespace spark::ops {
namespace {

// Sequence-parallel prefill: a gather before and a reduce-scatter after each of the two sublayers.
constexpr int64_t kExchangesPerLayer = 4;

double to_real(int64_t value) {
  return static_cast<double>(value);
}

bool is_fitted(const PlanRequest& request) {
  return request.engine == EngineKind::kVllm;
}

// One small all-reduce of `bytes`, every rank's rows summed on every rank.
double small_all_reduce(const PlanRequest& request, double bytes) {
  if (request.ranks == 1) return 0;
  const Calibration& c = calibration();
  const bool ring = request.ranks > 3 || (request.transport != nullptr && request.transport->neighbour_ring);
  const bool one_shot = request.transport == nullptr || request.transport->one_shot;
  // Direct: the rows go to every peer over its own cable. Ring: what passes a cable in one direction is half
  // of the other ranks' rows.
  const double passes = ring ? to_real(request.ranks - 1) / 2 : 1;
  const double latency = !one_shot ? c.nccl_latency_s.value
                         : ring    ? c.ring_latency_s.value
                                   : c.direct_latency_s.value;
  return (is_fitted(request) ? latency : 0) + passes * bytes / c.link_bytes_per_s.value;
}

// A reduce-scatter, or a gather, of `bytes` altogether.
double bulk_exchange(const PlanRequest& request, double bytes) {
  if (request.ranks == 1) return 0;
  const Calibration& c = calibration();
  const double ranks = to_real(request.ranks);
  const bool ring = request.ranks > 3 || (request.transport != nullptr && request.transport->neighbour_ring);
  const double share = ring ? (ranks - 1) / ranks / 2 : 1 / ranks;
  return share * bytes / (is_fitted(request) ? c.bulk_bytes_per_s : c.link_bytes_per_s).value;
}

// Padded heads cost what real ones do.
double padding(const model::RankSplit& split) {
  return to_real(split.padded_groups()) / to_real(split.all_groups);
}

// Layers that every row of a prompt runs; those after them, from the last source of a cache on, run for the
// last rows of a chunk only.
int64_t encoder_layers(const model::ModelConfig& c) {
  const auto& sources = c.kv_source_layer_ids;
  return sources.empty() ? c.num_hidden_layers : *std::max_element(sources.begin(), sources.end());
}

struct ChunkWork {
  double dense = 0;
  double scores = 0;
};

ChunkWork chunk_work(const model::ModelConfig& c, const model::RankSplit& split, int64_t rows,
                     int64_t context) {
  const model::LayerPlan plan = model::make_layer_plan(c);
  const int64_t encoder_end = encoder_layers(c);
  const int64_t window = std::min(rows, c.sliding_window);
  ChunkWork work;
  for (const model::LayerRole& role : plan.layers) {
    const bool skips = role.layer >= encoder_end;
    const model::LayerFlops flops = model::layer_flops(c, role, context);
    const double scale = padding(split);
    const double dense = (flops.projections + flops.core) * scale + flops.experts + flops.router +
                         flops.streams + flops.index_queries + flops.engram;
    const double layer_rows = to_real(skips ? window : rows);
    work.dense += dense * layer_rows + flops.compressor * to_real(rows);
    work.scores += flops.index_scores * layer_rows;
  }
  return work;
}

// Weight bytes of the decoder's layers for the last rows of a chunk; the encoder's are hidden behind its
// operations.
double window_bytes(const PlanRequest& request, const model::CostModel& cost, int64_t rows, int64_t context) {
  const model::ModelConfig& c = request.model;
  const int64_t window = std::min(rows, c.sliding_window);
  double bytes = 0;
  for (int64_t layer = encoder_layers(c); layer < c.num_hidden_layers; ++layer) {
    const model::LayerBytes read =
        cost.layer(layer, {.streams = 1, .rows_per_stream = window, .context = context});
    bytes += read.replicated + read.split + read.routed;
  }
  return bytes;
}

double collective_time(const PlanRequest& request, double rows) {
  const model::ModelConfig& c = request.model;
  const model::CollectivePayloads payloads = model::collective_payloads(c);
  const double row_bytes = to_real(payloads.sublayer);
  double seconds = small_all_reduce(request, to_real(payloads.embedding) * rows);
  seconds += to_real(payloads.all_reduces) * small_all_reduce(request, row_bytes * rows);
  seconds += to_real(static_cast<int64_t>(c.engram_layer_ids.size())) *
             small_all_reduce(request, to_real(payloads.engram_gather) * rows / to_real(request.ranks));
  // The drafter's layers, and one exchange of best tokens per draft.
  const int64_t draft_layers = request.drafts > 0 ? c.num_nextn_predict_layers : 0;
  seconds += to_real(2 * draft_layers + 1) * small_all_reduce(request, row_bytes * to_real(request.drafts));
  seconds +=
      to_real(request.drafts + 1) * small_all_reduce(request, to_real(payloads.greedy_per_rank) * rows);
  return seconds;
}

}  // namespace

SpeedModel::SpeedModel(const PlanRequest& request)
    : request_(request),
      split_(model::split_for(request.model, request.ranks)),
      cost_(request.model, split_) {}

StepTime SpeedModel::step(const Workload& workload, int64_t streams, int64_t context) const {
  const PlanRequest& request = request_;
  const Calibration& c = calibration();
  double drafts = to_real(request.drafts);
  if (is_fitted(request) && request.adaptive) {
    drafts = std::min(drafts, verified_drafts(workload, to_real(streams)));
  }
  StepTime step;
  step.streams = streams;
  step.rows = to_real(streams) * (1 + drafts);
  const auto bytes_at = [&](int64_t rows_per_stream) {
    const model::StepBytes bytes =
        cost_.step({.streams = streams,
                    .rows_per_stream = rows_per_stream,
                    .context = context,
                    .routing_exponent = is_fitted(request) ? c.routing_exponent.value : 1});
    // The Markov head is read for every draft of a block; a vLLM rank reads its part only.
    const double markov = to_real(request.model.dspark_block_size) * markov_bytes_elsewhere(request);
    return bytes.target + (request.drafts > 0 ? bytes.draft - markov : 0);
  };
  const auto below = static_cast<int64_t>(std::floor(1 + drafts));
  const double share = 1 + drafts - to_real(below);
  step.bytes = bytes_at(below);
  if (share > 0) step.bytes += share * (bytes_at(below + 1) - step.bytes);
  step.memory_s = step.bytes / c.stream_bytes_per_s.value;
  step.collective_s = collective_time(request, step.rows);
  const double tokens = request.drafts == 0 ? 1 : workload.tokens_per_step;
  if (is_fitted(request)) step.tokens_per_s = tokens * to_real(streams) / step.total_s();
  return step;
}

PrefillTime SpeedModel::prefill(int64_t tokens) const {
  const PlanRequest& request = request_;
  const Calibration& c = calibration();
  const double ranks = to_real(request.ranks);
  const double dense_rate = (is_fitted(request) ? c.dense_flops_per_s : c.fp8_flops_per_s).value;
  const double score_rate = (is_fitted(request) ? c.score_flops_per_s : c.fp8_flops_per_s).value;
  PrefillTime time;
  time.tokens = tokens;
  const int64_t chunk = std::max<int64_t>(1, request.max_num_batched_tokens);
  for (int64_t at = 0; at < tokens; at += chunk) {
    const int64_t rows = std::min(chunk, tokens - at);
    const int64_t context = at + rows / 2;
    const ChunkWork work = chunk_work(request.model, split_, rows, context);
    time.flops += work.dense + work.scores;
    time.dense_s += work.dense / ranks / dense_rate;
    time.score_s += work.scores / ranks / score_rate;
    time.window_s += window_bytes(request, cost_, rows, context) / c.stream_bytes_per_s.value;
    const double buffer = to_real(rows * model::collective_payloads(request.model).sublayer);
    time.collective_s +=
        to_real(kExchangesPerLayer * encoder_layers(request.model)) * bulk_exchange(request, buffer);
  }
  return time;
}

}  // namespace spark::ops
