// Sparse attention of a TP4 rank and the indexer.
#include <algorithm>

#include "caches.h"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

constexpr int kWidth = 512;
constexpr int kPairs = 32;
constexpr int kWindow = 128;
constexpr int kSelected = 512;
constexpr int kHeads = 16;
constexpr int kContext = 32768;
constexpr int kRatio = 2;
constexpr int kIndexHeads = 32;
constexpr int kIndexWidth = 128;

std::vector<uint8_t> random_records(Random& random, int64_t records, int codes, int scales, bool fp8,
                                    bool e4m3_scales) {
  std::vector<uint8_t> bytes(static_cast<size_t>(records * (codes + scales)));
  size_t at = 0;
  for (int64_t r = 0; r < records; ++r) {
    for (int i = 0; i < codes; i += 8) {
      uint64_t v = random.next();
      for (int b = 0; b < 8; ++b, v >>= 8) {
        uint8_t code = static_cast<uint8_t>(v);
        if (fp8 && (code & 0x7F) > 0x60) code &= 0xBF;
        bytes[at++] = code;
      }
    }
    for (int i = 0; i < scales; ++i) {
      bytes[at++] = static_cast<uint8_t>(e4m3_scales ? 0x20 + random.below(16) : 118 + random.below(4));
    }
  }
  return bytes;
}

engine::PagedCache paged(engine::Backend& backend, int sequences, int table_stride, int records_per_block,
                         int record_bytes, int64_t blocks, std::vector<uint8_t> bytes) {
  std::vector<int32_t> table(static_cast<size_t>(sequences) * static_cast<size_t>(table_stride));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(static_cast<int64_t>(i) % blocks);
  return {.base = place(backend, bytes),
          .block_table = place(backend, table),
          .table_stride = table_stride,
          .records_per_block = records_per_block,
          .record_bytes = record_bytes};
}

struct AttentionInputs {
  Steps steps;
  Caches caches;
  uint16_t* q = nullptr;
  float* sink = nullptr;
  float* angles = nullptr;
  uint16_t* o = nullptr;
  std::vector<int32_t*> selections;
  engine::IndexSelectArgs index;
};

AttentionInputs make_inputs(CudaBackend& backend, int rows) {
  AttentionInputs in;
  in.steps = make_steps(backend, rows, kContext);
  in.caches = make_caches(backend, in.steps.streams, kContext, kRatio);
  in.q = random_bf16(backend, int64_t{rows} * kHeads * kWidth, 1, 21);
  in.sink = place(backend, std::vector<float>(kHeads, 0.5F));
  in.angles = place(backend, std::vector<float>(static_cast<size_t>(rows) * kPairs * 2, 0.7F));
  in.o = reserve<uint16_t>(backend, int64_t{rows} * kHeads * kWidth);
  for (int i = 0; i < 4; ++i)
    in.selections.push_back(make_selection(backend, rows, kContext / kRatio - 8, kSelected));
  in.index = {
      .step = in.steps.step,
      .heads = kIndexHeads,
      .width = kIndexWidth,
      .ratio = kRatio,
      .top_k = kSelected,
      .q_packed = reserve<uint8_t>(backend, int64_t{rows} * kIndexHeads * kIndexWidth / 2),
      .q_scales = place(backend, std::vector<uint8_t>(static_cast<size_t>(rows) * kIndexHeads * 4, 124)),
      .head_weight = random_bf16(backend, int64_t{rows} * kIndexHeads, 1, 22),
      .weight_factor = 1.0F / 64,
      .key_cache = in.caches.keys,
      .max_entries = kContext / kRatio,
      .selected = reserve<int32_t>(backend, int64_t{rows} * kSelected)};
  backend.fill_random(const_cast<uint8_t*>(in.index.q_packed), int64_t{rows} * kIndexHeads * kIndexWidth / 2,
                      23);
  return in;
}

double time_attention(CudaBackend& backend, const AttentionInputs& in) {
  size_t turn = 0;
  return time_graph(
      backend,
      [&] {
        backend.sparse_attention({.step = in.steps.step,
                                  .heads = kHeads,
                                  .width = kWidth,
                                  .pairs = kPairs,
                                  .window = kWindow,
                                  .scale = 0.044194174F,
                                  .q = in.q,
                                  .window_cache = in.caches.window,
                                  .main_cache = in.caches.main,
                                  .selected = in.selections[turn++ % in.selections.size()],
                                  .max_selected = kSelected,
                                  .sink = in.sink,
                                  .cos_sin = in.angles,
                                  .o = in.o});
      },
      40, 5);
}

double time_index(CudaBackend& backend, const AttentionInputs& in) {
  return time_graph(
      backend, [&] { backend.index_select(in.index); }, 20, 5);
}

}  // namespace

Caches make_caches(engine::Backend& backend, int sequences, int context, int ratio) {
  Random random(31);
  const int table_stride = (context + 255) / 256 + 1;
  const int per_block = 256 / ratio;
  Caches caches;
  caches.window =
      paged(backend, sequences, table_stride, 256, engine::window_record_bytes(kWidth), 2 * sequences,
            random_records(random, int64_t{512} * sequences, kWidth, kWidth / 32, true, false));
  const int64_t blocks = int64_t{table_stride} * sequences;
  caches.main = paged(backend, sequences, table_stride, per_block, engine::main_record_bytes(kWidth), blocks,
                      random_records(random, blocks * per_block, kWidth / 2, kWidth / 16, false, true));
  caches.keys =
      paged(backend, sequences, table_stride, per_block, engine::index_key_record_bytes(kIndexWidth), blocks,
            random_records(random, blocks * per_block, kIndexWidth / 2, kIndexWidth / 32, false, false));
  return caches;
}

int32_t* make_selection(engine::Backend& backend, int rows, int visible, int count) {
  static uint64_t seed = 41;
  Random random(seed++);
  std::vector<int32_t> all;
  for (int t = 0; t < rows; ++t) {
    const std::vector<int32_t> list = distinct(random, count, visible);
    all.insert(all.end(), list.begin(), list.end());
  }
  return place(backend, all);
}

void measure_attention(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                       std::vector<Measurement>& out) {
  std::vector<Measurement> index;
  for (const int m : rows) {
    const AttentionInputs chained = make_inputs(*backends.chained, m);
    const AttentionInputs plain = make_inputs(*backends.plain, m);
    const int64_t window_bytes =
        int64_t{chained.steps.streams} * (kWindow + m / chained.steps.streams - 1) * 528;
    Measurement r{.name = "sparse MLA TP4, 16 heads", .rows = m};
    r.bytes = window_bytes + int64_t{m} * kSelected * 288;
    r.flops = 4.0 * m * kHeads * (kWindow + kSelected) * kWidth;
    r.read_us = ceiling.microseconds(r.bytes);
    r.us = time_attention(*backends.chained, chained);
    r.plain_us = time_attention(*backends.plain, plain);
    r.note = "128 + 512 slots; caches in L2";
    out.push_back(r);
    Measurement s{.name = "index scores + top 512", .rows = m};
    s.bytes = int64_t{chained.steps.streams} * (kContext / kRatio) * 68;
    s.flops = 2.0 * m * kIndexHeads * kIndexWidth * (kContext / kRatio);
    s.read_us = ceiling.microseconds(s.bytes);
    s.us = time_index(*backends.chained, chained);
    s.plain_us = time_index(*backends.plain, plain);
    s.note = "16384 entries a stream; keys in L2";
    index.push_back(s);
  }
  out.insert(out.end(), index.begin(), index.end());
}

}  // namespace spark::bench_gpu
