// What the operations of the CPU backend share: threads, scratch memory, placed weights.
#pragma once

#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/buffer.h"
#include "engine/kernels/cpu/packed_weight.h"
#include "engine/kernels/cpu/row_chain.h"
#include "engine/kernels/cpu/thread_pool.h"
#include "engine/kernels/cpu/tile_product.h"

namespace spark::engine::cpu {

// Behind Weight::prepared. BF16 weights are packed at their first product, because a table that is only
// looked up (the embedding) never needs it; the others at once.
struct PlacedWeight {
  Weight host;
  PackedWeight packed;
};
const PackedWeight& packed_form(const Weight& weight);

struct Context {
  Context(int threads, double fork_ns)
      : pool(threads, fork_ns), rows(pool), scratch(static_cast<size_t>(pool.threads())) {}

  // Everything else than operations on single rows: what was chained before is complete when it begins.
  template <typename F>
  void fork(int64_t tasks, double cost_ns, F&& fn) {
    rows.run();
    pool.run(tasks, cost_ns, fn);
  }

  ThreadPool pool;
  RowChain rows;                // what has been called and has not run yet
  std::vector<Buffer> scratch;  // one per worker
  Buffer values;                // rows as floats
  Buffer pairs;                 // rows as pairs of the tile unit
  Buffer scales;                // their scales
  Buffer views;                 // RowView per row
  Buffer results;               // intermediate results of an operation
  Buffer more_results;
  Buffer indices;
  Buffer lists;  // what attention reads, one list per worker
};

// Estimated time of a tile's product with `rows` rows on one core. Only decides what is worth a fork.
double product_ns(const PackedWeight& weight, int64_t rows);

// Row views over floats and scales in ctx.values and ctx.scales, filled by the chain of rows: whoever calls
// them must fork or run the chain before the next operation takes these buffers.
RowView* rows_from_bf16(Context& ctx, const uint16_t* x, int64_t rows, int64_t cols);
RowView* rows_from_codes(Context& ctx, const QuantisedRows& x, int64_t rows, int64_t cols);
RowView* pairs_from_codes(Context& ctx, const QuantisedRows& x, int64_t rows, int64_t cols);

void quantise(Context& ctx, const QuantiseArgs& args);
void linear(Context& ctx, const LinearArgs& args);
void grouped_linear(Context& ctx, const GroupedLinearArgs& args);
void rms_norm(Context& ctx, const RmsNormArgs& args);
void round_partials(Context& ctx, const RoundPartialsArgs& args);

void embed(Context& ctx, const EmbedArgs& args);
void mhc_mix(Context& ctx, const MhcMixArgs& args);
void mhc_collapse(Context& ctx, const MhcCollapseArgs& args);
void mhc_expand(Context& ctx, const MhcExpandArgs& args);
void stream_mean(Context& ctx, const StreamMeanArgs& args);
void gather_rows(Context& ctx, const GatherRowsArgs& args);
void engram_dequantise(Context& ctx, const EngramDequantiseArgs& args);
void engram_inject(Context& ctx, const EngramInjectArgs& args);

void rope_angles(Context& ctx, const RopeAnglesArgs& args);
void rope(Context& ctx, const RopeArgs& args);
void window_write(Context& ctx, const WindowWriteArgs& args);
void pool_pairs(Context& ctx, const PoolPairsArgs& args);
void entry_write(Context& ctx, const EntryWriteArgs& args);
void sparse_attention(Context& ctx, const SparseAttentionArgs& args);

void index_query(Context& ctx, const IndexQueryArgs& args);
void index_select(Context& ctx, const IndexSelectArgs& args);

void route(Context& ctx, const RouteArgs& args);
void experts(Context& ctx, const ExpertsArgs& args);

void draft(Context& ctx, const DraftArgs& args);

// Where record j of a sequence lies.
inline uint8_t* record_of(const PagedCache& cache, int32_t sequence, int32_t j) {
  const int32_t in_table = j / cache.records_per_block;
  const int64_t block = cache.block_table[static_cast<int64_t>(sequence) * cache.table_stride + in_table];
  const int64_t index = block * cache.records_per_block + (j - in_table * cache.records_per_block);
  return cache.base + index * cache.record_bytes;
}

}  // namespace spark::engine::cpu
