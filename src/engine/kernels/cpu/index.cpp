#include <algorithm>

#include "common/error.h"
#include "engine/kernels/cpu/index_scores.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/vectors.h"
#include "engine/numeric/bf16.h"

namespace spark::engine::cpu {
namespace {

constexpr int64_t kEntriesPerTask = 256;

struct Rows {
  const IndexSelectArgs& args;
  int64_t longest = 0;             // most visible entries of a row
  const RowView* heads = nullptr;  // [rows][heads]
  const float* weights = nullptr;  // [rows][heads]
  uint16_t* keys = nullptr;        // [rows][longest]
  int32_t* entries = nullptr;      // [rows][longest], the entries to be scored when they are not all
  int64_t* counts = nullptr;       // [rows] entries to be scored

  int64_t visible(int64_t t) const {
    return args.step.sequence[t] < 0 ? 0 : (args.step.position[t] + 1) / args.ratio;
  }
  // A debugger that asks for scores wants all of them.
  bool restricted() const { return args.mode == CandidateMode::kRestrict && args.scores == nullptr; }
};

void decode_queries(Context& ctx, const IndexSelectArgs& args, Rows& rows) {
  const int64_t width = args.width;
  const int64_t blocks = width / kBlock;
  const int64_t count = int64_t{args.step.rows} * args.heads;
  auto* values = ctx.values.get<float>(static_cast<size_t>(count * width));
  auto* scales = ctx.scales.get<float>(static_cast<size_t>(count * (blocks + 1)));
  auto* views = ctx.views.get<RowView>(static_cast<size_t>(count));
  float* weights = scales + count * blocks;
  ctx.rows.add(args.step.rows, static_cast<double>(count * width) / 4, [=](int64_t t, int) {
    for (int64_t i = t * args.heads; i < (t + 1) * args.heads; ++i) {
      decode_fp4_row(args.q_packed + i * width / 2, args.q_scales + i * blocks, width, values + i * width,
                     scales + i * blocks);
      views[i] = {values + i * width, scales + i * blocks};
      weights[i] = round_to_bf16(bf16_to_float(args.head_weight[i]) * args.weight_factor);
    }
  });
  rows.heads = views;
  rows.weights = weights;
}

void list_candidates(const Rows& rows, int64_t t) {
  const IndexSelectArgs& args = rows.args;
  const auto visible = static_cast<int32_t>(rows.visible(t));
  const int32_t* blocks = args.candidate_blocks + t * args.max_blocks;
  int32_t* out = rows.entries + t * rows.longest;
  int64_t count = 0;
  for (int32_t b = 0; b < args.max_blocks && blocks[b] >= 0; ++b) {
    const int32_t begin = blocks[b] * args.block_size;
    for (int32_t j = begin; j < std::min(begin + args.block_size, visible); ++j) out[count++] = j;
  }
  rows.counts[t] = count;
}

// Scores one stretch of a row's entries.
void score_stretch(const Rows& rows, int64_t t, int64_t begin, Buffer& scratch) {
  const IndexSelectArgs& args = rows.args;
  const IndexQuery query{rows.heads + t * args.heads, rows.weights + t * args.heads, args.heads, args.width};
  const int64_t end = std::min(begin + kEntriesPerTask, rows.counts[t]);
  const int32_t* list = rows.restricted() ? rows.entries + t * rows.longest : nullptr;
  uint16_t* keys = rows.keys + t * rows.longest;
  for (int64_t at = begin; at < end; at += kTile) {
    const auto count = static_cast<int>(std::min<int64_t>(kTile, end - at));
    const uint8_t* records[kTile];
    uint16_t scores[kTile];
    for (int i = 0; i < count; ++i) {
      const int64_t entry = list != nullptr ? list[at + i] : at + i;
      records[i] = record_of(args.key_cache, args.step.sequence[t], static_cast<int32_t>(entry));
    }
    score_keys(query, records, count, scratch, scores);
    for (int i = 0; i < count; ++i) {
      const int64_t entry = list != nullptr ? list[at + i] : at + i;
      keys[entry] = score_key(scores[i]);
      if (args.scores != nullptr) args.scores[t * args.max_entries + entry] = scores[i];
    }
  }
}

void choose_candidates(const Rows& rows, int64_t t, Buffer& scratch) {
  const IndexSelectArgs& args = rows.args;
  const int64_t visible = rows.visible(t);
  const uint16_t* keys = rows.keys + t * rows.longest;
  const int64_t blocks = (visible + args.block_size - 1) / args.block_size;
  auto* best = scratch.get<uint16_t>(static_cast<size_t>(blocks + 1));
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * args.block_size;
    best[b] = *std::max_element(keys + begin, keys + std::min(begin + args.block_size, visible));
  }
  if (blocks > 0) best[blocks - 1] = kAlwaysKept;
  select_best({best, static_cast<size_t>(blocks)}, args.max_blocks, args.max_blocks,
              args.candidate_blocks + t * args.max_blocks);
}

// Takes the entries outside the candidate blocks out, when they were scored.
void mask_others(const Rows& rows, int64_t t) {
  const IndexSelectArgs& args = rows.args;
  const int64_t visible = rows.visible(t);
  const int32_t* blocks = args.candidate_blocks + t * args.max_blocks;
  uint16_t* keys = rows.keys + t * rows.longest;
  int64_t kept_until = 0;
  for (int32_t b = 0; b < args.max_blocks && blocks[b] >= 0; ++b) {
    const int64_t begin = std::min<int64_t>(int64_t{blocks[b]} * args.block_size, visible);
    if (begin > kept_until) std::fill(keys + kept_until, keys + begin, uint16_t{0});
    kept_until = std::max(kept_until, std::min<int64_t>(begin + args.block_size, visible));
  }
  std::fill(keys + kept_until, keys + visible, uint16_t{0});
}

void finish_row(const Rows& rows, int64_t t, Buffer& scratch) {
  const IndexSelectArgs& args = rows.args;
  if (args.step.sequence[t] < 0) return;
  if (args.mode == CandidateMode::kProduce) choose_candidates(rows, t, scratch);
  if (args.mode == CandidateMode::kRestrict && !rows.restricted()) mask_others(rows, t);
  const uint16_t* keys = rows.keys + t * rows.longest;
  select_best({keys, static_cast<size_t>(rows.visible(t))}, args.top_k, args.top_k,
              args.selected + t * args.top_k);
}

}  // namespace

void index_query(Context& ctx, const IndexQueryArgs& args) {
  SPARK_CHECK(args.width % kBlock == 0);
  const int64_t width = args.width;
  const double cost = static_cast<double>(args.rows) * args.heads * args.width / 2;
  Buffer* const scratch = ctx.scratch.data();
  ctx.rows.add(args.rows, cost, [=](int64_t t, int worker) {
    auto* value = scratch[worker].get<float>(static_cast<size_t>(width));
    for (int64_t i = t * args.heads; i < (t + 1) * args.heads; ++i) {
      rotated_floats(args.q + i * width, width, args.cos_sin + t * args.pairs * 2, args.pairs, value);
      quantise_fp4_ue8m0(value, width, args.packed + i * width / 2, args.scales + i * (width / kBlock));
    }
  });
}

void index_select(Context& ctx, const IndexSelectArgs& args) {
  const int64_t count = args.step.rows;
  if (count <= 0) return;
  SPARK_CHECK(args.width % kBlock == 0);
  Rows rows{args};
  for (int64_t t = 0; t < count; ++t) rows.longest = std::max(rows.longest, rows.visible(t));
  decode_queries(ctx, args, rows);
  const auto cells = static_cast<size_t>(count * rows.longest);
  rows.counts = ctx.indices.get<int64_t>(static_cast<size_t>(count));
  rows.keys = ctx.results.get<uint16_t>(cells);
  if (rows.restricted()) {
    rows.entries = ctx.more_results.get<int32_t>(cells);
    std::fill_n(rows.keys, cells, uint16_t{0});
  }
  int64_t most = 0;
  int64_t all = 0;
  for (int64_t t = 0; t < count; ++t) {
    rows.counts[t] = rows.visible(t);
    if (rows.restricted() && args.step.sequence[t] >= 0) list_candidates(rows, t);
    most = std::max(most, rows.counts[t]);
    all += rows.counts[t];
  }
  const int64_t stretches = (most + kEntriesPerTask - 1) / kEntriesPerTask;
  const double cost = static_cast<double>(all * args.heads * args.width) / 30;
  ctx.fork(count * stretches, cost, [&](int64_t task, int worker) {
    score_stretch(rows, task / stretches, task % stretches * kEntriesPerTask,
                  ctx.scratch[static_cast<size_t>(worker)]);
  });
  ctx.fork(count, static_cast<double>(count * rows.longest) * 2,
           [&](int64_t t, int worker) { finish_row(rows, t, ctx.scratch[static_cast<size_t>(worker)]); });
}

}  // namespace spark::engine::cpu
