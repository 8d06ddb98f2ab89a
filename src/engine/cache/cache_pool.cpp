#include "engine/cache/cache_pool.h"

#include <algorithm>
#include <string>

#include "common/error.h"

namespace spark::engine {
namespace {

constexpr int32_t places(int32_t positions) {
  return (positions + kCacheBlockTokens - 1) / kCacheBlockTokens;
}

BlockPoolShape window_blocks(const CacheShape& shape) {
  // A sequence holds its last positions and the rows of the step; both may straddle a block border.
  const int32_t kept = places(shape.window + kMaxRollback) + 2;
  const int32_t whole = places(shape.limits.max_context);
  const int64_t wanted =
      static_cast<int64_t>(shape.limits.max_sequences) * kept + places(shape.limits.max_step_rows);
  const int64_t most = static_cast<int64_t>(shape.limits.max_sequences) * whole;
  return {.blocks = static_cast<int32_t>(std::min(wanted, most)),
          .sequences = shape.limits.max_sequences,
          .table_stride = whole};
}

BlockPoolShape global_blocks(const CacheShape& shape) {
  const int32_t whole = places(shape.limits.max_context);
  const int32_t blocks = shape.sources.empty() ? 0 : shape.limits.max_sequences * whole;
  return {.blocks = blocks, .sequences = shape.limits.max_sequences, .table_stride = whole};
}

int32_t records_per_block(int32_t ratio) {
  return kCacheBlockTokens / ratio;
}

}  // namespace

CacheShape cache_shape(const model::ModelConfig& config, const CacheLimits& limits) {
  CacheShape shape{.limits = limits,
                   .window = static_cast<int32_t>(config.sliding_window),
                   .window_layers = static_cast<int32_t>(config.all_layers()),
                   .width = static_cast<int32_t>(config.head_dim),
                   .key_width = static_cast<int32_t>(config.index_head_dim),
                   .sources = {}};
  for (const int64_t layer : config.kv_source_layer_ids) {
    shape.sources.push_back(
        {.layer = static_cast<int32_t>(layer),
         .ratio = static_cast<int32_t>(config.compress_ratios[static_cast<size_t>(layer)])});
  }
  return shape;
}

CachePool::CachePool(Backend& backend, const CacheShape& shape)
    : backend_(backend),
      shape_(shape),
      window_(window_blocks(shape)),
      global_(global_blocks(shape)),
      lengths_(static_cast<size_t>(shape.limits.max_sequences), -1),
      records_(static_cast<size_t>(shape.limits.max_sequences)) {
  const uint64_t window_bytes = static_cast<uint64_t>(window_.blocks()) * window_block_bytes() /
                                static_cast<uint64_t>(shape.window_layers);
  for (int32_t layer = 0; layer < shape.window_layers; ++layer) {
    window_memory_.push_back(allocate(window_bytes, "the window cache"));
  }
  const uint64_t global_blocks = static_cast<uint64_t>(global_.blocks());
  for (const CacheSource& source : shape.sources) {
    const uint64_t records = global_blocks * static_cast<uint64_t>(records_per_block(source.ratio));
    SourceMemory memory{.source = source};
    memory.main =
        allocate(records * static_cast<uint64_t>(main_record_bytes(shape.width)), "the compressed cache");
    memory.keys = allocate(records * static_cast<uint64_t>(index_key_record_bytes(shape.key_width)),
                           "the index-key cache");
    if (source.ratio > 1) {
      const uint64_t floats = static_cast<uint64_t>(shape.limits.max_sequences) * kPairRing * 2 *
                              static_cast<uint64_t>(shape.width);
      memory.pairs = reinterpret_cast<float*>(allocate(floats * sizeof(float), "the open-pair state"));
    }
    sources_.push_back(memory);
  }
  const uint64_t table_bytes = static_cast<uint64_t>(shape.limits.max_sequences) *
                               static_cast<uint64_t>(window_.table_stride()) * sizeof(int32_t);
  window_table_ = reinterpret_cast<int32_t*>(allocate(table_bytes, "the cache tables"));
  global_table_ = reinterpret_cast<int32_t*>(allocate(table_bytes, "the cache tables"));
}

uint8_t* CachePool::allocate(uint64_t bytes, const char* purpose) {
  bytes_ += bytes;
  return static_cast<uint8_t*>(backend_.allocate(bytes, purpose));
}

uint64_t CachePool::window_block_bytes() const {
  return static_cast<uint64_t>(kCacheBlockTokens) * static_cast<uint64_t>(window_record_bytes(shape_.width)) *
         static_cast<uint64_t>(shape_.window_layers);
}

uint64_t CachePool::global_block_bytes() const {
  uint64_t bytes = 0;
  for (const CacheSource& source : shape_.sources) {
    bytes +=
        static_cast<uint64_t>(records_per_block(source.ratio)) *
        static_cast<uint64_t>(main_record_bytes(shape_.width) + index_key_record_bytes(shape_.key_width));
  }
  return bytes;
}

void CachePool::open(int32_t sequence) {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.limits.max_sequences && !is_open(sequence));
  lengths_[static_cast<size_t>(sequence)] = 0;
  records_[static_cast<size_t>(sequence)] = {};
}

void CachePool::close(int32_t sequence) {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.limits.max_sequences && is_open(sequence));
  window_.release(sequence, 0, window_.table_stride());
  global_.release(sequence, 0, global_.table_stride());
  lengths_[static_cast<size_t>(sequence)] = -1;
}

int32_t CachePool::lowest_restart(int32_t sequence) const {
  return std::max(0, length(sequence) - kMaxRollback);
}

void CachePool::append(int32_t sequence, int32_t begin, int32_t rows, int32_t encoder_only) {
  SPARK_CHECK(is_open(sequence) && rows >= 0 && encoder_only >= 0 && encoder_only <= rows);
  SPARK_CHECK(begin <= length(sequence) && begin + rows <= shape_.limits.max_context);
  SPARK_CHECK(begin == 0 || begin >= lowest_restart(sequence));
  const int32_t end = begin + rows;
  const int32_t oldest_seen = begin == 0 ? 0 : std::max(0, begin - shape_.window + 1) / kCacheBlockTokens;
  const int32_t global_end = sources_.empty() ? 0 : places(end);
  if (window_.blocks_missing(sequence, oldest_seen, places(end)) > window_.blocks_free() ||
      global_.blocks_missing(sequence, 0, global_end) > global_.blocks_free()) {
    throw Error("the cache has no blocks left for " + std::to_string(rows) + " more tokens", "cache",
                "close a sequence, or start with a larger cache");
  }
  window_.cover(sequence, oldest_seen, places(end));
  global_.cover(sequence, 0, global_end);
  window_.release(sequence, places(end), window_.table_stride());
  global_.release(sequence, places(end), global_.table_stride());
  lengths_[static_cast<size_t>(sequence)] = end;
  RecordRange& records = records_[static_cast<size_t>(sequence)];
  records.end = end;
  records.encoder_begin = std::min(records.encoder_begin, begin);
  records.decoder_begin = encoder_only > 0 ? begin + encoder_only : std::min(records.decoder_begin, begin);
}

void CachePool::release_passed(int32_t sequence) {
  const int32_t oldest_needed = length(sequence) - kMaxRollback - shape_.window + 1;
  window_.release(sequence, 0, std::max(0, oldest_needed) / kCacheBlockTokens);
}

void CachePool::upload_tables() {
  const auto upload = [&](BlockPool& pool, int32_t* to) {
    for (int32_t sequence = 0; sequence < shape_.limits.max_sequences; ++sequence) {
      if (!pool.take_change(sequence)) continue;
      const auto table = pool.table(sequence);
      backend_.upload(to + static_cast<size_t>(sequence) * table.size(), table.data(), table.size_bytes());
    }
  };
  upload(window_, window_table_);
  upload(global_, global_table_);
}

PagedCache CachePool::paged(uint8_t* base, const int32_t* table, const BlockPool& pool, int32_t ratio,
                            int32_t record_bytes) const {
  return {.base = base,
          .block_table = table,
          .table_stride = pool.table_stride(),
          .records_per_block = records_per_block(ratio),
          .record_bytes = record_bytes};
}

PagedCache CachePool::window(int32_t layer) const {
  return paged(window_memory_[static_cast<size_t>(layer)], window_table_, window_, 1,
               window_record_bytes(shape_.width));
}

const CachePool::SourceMemory& CachePool::memory_of(int32_t source) const {
  const auto found = std::find_if(sources_.begin(), sources_.end(),
                                  [&](const SourceMemory& memory) { return memory.source.layer == source; });
  SPARK_CHECK(found != sources_.end());
  return *found;
}

PagedCache CachePool::main(int32_t source) const {
  const SourceMemory& memory = memory_of(source);
  return paged(memory.main, global_table_, global_, memory.source.ratio, main_record_bytes(shape_.width));
}

PagedCache CachePool::keys(int32_t source) const {
  const SourceMemory& memory = memory_of(source);
  return paged(memory.keys, global_table_, global_, memory.source.ratio,
               index_key_record_bytes(shape_.key_width));
}

float* CachePool::pair_state(int32_t source) const {
  return memory_of(source).pairs;
}

CacheUsage CachePool::usage() const {
  const uint64_t window_in_use = static_cast<uint64_t>(window_.blocks_in_use());
  const uint64_t global_in_use = static_cast<uint64_t>(global_.blocks_in_use());
  return {.window_blocks = window_.blocks(),
          .window_blocks_in_use = window_.blocks_in_use(),
          .global_blocks = global_.blocks(),
          .global_blocks_in_use = global_.blocks_in_use(),
          .bytes = bytes_,
          .bytes_in_use = window_in_use * window_block_bytes() + global_in_use * global_block_bytes()};
}

}  // namespace spark::engine
