#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/rows.h"
#include "engine/kernels/cpu/tile_unit.h"
#include "engine/numeric/partial_sums.h"

namespace spark::engine::cpu {
namespace {

// Rows that one task takes against its tile: the tile stays in cache for all of them.
constexpr int64_t kRowsPerTask = 64;

constexpr double kCodesPerNs = 12;        // decoding, per group of rows
constexpr double kProductsPerNs = 40;     // multiply-adds
constexpr double kCodesPerNsOfUnit = 40;  // on the tile unit
constexpr double kProductsPerNsOfUnit = 400;

bool is_quantised(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
}

}  // namespace

const PackedWeight& packed_form(const Weight& weight) {
  SPARK_CHECK(weight.prepared != nullptr);
  // Operations run on one thread at a time, so packing at the first use needs no lock.
  auto* placed = const_cast<PlacedWeight*>(static_cast<const PlacedWeight*>(weight.prepared));
  if (placed->packed.tiles == 0) pack_weight(placed->host, placed->packed);
  return placed->packed;
}

double product_ns(const PackedWeight& weight, int64_t rows) {
  const auto codes = static_cast<double>(weight.blocks * kBlock * kTile);
  const auto groups = static_cast<double>((rows + kRowGroup - 1) / kRowGroup);
  if (takes_tile_unit(weight.format, rows))
    return codes / kCodesPerNsOfUnit + codes * static_cast<double>(rows) / kProductsPerNsOfUnit;
  return codes * groups / kCodesPerNs + codes * static_cast<double>(rows) / kProductsPerNs;
}

RowView* rows_from_bf16(Context& ctx, const uint16_t* x, int64_t rows, int64_t cols) {
  const int64_t width = padded(cols);
  auto* values = ctx.values.get<float>(static_cast<size_t>(rows * width));
  auto* views = ctx.views.get<RowView>(static_cast<size_t>(rows));
  ctx.rows.add(rows, static_cast<double>(rows * cols) / 8, [=](int64_t m, int) {
    floats_from_bf16(x + m * cols, cols, values + m * width);
    views[m] = {values + m * width};
  });
  return views;
}

RowView* rows_from_codes(Context& ctx, const QuantisedRows& x, int64_t rows, int64_t cols) {
  SPARK_CHECK(x.codes != nullptr && x.scales != nullptr && cols % kBlock == 0);
  const int64_t blocks = cols / kBlock;
  auto* values = ctx.values.get<float>(static_cast<size_t>(rows * cols));
  auto* scales = ctx.scales.get<float>(static_cast<size_t>(rows * blocks));
  auto* views = ctx.views.get<RowView>(static_cast<size_t>(rows));
  ctx.rows.add(rows, static_cast<double>(rows * cols) / 8, [=](int64_t m, int) {
    floats_from_codes(x.codes + m * cols, x.scales + m * blocks, cols, values + m * cols,
                      scales + m * blocks);
    views[m] = {values + m * cols, scales + m * blocks};
  });
  return views;
}

RowView* pairs_from_codes(Context& ctx, const QuantisedRows& x, int64_t rows, int64_t cols) {
  SPARK_CHECK(x.codes != nullptr && x.scales != nullptr && cols % kBlock == 0);
  const int64_t blocks = cols / kBlock;
  auto* pairs = ctx.pairs.get<uint16_t>(static_cast<size_t>((rows + kPairsSlack) * cols));
  auto* scales = ctx.scales.get<float>(static_cast<size_t>(rows * blocks));
  auto* views = ctx.views.get<RowView>(static_cast<size_t>(rows));
  ctx.rows.add(rows, static_cast<double>(rows * cols) / 8, [=](int64_t m, int) {
    pairs_from_codes(x.codes + m * cols, x.scales + m * blocks, cols, pairs + m * cols, scales + m * blocks);
    views[m] = {nullptr, scales + m * blocks, pairs + m * cols};
  });
  return views;
}

void quantise(Context& ctx, const QuantiseArgs& args) {
  SPARK_CHECK(args.cols % kBlock == 0);
  const int64_t cols = args.cols;
  ctx.rows.add(args.rows, static_cast<double>(args.rows * cols) / 2, [=](int64_t m, int) {
    quantise_row(args.x + m * cols, cols, args.out.codes + m * cols, args.out.scales + m * (cols / kBlock));
  });
}

namespace {

// The rows in the form that their product takes.
const RowView* rows_of(Context& ctx, const LinearArgs& args, const PackedWeight& weight) {
  if (!is_quantised(weight.format)) return rows_from_bf16(ctx, args.x, args.rows, weight.cols);
  return takes_tile_unit(weight.format, args.rows) ? pairs_from_codes(ctx, args.x_q, args.rows, weight.cols)
                                                   : rows_from_codes(ctx, args.x_q, args.rows, weight.cols);
}

}  // namespace

void linear(Context& ctx, const LinearArgs& args) {
  if (args.rows <= 0) return;
  const PackedWeight& weight = packed_form(*args.weight);
  SPARK_CHECK(args.y_stride >= weight.rows &&
              (args.y != nullptr) + (args.y_f32 != nullptr) + (args.y_f64 != nullptr) == 1);
  const RowView* views = rows_of(ctx, args, weight);
  const int64_t chunks = (args.rows + kRowsPerTask - 1) / kRowsPerTask;
  const double cost = product_ns(weight, args.rows) * static_cast<double>(weight.tiles);
  ctx.fork(weight.tiles * chunks, cost, [&](int64_t task, int worker) {
    const int64_t tile = task / chunks;
    const int64_t first = task % chunks * kRowsPerTask;
    const int64_t rows = std::min(kRowsPerTask, args.rows - first);
    const auto lanes = static_cast<int>(std::min<int64_t>(kTile, weight.rows - tile * kTile));
    const int64_t at = first * args.y_stride + tile * kTile;
    Buffer& scratch = ctx.scratch[static_cast<size_t>(worker)];
    if (args.y_f64 != nullptr) {
      auto* sums = scratch.get<double>(kRowsPerTask * kTile);
      tile_product_double(weight, tile, views + first, rows, 0, weight.blocks, sums);
      return store_tile_f64(sums, rows, lanes, args.y_f64 + at, args.y_stride);
    }
    auto* out = scratch.get<float>(kRowsPerTask * kTile);
    tile_product(weight, tile, views + first, rows, 0, weight.blocks, out);
    if (args.y != nullptr) {
      store_tile_bf16(out, rows, lanes, args.y + at, args.y_stride);
    } else {
      store_tile_f32(out, rows, lanes, args.y_f32 + at, args.y_stride);
    }
  });
}

namespace {

// The rows' parts in the order [group][row], so that a group's rows are a contiguous list.
RowView* group_rows(Context& ctx, const GroupedLinearArgs& args, const PackedWeight& weight) {
  const int64_t rows = args.rows;
  const int64_t groups = args.groups;
  auto* views = ctx.indices.get<RowView>(static_cast<size_t>(rows * groups));
  if (takes_tile_unit(weight.format, rows)) {
    const int64_t width = weight.blocks * kBlock;
    auto* pairs = ctx.pairs.get<uint16_t>(static_cast<size_t>((rows + kPairsSlack) * groups * width));
    const int64_t cols = weight.cols;
    const uint16_t* x = args.x;
    ctx.rows.add(rows, static_cast<double>(rows * groups * width) / 16, [=](int64_t m, int) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t part = m * groups + g;
        pairs_from_bf16(x + part * cols, cols, pairs + part * width);
        views[g * rows + m] = {nullptr, nullptr, pairs + part * width};
      }
    });
    return views;
  }
  const int64_t cols = weight.cols;
  const int64_t width = padded(cols);
  const uint16_t* x = args.x;
  const bool flushes = is_quantised(weight.format);
  float* values = ctx.values.get<float>(static_cast<size_t>(rows * groups * width));
  ctx.rows.add(rows, static_cast<double>(rows * groups * width) / 8, [=](int64_t m, int) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t part = m * groups + g;
      float* const out = values + part * width;
      floats_from_bf16(x + part * cols, cols, out);
      for (int64_t i = 0; flushes && i < width; ++i) out[i] = std::fabs(out[i]) < kLeastPlain ? 0.0F : out[i];
      views[g * rows + m] = {out};
    }
  });
  return views;
}

}  // namespace

void grouped_linear(Context& ctx, const GroupedLinearArgs& args) {
  if (args.rows <= 0) return;
  const PackedWeight& weight = packed_form(*args.weight);
  SPARK_CHECK(args.groups > 0 && weight.rows % args.groups == 0);
  const int64_t groups = args.groups;
  const int64_t outputs = weight.rows / groups;
  const RowView* views = group_rows(ctx, args, weight);
  const int64_t chunks = (args.rows + kRowsPerTask - 1) / kRowsPerTask;
  const double cost = product_ns(weight, args.rows) * static_cast<double>(weight.tiles);
  ctx.fork(weight.tiles * chunks, cost, [&](int64_t task, int worker) {
    const int64_t tile = task / chunks;
    const int64_t first = task % chunks * kRowsPerTask;
    const int64_t rows = std::min(kRowsPerTask, args.rows - first);
    auto* out = ctx.scratch[static_cast<size_t>(worker)].get<float>(kRowsPerTask * kTile);
    const int64_t end = std::min<int64_t>((tile + 1) * kTile, weight.rows);
    // A tile that straddles groups is computed once for each of them.
    for (int64_t n = tile * kTile; n < end;) {
      const int64_t group = n / outputs;
      const int64_t stop = std::min(end, (group + 1) * outputs);
      tile_product(weight, tile, views + group * args.rows + first, rows, 0, weight.blocks, out);
      store_tile_bf16(out + n % kTile, rows, static_cast<int>(stop - n), args.y + first * weight.rows + n,
                      weight.rows);
      n = stop;
    }
  });
}

void rms_norm(Context& ctx, const RmsNormArgs& args) {
  SPARK_CHECK(args.cols % kBlock == 0);
  const int64_t cols = args.cols;
  const bool quantised = args.y_q.codes != nullptr;
  ctx.rows.add(args.rows, static_cast<double>(args.rows * cols) / 2, [=](int64_t m, int) {
    rms_norm_row(args.x + m * args.x_stride, args.weight, cols, args.eps,
                 args.y != nullptr ? args.y + m * cols : nullptr,
                 quantised ? args.y_q.codes + m * cols : nullptr,
                 quantised ? args.y_q.scales + m * (cols / kBlock) : nullptr);
  });
}

void round_partials(Context& ctx, const RoundPartialsArgs& args) {
  const double cost = static_cast<double>(args.rows) * args.terms * args.cols / 3;
  ctx.rows.add(args.rows, cost, [=](int64_t m, int) {
    const double* const x = args.x + m * args.terms * args.cols;
    add_partials({&x, 1}, 1, args.terms, args.cols, args.y + m * args.cols);
  });
}

}  // namespace spark::engine::cpu
