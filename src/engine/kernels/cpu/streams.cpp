#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/error.h"
#include "engine/kernels/cpu/operations.h"
#include "engine/kernels/cpu/rows.h"
#include "engine/kernels/cpu/vectors.h"

namespace spark::engine::cpu {
namespace {

constexpr int kMaxStreams = 4;
// The mHC products of few outputs and many inputs are split along the inputs, at these fixed borders, to give
// the threads something to share. The sums are formed in double: their error moves every stream of the layer.
constexpr int64_t kMixChunkBlocks = 4;

size_t bytes_of(int64_t values) {
  return static_cast<size_t>(values) * sizeof(uint16_t);
}

// One row's products: its sums over the chunks of inputs, which lie `stride` apart, over its RMS.
void mix_products(const float* x, int64_t width, const double* sums, int64_t stride, int64_t chunks,
                  float norm_eps, float* mix) {
  double total[kTile];
  std::copy_n(sums, kTile, total);
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    for (int n = 0; n < kTile; ++n) total[n] += sums[chunk * stride + n];
  }
  const auto mean = static_cast<float>(sum_of_squares(x, width) / static_cast<double>(width));
  const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean + norm_eps)));
  for (int n = 0; n < kTile; ++n) mix[n] = static_cast<float>(total[n]) * root;
}

}  // namespace

void embed(Context& ctx, const EmbedArgs& args) {
  const int64_t hidden = args.hidden;
  const auto* table = static_cast<const uint16_t*>(args.table->data);
  const int64_t table_rows = args.table->rows;
  ctx.rows.add(args.step.rows, static_cast<double>(args.step.rows * hidden * args.streams) / 8,
               [=](int64_t t, int) {
                 const int64_t row = args.step.token[t] - args.first_vocab_row;
                 const uint16_t* source = nullptr;
                 if (args.override_rows != nullptr && args.override_rows[t] >= 0) {
                   source = args.overrides + args.override_rows[t] * hidden;
                 } else if (row >= 0 && row < table_rows) {
                   source = table + row * hidden;
                 }
                 for (int64_t k = 0; k < args.streams; ++k) {
                   uint16_t* h = args.h + (t * args.streams + k) * hidden;
                   if (source != nullptr) {
                     std::memcpy(h, source, bytes_of(hidden));
                   } else {
                     std::memset(h, 0, bytes_of(hidden));
                   }
                   args.pre[t * args.streams + k] = k == 0 ? 1.0F : 0.0F;
                 }
               });
}

namespace {

// With enough rows for every thread they need no splitting of the inputs: a few rows together, all the way.
constexpr int64_t kRowsForChains = 2;
constexpr int64_t kRowsTogether = 4;

void chain_mix(Context& ctx, const MhcMixArgs& args, const PackedWeight& weight) {
  const PackedWeight* const fn = &weight;
  const int64_t width = int64_t{args.streams} * args.hidden;
  const int64_t chunks = (fn->blocks + kMixChunkBlocks - 1) / kMixChunkBlocks;
  Buffer* const scratch = ctx.scratch.data();
  const double cost = static_cast<double>(args.rows * width) * (kTile / 12.0 + 0.2);
  const auto link = [=](int64_t first, int64_t count, int worker) {
    constexpr int64_t kMost = kRowGroup;
    const int64_t chunk_sums = padded_rows(kMost) * kTile;
    auto* const sums = scratch[worker].get<double>(
        static_cast<size_t>(chunks * chunk_sums + (kMost * padded(width) + 1) / 2));
    auto* const values = reinterpret_cast<float*>(sums + chunks * chunk_sums);
    for (const int64_t end = first + count; first < end; first += kMost) {
      const auto taken = static_cast<int>(std::min(kMost, end - first));
      RowView views[kMost];
      for (int64_t i = 0; i < taken; ++i) {
        floats_from_bf16(args.h + (first + i) * width, width, values + i * padded(width));
        views[i] = {values + i * padded(width)};
      }
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = chunk * kMixChunkBlocks;
        tile_product_double(*fn, 0, views, taken, begin, std::min(begin + kMixChunkBlocks, fn->blocks),
                            sums + chunk * chunk_sums);
      }
      float mix[kMost * kTile];
      for (int64_t i = 0; i < taken; ++i)
        mix_products(views[i].x, width, sums + i * kTile, chunk_sums, chunks, args.norm_eps, mix + i * kTile);
      const int64_t streams = args.streams;
      mhc_coefficients(mix, taken, args.scale, args.base, args.streams, args.iterations, args.eps,
                       args.pre + first * streams, args.post + first * streams,
                       args.comb + first * streams * streams);
    }
  };
  ctx.rows.add_groups(args.rows, kRowsTogether, cost, link);
}

}  // namespace

void mhc_mix(Context& ctx, const MhcMixArgs& args) {
  if (args.rows <= 0) return;
  const PackedWeight& fn = packed_form(*args.fn);
  const int streams = args.streams;
  const int64_t width = int64_t{streams} * args.hidden;
  const int64_t mixes = 2 * streams + streams * streams;
  SPARK_CHECK(streams >= 1 && streams <= kMaxStreams && args.hidden % kBlock == 0);
  SPARK_CHECK(fn.rows == mixes && fn.cols == width && fn.tiles == 1);
  const int64_t rows = args.rows;
  if (rows >= kRowsForChains * ctx.pool.threads()) return chain_mix(ctx, args, fn);
  const RowView* views = rows_from_bf16(ctx, args.h, rows, width);
  const int64_t chunks = (fn.blocks + kMixChunkBlocks - 1) / kMixChunkBlocks;
  auto* sums = ctx.results.get<double>(static_cast<size_t>(chunks * padded_rows(rows) * kTile));
  const double cost = static_cast<double>(rows * width * kTile) / 12;
  // Tasks: groups of rows times chunks of inputs.
  const int64_t groups = (rows + kRowGroup - 1) / kRowGroup;
  ctx.fork(groups * chunks, cost, [&](int64_t task, int) {
    const int64_t chunk = task % chunks;
    const int64_t first = task / chunks * kRowGroup;
    const int64_t begin = chunk * kMixChunkBlocks;
    tile_product_double(fn, 0, views + first, std::min<int64_t>(kRowGroup, rows - first), begin,
                        std::min(begin + kMixChunkBlocks, fn.blocks),
                        sums + (chunk * padded_rows(rows) + first) * kTile);
  });
  // Rows that a thread has are done together, see mhc_coefficients().
  const int64_t share = std::min<int64_t>(kRowGroup, (rows + ctx.pool.threads() - 1) / ctx.pool.threads());
  const double row_ns = static_cast<double>(width) / 16 + (share == 1 ? 1000 : 300);
  ctx.fork((rows + share - 1) / share, static_cast<double>(rows) * row_ns, [&](int64_t task, int) {
    const int64_t first = task * share;
    const auto count = static_cast<int>(std::min(share, rows - first));
    float mix[kRowGroup * kTile];
    for (int i = 0; i < count; ++i)
      mix_products(views[first + i].x, width, sums + (first + i) * kTile, padded_rows(rows) * kTile, chunks,
                   args.norm_eps, mix + i * kTile);
    mhc_coefficients(mix, count, args.scale, args.base, streams, args.iterations, args.eps,
                     args.pre + first * streams, args.post + first * streams,
                     args.comb + first * streams * streams);
  });
}

void mhc_collapse(Context& ctx, const MhcCollapseArgs& args) {
  SPARK_CHECK(args.hidden % kBlock == 0);
  const int64_t hidden = args.hidden;
  const bool quantised = args.x_q.codes != nullptr;
  Buffer* const scratch = ctx.scratch.data();
  ctx.rows.add(args.rows, static_cast<double>(args.rows * hidden), [=](int64_t m, int worker) {
    uint16_t* u =
        args.u != nullptr ? args.u + m * hidden : scratch[worker].get<uint16_t>(static_cast<size_t>(hidden));
    collapse_row(args.h + m * args.streams * hidden, args.pre + m * args.streams, args.norm_weight,
                 args.streams, hidden, args.norm_eps, u, args.x != nullptr ? args.x + m * hidden : nullptr,
                 quantised ? args.x_q.codes + m * hidden : nullptr,
                 quantised ? args.x_q.scales + m * (hidden / kBlock) : nullptr);
  });
}

void mhc_expand(Context& ctx, const MhcExpandArgs& args) {
  SPARK_CHECK(args.hidden % kBlock == 0 && args.streams >= 1 && args.streams <= kMaxStreams);
  const int64_t hidden = args.hidden;
  const int64_t streams = args.streams;
  ctx.rows.add(args.rows, static_cast<double>(args.rows * hidden * streams) / 1.5, [=](int64_t m, int) {
    expand_row(args.y + m * hidden, args.post + m * streams, args.comb + m * streams * streams, args.streams,
               hidden, args.h + m * streams * hidden);
  });
}

void stream_mean(Context& ctx, const StreamMeanArgs& args) {
  SPARK_CHECK(args.hidden % kBlock == 0);
  const int64_t hidden = args.hidden;
  ctx.rows.add(args.rows, static_cast<double>(args.rows * hidden * args.streams) / 8, [=](int64_t m, int) {
    mean_row(args.h + m * args.streams * hidden, args.streams, hidden, args.out + m * args.out_stride);
  });
}

void gather_rows(Context& ctx, const GatherRowsArgs& args) {
  ctx.rows.run();  // any row may go to any place
  const int64_t cols = args.cols;
  for (int64_t i = 0; i < args.rows; ++i)
    std::memcpy(args.out + i * cols, args.in + args.row[i] * cols, bytes_of(cols));
}

void engram_dequantise(Context& ctx, const EngramDequantiseArgs& args) {
  SPARK_CHECK(args.cols % kBlock == 0);
  const int64_t cols = args.cols;
  ctx.rows.add(args.rows, static_cast<double>(args.rows * cols) / 4, [=](int64_t m, int) {
    dequantise_row(args.codes + m * cols, args.scales + m * (cols / kBlock), cols, args.x + m * cols);
  });
}

namespace {

float gate_of(const EngramSums& sums, int64_t hidden, float eps) {
  const auto n = static_cast<double>(hidden);
  const auto root_of = [&](double squares) {
    const auto mean = static_cast<float>(squares / n);
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean + eps)));
  };
  const float rs = root_of(sums.h) * root_of(sums.key);
  const float dot = static_cast<float>(sums.dot) * rs * static_cast<float>(1.0 / std::sqrt(n));
  const float magnitude = std::sqrt(std::max(std::fabs(dot), 1e-6F));
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(std::copysign(magnitude, dot)))));
}

}  // namespace

void engram_inject(Context& ctx, const EngramInjectArgs& args) {
  SPARK_CHECK(args.hidden % kBlock == 0);
  const int64_t hidden = args.hidden;
  const int64_t streams = args.streams;
  ctx.fork(args.step.rows * streams, static_cast<double>(args.step.rows * streams * hidden) / 2,
           [&](int64_t task, int) {
             const int64_t t = task / streams;
             const int64_t k = task % streams;
             const bool image = args.step.is_image != nullptr && args.step.is_image[t] != 0;
             const uint16_t* kv = args.kv + t * (streams + 1) * hidden;
             uint16_t* h = args.h + task * hidden;
             float gate = 0;
             if (!image) {
               const EngramSums sums = engram_sums(h, kv + k * hidden, args.q_weight + k * hidden,
                                                   args.k_weight + k * hidden, hidden);
               gate = gate_of(sums, hidden, args.norm_eps);
             }
             add_scaled(kv + streams * hidden, gate, hidden, h);
             if (args.gate != nullptr) args.gate[task] = gate;
           });
}

}  // namespace spark::engine::cpu
