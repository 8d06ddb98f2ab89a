#include <algorithm>

#include "common/error.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/rows.h"

namespace spark::engine::cpu {
namespace {

// The best of a stretch of logits; the lowest id wins ties.
struct Best {
  float logit = 0;
  int32_t id = -1;
};

// Logits of one tile for the rows, and the best of each row within it.
struct Round {
  const DraftArgs& args;
  const PackedWeight& head;
  const int64_t* rows;  // step rows of this round
  int64_t count;
  const RowView* views;
  Best* best;  // [tiles][count]
};

void draft_tile(const Round& round, int64_t tile, Buffer& scratch) {
  const int64_t vocab = round.args.vocab;
  auto* z = scratch.get<float>(static_cast<size_t>(padded_rows(round.count) * kTile));
  tile_product(round.head, tile, round.views, round.count, 0, round.head.blocks, z);
  const int64_t first = tile * kTile;
  const int64_t lanes = std::min<int64_t>(kTile, vocab - first);
  for (int64_t i = 0; i < round.count; ++i) {
    const float* base = round.args.base + round.rows[i] * vocab + first;
    float* logits = z + i * kTile;
    for (int64_t n = 0; n < lanes; ++n) logits[n] = base[n] + logits[n];
    const float* top = std::max_element(logits, logits + lanes);
    round.best[tile * round.count + i] = {*top, static_cast<int32_t>(first + (top - logits))};
    if (round.args.logits != nullptr)
      std::copy_n(logits, lanes, round.args.logits + round.rows[i] * vocab + first);
  }
}

}  // namespace

// Drafts of different sequences do not depend on each other, so round i does the i-th row of every sequence
// and reads the vocabulary head once for all of them.
void draft(Context& ctx, const DraftArgs& args) {
  const StepRows& step = args.step;
  if (step.rows <= 0) return;
  ctx.rows.run();
  const PackedWeight& head = packed_form(*args.head);
  SPARK_CHECK(head.rows == args.vocab && head.cols == args.rank);
  const auto* table = static_cast<const uint16_t*>(args.embed->data);
  const auto* proj = static_cast<const uint16_t*>(args.confidence_proj->data);
  const int64_t rank = args.rank;
  const int64_t width = padded(rank);
  auto* rows = ctx.indices.get<int64_t>(static_cast<size_t>(step.rows));
  auto* views = ctx.views.get<RowView>(static_cast<size_t>(step.rows));
  auto* values = ctx.values.get<float>(static_cast<size_t>(step.rows * width));
  auto* best = ctx.results.get<Best>(static_cast<size_t>(head.tiles * step.rows));
  for (int64_t depth = std::max(args.place, 0); args.place < 0 || depth == args.place; ++depth) {
    int64_t count = 0;
    for (int64_t t = 0; t < step.rows; ++t) {
      if (step.sequence[t] < 0 || t - step.first_row[t] != depth) continue;
      const int32_t previous = depth == 0 ? step.token[t] : args.draft[t - 1];
      const uint16_t* m = table + previous * rank;
      floats_from_bf16(m, rank, values + count * width);
      views[count] = {values + count * width, nullptr};
      const double x_part = dot_bf16(args.x + t * args.hidden, proj, args.hidden);
      args.confidence[t] = static_cast<float>(x_part + dot_bf16(m, proj + args.hidden, rank));
      rows[count++] = t;
    }
    if (count == 0) return;
    const Round round{args, head, rows, count, views, best};
    ctx.fork(
        head.tiles, product_ns(head, count) * static_cast<double>(head.tiles),
        [&](int64_t tile, int worker) { draft_tile(round, tile, ctx.scratch[static_cast<size_t>(worker)]); });
    for (int64_t i = 0; i < count; ++i) {
      Best winner = best[i];
      for (int64_t tile = 1; tile < head.tiles; ++tile) {
        if (best[tile * count + i].logit > winner.logit) winner = best[tile * count + i];
      }
      args.draft[rows[i]] = winner.id;
    }
  }
}

}  // namespace spark::engine::cpu
