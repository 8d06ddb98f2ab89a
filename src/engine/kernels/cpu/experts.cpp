#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/rows.h"
#include "engine/kernels/cpu/tile_unit.h"

namespace spark::engine::cpu {
namespace {

// Rows of one pass: bounds the scratch memory of long prefills.
constexpr int64_t kRowsPerPass = 256;

// FP32, evaluated in double: one logit in 384 at a hundredth of the experts' time.
float router_score(float z) {
  const float softplus = z > 20.0F ? z : static_cast<float>(std::log1p(std::exp(static_cast<double>(z))));
  return std::sqrt(softplus);
}

void route_row(const RouteArgs& args, int64_t t, float* score, int32_t* order) {
  const bool image = args.step.is_image != nullptr && args.step.is_image[t] != 0;
  const float* bias = image && args.image_bias != nullptr ? args.image_bias : args.bias;
  float* biased = score + args.experts;
  for (int32_t e = 0; e < args.experts; ++e) {
    score[e] = router_score(args.logits[t * args.experts + e]);
    biased[e] = score[e] + bias[e];
    order[e] = e;
  }
  const auto better = [&](int32_t a, int32_t b) {
    return biased[a] > biased[b] || (biased[a] == biased[b] && a < b);
  };
  std::partial_sort(order, order + args.top_k, order + args.experts, better);
  double sum = 0;
  for (int32_t i = 0; i < args.top_k; ++i) sum += static_cast<double>(score[order[i]]);
  const float divisor = static_cast<float>(sum) + 1e-20F;
  for (int32_t i = 0; i < args.top_k; ++i) {
    const float s = score[order[i]];
    args.ids[t * args.top_k + i] = order[i];
    args.weights[t * args.top_k + i] = (args.normalise ? s / divisor : s) * args.scale;
  }
}

// One expert's share of a pass. Its slots are places in the intermediate results, one per row.
struct Share {
  const ExpertWeights* weights = nullptr;
  int64_t first = 0;  // slot
  int64_t rows = 0;
};

struct Pass {
  const ExpertsArgs& args;
  int64_t first_row = 0;
  int64_t rows = 0;
  const Share* shares = nullptr;  // ascending expert, the shared expert last
  int64_t share_count = 0;
  const int64_t* row_of = nullptr;   // [slot], relative to first_row
  const float* weight_of = nullptr;  // [slot]
  const RowView* inputs = nullptr;   // [slot]
  const RowView* gated = nullptr;    // [slot], views of the next two
  float* gated_codes = nullptr;      // [slot][width] code values, and the same as pairs; either may be null
  uint16_t* gated_pairs = nullptr;
  float* gated_scale = nullptr;  // [slot][width / 32]
};

// a, b = w1(x), w3(x) on one tile of 32 outputs, then the gated unit: the tile is one quantiser block.
void gate_tile(const Pass& pass, const Share& share, int64_t tile, Buffer& scratch) {
  const PackedWeight& w1 = packed_form(share.weights->w1);
  const PackedWeight& w3 = packed_form(share.weights->w3);
  const int64_t size = padded_rows(share.rows) * kTile;
  const int64_t blocks = pass.args.width / kBlock;
  auto* a = scratch.get<float>(static_cast<size_t>(2 * size));
  float* b = a + size;
  const RowView* inputs = pass.inputs + share.first;
  tile_product(w1, tile, inputs, share.rows, 0, w1.blocks, a);
  tile_product(w3, tile, inputs, share.rows, 0, w3.blocks, b);
  const int64_t at = share.first * pass.args.width + tile * kTile;
  const bool pairs = pass.gated[share.first].pairs != nullptr;
  gated_tiles(a, b, share.rows, pass.args.limit, pass.weight_of + share.first,
              {.codes = pairs ? nullptr : pass.gated_codes + at,
               .pairs = pairs ? pass.gated_pairs + at : nullptr,
               .stride = pass.args.width,
               .scales = pass.gated_scale + share.first * blocks + tile,
               .scales_stride = blocks});
}

// 32 outputs of w2 for every row, summed over its experts in ascending order.
void down_tile(const Pass& pass, int64_t tile, Buffer& scratch) {
  const int64_t size = padded_rows(pass.rows) * kTile;
  auto* sum = scratch.get<float>(static_cast<size_t>(2 * size));
  float* y = sum + size;
  std::fill_n(sum, size, 0.0F);
  for (int64_t s = 0; s < pass.share_count; ++s) {
    const Share& share = pass.shares[s];
    const PackedWeight& w2 = packed_form(share.weights->w2);
    tile_product(w2, tile, pass.gated + share.first, share.rows, 0, w2.blocks, y);
    for (int64_t i = 0; i < share.rows; ++i)
      add_rounded(y + i * kTile, sum + pass.row_of[share.first + i] * kTile);
  }
  const int64_t hidden = pass.args.hidden;
  const auto lanes = static_cast<int>(std::min<int64_t>(kTile, hidden - tile * kTile));
  uint16_t* out = pass.args.y + pass.first_row * hidden + tile * kTile;
  for (int64_t m = 0; m < pass.rows; ++m) {
    if (pass.args.step.sequence[pass.first_row + m] >= 0)
      store_tile_bf16(sum + m * kTile, 1, lanes, out + m * hidden, hidden);
  }
}

// The same outputs of each of the row's experts, in double and neither rounded nor summed.
void down_tile_unrounded(const Pass& pass, int64_t tile, Buffer& scratch) {
  auto* y = scratch.get<double>(static_cast<size_t>(2 * padded_rows(pass.rows) * kTile));
  auto* done = reinterpret_cast<int64_t*>(y + padded_rows(pass.rows) * kTile);  // experts of a row so far
  std::fill_n(done, pass.rows, 0);
  const int64_t hidden = pass.args.hidden;
  const auto lanes = static_cast<int>(std::min<int64_t>(kTile, hidden - tile * kTile));
  for (int64_t s = 0; s < pass.share_count; ++s) {
    const Share& share = pass.shares[s];
    const PackedWeight& w2 = packed_form(share.weights->w2);
    tile_product_double(w2, tile, pass.gated + share.first, share.rows, 0, w2.blocks, y);
    for (int64_t i = 0; i < share.rows; ++i) {
      const int64_t row = pass.row_of[share.first + i];
      const int64_t place = (pass.first_row + row) * (pass.args.top_k + 1) + done[row]++;
      store_tile_f64(y + i * kTile, 1, lanes, pass.args.y_f64 + place * hidden + tile * kTile, hidden);
    }
  }
}

// Slots sorted by expert: counting sort over the rows' choices.
struct Plan {
  Share* shares;
  int64_t share_count = 0;
  int64_t slots = 0;
  int64_t* row_of;
  float* weight_of;
};

Plan make_plan(Context& ctx, const ExpertsArgs& args, int64_t first_row, int64_t rows) {
  const int64_t experts = args.bank != nullptr ? static_cast<int64_t>(args.bank->experts.size()) : 0;
  const int64_t most = rows * (args.top_k + 1);
  auto* counts = ctx.indices.get<int64_t>(static_cast<size_t>(2 * (experts + 1) + 5 * most + 3));
  int64_t* row_of = counts + experts + 1;
  auto* weight_of = reinterpret_cast<float*>(row_of + most);
  auto* shares = reinterpret_cast<Share*>(row_of + 2 * most);
  std::fill_n(counts, experts + 1, 0);
  const auto active = [&](int64_t m) { return args.step.sequence[first_row + m] >= 0; };
  const int64_t chosen = experts > 0 ? args.top_k : 0;
  for (int64_t m = 0; m < rows; ++m) {
    const int32_t* ids = args.ids + (first_row + m) * args.top_k;
    for (int64_t i = 0; active(m) && i < chosen; ++i) {
      SPARK_CHECK(ids[i] >= 0 && ids[i] < experts);
      ++counts[ids[i]];
    }
    counts[experts] += active(m) && args.shared != nullptr ? 1 : 0;
  }
  Plan plan{.shares = shares, .row_of = row_of, .weight_of = weight_of};
  for (int64_t e = 0; e <= experts; ++e) {
    const int64_t count = counts[e];
    counts[e] = plan.slots;
    if (count == 0) continue;
    const ExpertWeights* weights = e == experts ? args.shared : &args.bank->experts[static_cast<size_t>(e)];
    plan.shares[plan.share_count++] = {weights, plan.slots, count};
    plan.slots += count;
  }
  const auto take = [&](int64_t expert, int64_t m, float weight) {
    const int64_t slot = counts[expert]++;
    plan.row_of[slot] = m;
    plan.weight_of[slot] = weight;
  };
  for (int64_t m = 0; m < rows; ++m) {
    if (!active(m)) continue;
    const int64_t at = (first_row + m) * args.top_k;
    for (int64_t i = 0; i < chosen; ++i) take(args.ids[at + i], m, args.weights[at + i]);
    if (args.shared != nullptr) take(experts, m, 1.0F);
  }
  return plan;
}

// The rows of each slot in the form that its share's products take: many rows as pairs, side by side.
RowView* share_inputs(Context& ctx, const Plan& plan, const QuantisedRows& x, int64_t rows, int64_t hidden,
                      const RowView* by_row) {
  const int64_t blocks = hidden / kBlock;
  auto* views = ctx.more_results.get<RowView>(static_cast<size_t>(2 * plan.slots));
  auto* pairs = ctx.pairs.get<uint16_t>(
      static_cast<size_t>((plan.slots + kPairsSlack) * hidden + 2 * plan.slots * blocks));
  auto* scales = reinterpret_cast<float*>(pairs + (plan.slots + kPairsSlack) * hidden);
  const auto as_pairs = [](const Share& share) {
    const ExpertWeights& w = *share.weights;
    return takes_tile_unit(w.w1.format, share.rows) && takes_tile_unit(w.w3.format, share.rows) &&
           takes_tile_unit(w.w2.format, share.rows);
  };
  const bool all_pairs = std::all_of(plan.shares, plan.shares + plan.share_count, as_pairs);
  if (by_row == nullptr && !all_pairs) by_row = rows_from_codes(ctx, x, rows, hidden);
  for (int64_t s = 0; s < plan.share_count; ++s) {
    const Share& share = plan.shares[s];
    for (int64_t slot = share.first; slot < share.first + share.rows; ++slot) {
      views[slot] = as_pairs(share) ? RowView{nullptr, scales + slot * blocks, pairs + slot * hidden}
                                    : by_row[plan.row_of[slot]];
    }
  }
  if (!tile_unit_usable()) return views;
  ctx.fork(plan.slots, static_cast<double>(plan.slots * hidden) / 16, [&](int64_t slot, int) {
    if (views[slot].pairs == nullptr) return;
    const int64_t row = plan.row_of[slot];
    pairs_from_codes(x.codes + row * hidden, x.scales + row * blocks, hidden, pairs + slot * hidden,
                     scales + slot * blocks);
  });
  return views;
}

void run_pass(Context& ctx, const ExpertsArgs& args, int64_t first_row, int64_t rows) {
  const int64_t blocks = args.width / kBlock;
  const QuantisedRows x{args.x_q.codes + first_row * args.hidden,
                        args.x_q.scales + first_row * (args.hidden / kBlock)};
  // Without the tile unit every row goes as floats, which need not wait for its experts to be known.
  const RowView* by_row = tile_unit_usable() ? nullptr : rows_from_codes(ctx, x, rows, args.hidden);
  ctx.rows.run();  // the choice of experts
  const Plan plan = make_plan(ctx, args, first_row, rows);
  RowView* const views = share_inputs(ctx, plan, x, rows, args.hidden, by_row);
  const auto gated_size = static_cast<size_t>(plan.slots * args.width);
  const auto pairs_size = static_cast<size_t>((plan.slots + kPairsSlack) * args.width);
  auto* gated_pairs =
      ctx.results.get<uint16_t>(pairs_size + 2 * (gated_size + static_cast<size_t>(plan.slots * blocks)));
  auto* gated = reinterpret_cast<float*>(gated_pairs + pairs_size);
  float* gated_scale = gated + gated_size;
  for (int64_t slot = 0; slot < plan.slots; ++slot) {
    const bool pairs = views[slot].pairs != nullptr;
    views[plan.slots + slot] = {pairs ? nullptr : gated + slot * args.width, gated_scale + slot * blocks,
                                pairs ? gated_pairs + slot * args.width : nullptr};
  }
  const Pass pass{args,        first_row,      rows,  plan.shares,        plan.share_count,
                  plan.row_of, plan.weight_of, views, views + plan.slots, gated,
                  gated_pairs, gated_scale};
  double up_ns = 0;
  double down_ns = 0;
  for (int64_t s = 0; s < plan.share_count; ++s) {
    const Share& share = plan.shares[s];
    up_ns += 2 * product_ns(packed_form(share.weights->w1), share.rows) * static_cast<double>(blocks);
    down_ns +=
        product_ns(packed_form(share.weights->w2), share.rows) * static_cast<double>(args.hidden) / kTile;
  }
  ctx.fork(plan.share_count * blocks, up_ns, [&](int64_t task, int worker) {
    gate_tile(pass, plan.shares[task / blocks], task % blocks, ctx.scratch[static_cast<size_t>(worker)]);
  });
  ctx.fork((args.hidden + kTile - 1) / kTile, down_ns, [&](int64_t tile, int worker) {
    Buffer& scratch = ctx.scratch[static_cast<size_t>(worker)];
    if (args.y_f64 != nullptr) {
      down_tile_unrounded(pass, tile, scratch);
    } else {
      down_tile(pass, tile, scratch);
    }
  });
}

}  // namespace

void route(Context& ctx, const RouteArgs& args) {
  SPARK_CHECK(args.top_k <= args.experts);
  const double cost = static_cast<double>(args.step.rows) * args.experts * 40;
  Buffer* const scratch = ctx.scratch.data();
  ctx.rows.add(args.step.rows, cost, [=](int64_t t, int worker) {
    auto* score = scratch[worker].get<float>(static_cast<size_t>(3 * args.experts));
    route_row(args, t, score, reinterpret_cast<int32_t*>(score + 2 * args.experts));
  });
}

void experts(Context& ctx, const ExpertsArgs& args) {
  SPARK_CHECK(args.hidden % kBlock == 0 && args.width % kBlock == 0);
  SPARK_CHECK((args.y != nullptr) != (args.y_f64 != nullptr));
  SPARK_CHECK(args.y_f64 == nullptr || (args.bank != nullptr && args.shared != nullptr));
  for (int64_t first = 0; first < args.step.rows; first += kRowsPerPass)
    run_pass(ctx, args, first, std::min<int64_t>(kRowsPerPass, args.step.rows - first));
}

}  // namespace spark::engine::cpu
