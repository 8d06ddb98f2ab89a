#include "engine/cache/cache_pool.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "model/cost.h"

namespace spark::engine {
namespace {

constexpr int32_t places(int32_t positions) {
  return (positions + kCacheBlockTokens - 1) / kCacheBlockTokens;
}

constexpr bool is_whole(CacheGroup group) {
  return group == CacheGroup::kMain || group == CacheGroup::kKeys;
}

int32_t records_per_block(int32_t ratio) {
  return kCacheBlockTokens / ratio;
}

uint64_t block_bytes(const CacheShape& shape, CacheGroup group) {
  const auto window = static_cast<uint64_t>(kCacheBlockTokens * window_record_bytes(shape.width));
  if (group == CacheGroup::kWindow) return window * static_cast<uint64_t>(shape.window_layers);
  if (group == CacheGroup::kDrafter) return window * static_cast<uint64_t>(shape.drafter_layers);
  const int32_t record =
      group == CacheGroup::kMain ? main_record_bytes(shape.width) : index_key_record_bytes(shape.key_width);
  uint64_t bytes = 0;
  for (const CacheSource& source : shape.sources) {
    bytes += static_cast<uint64_t>(records_per_block(source.ratio)) * static_cast<uint64_t>(record);
  }
  return bytes;
}

uint64_t table_bytes(const CacheShape& shape) {
  return static_cast<uint64_t>(shape.limits.max_sequences) *
         static_cast<uint64_t>(places(shape.limits.max_context)) * sizeof(int32_t);
}

uint64_t pair_bytes(const CacheShape& shape) {
  return static_cast<uint64_t>(shape.limits.max_sequences) * kPairRing * 2 *
         static_cast<uint64_t>(shape.width) * sizeof(float);
}

model::NativeCacheBlocks block_counts(const CacheShape& shape) {
  uint64_t fixed = kCacheGroups * table_bytes(shape);
  for (const CacheSource& source : shape.sources) fixed += source.ratio > 1 ? pair_bytes(shape) : 0;
  const CacheLimits& limits = shape.limits;
  return model::native_cache_blocks(
      {.sequences = limits.max_sequences,
       .context = limits.max_context,
       .step_rows = limits.max_step_rows,
       .budget_bytes = limits.budget_bytes,
       .prefix_caching = limits.prefix_caching},
      {.window = shape.window,
       .window_block_bytes = static_cast<int64_t>(block_bytes(shape, CacheGroup::kWindow) +
                                                  block_bytes(shape, CacheGroup::kDrafter)),
       .whole_block_bytes = static_cast<int64_t>(block_bytes(shape, CacheGroup::kMain) +
                                                 block_bytes(shape, CacheGroup::kKeys)),
       .fixed_bytes = static_cast<int64_t>(fixed)});
}

void check_limits(const CacheShape& shape) {
  const int32_t retention = shape.limits.retention;
  if (retention < kCacheBlockTokens || retention % kCacheBlockTokens != 0) {
    throw Error("is " + std::to_string(retention), "--prefix-cache-retention-interval",
                "choose a multiple of " + std::to_string(kCacheBlockTokens));
  }
}

}  // namespace

const char* name(CacheGroup group) {
  static constexpr const char* kNames[kCacheGroups] = {"window", "drafter", "main", "keys"};
  return kNames[static_cast<size_t>(group)];
}

CacheShape cache_shape(const model::ModelConfig& config, const CacheLimits& limits) {
  CacheShape shape{.limits = limits,
                   .window = static_cast<int32_t>(config.sliding_window),
                   .window_layers = static_cast<int32_t>(config.num_hidden_layers),
                   .drafter_layers = static_cast<int32_t>(config.num_nextn_predict_layers),
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
      prefixes_({}, {}),
      sequences_(static_cast<size_t>(shape.limits.max_sequences)) {
  check_limits(shape_);
  const model::NativeCacheBlocks counts = block_counts(shape_);
  groups_.reserve(kCacheGroups);
  for (size_t i = 0; i < kCacheGroups; ++i) {
    const auto id = static_cast<CacheGroup>(i);
    const int64_t blocks = is_whole(id) ? counts.whole : counts.window;
    groups_.emplace_back(BlockPoolShape{.blocks = static_cast<int32_t>(blocks),
                                        .sequences = shape.limits.max_sequences,
                                        .table_stride = places(shape.limits.max_context)});
    groups_.back().block_bytes = block_bytes(shape_, id);
  }
  prefixes_ = PrefixCache(pools(true), pools(false));
  allocate_memory();
}

std::vector<BlockPool*> CachePool::pools(bool whole) {
  std::vector<BlockPool*> out;
  for (size_t i = 0; i < kCacheGroups; ++i) {
    if (is_whole(static_cast<CacheGroup>(i)) == whole) out.push_back(&groups_[i].pool);
  }
  return out;
}

void CachePool::allocate_memory() {
  const auto window_blocks = static_cast<uint64_t>(group(CacheGroup::kWindow).pool.blocks());
  const uint64_t window_bytes =
      window_blocks * static_cast<uint64_t>(kCacheBlockTokens * window_record_bytes(shape_.width));
  for (int32_t layer = 0; layer < shape_.window_layers + shape_.drafter_layers; ++layer) {
    window_memory_.push_back(allocate(window_bytes, "the window cache"));
  }
  const auto whole_blocks = static_cast<uint64_t>(group(CacheGroup::kMain).pool.blocks());
  for (const CacheSource& source : shape_.sources) {
    const uint64_t records = whole_blocks * static_cast<uint64_t>(records_per_block(source.ratio));
    SourceMemory memory{.source = source};
    memory.main =
        allocate(records * static_cast<uint64_t>(main_record_bytes(shape_.width)), "the compressed cache");
    memory.keys = allocate(records * static_cast<uint64_t>(index_key_record_bytes(shape_.key_width)),
                           "the index-key cache");
    if (source.ratio > 1) {
      memory.pairs = reinterpret_cast<float*>(allocate(pair_bytes(shape_), "the open-pair state"));
    }
    sources_.push_back(memory);
  }
  for (Group& each : groups_) {
    each.table = reinterpret_cast<int32_t*>(allocate(table_bytes(shape_), "the cache tables"));
  }
}

uint8_t* CachePool::allocate(uint64_t bytes, const char* purpose) {
  bytes_ += bytes;
  return static_cast<uint8_t*>(backend_.allocate(bytes, purpose));
}

const CachePool::Sequence& CachePool::of(int32_t sequence) const {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.limits.max_sequences);
  return sequences_[static_cast<size_t>(sequence)];
}

CachePool::Sequence& CachePool::of(int32_t sequence) {
  SPARK_CHECK(sequence >= 0 && sequence < shape_.limits.max_sequences);
  return sequences_[static_cast<size_t>(sequence)];
}

void CachePool::open(int32_t sequence) {
  SPARK_CHECK(!is_open(sequence));
  of(sequence) = Sequence{.length = 0};
}

int32_t CachePool::open(int32_t sequence, const SequenceText& text) {
  open(sequence);
  if (!shape_.limits.prefix_caching || sources_.empty()) return 0;
  Sequence& s = of(sequence);
  s.caching = true;
  s.root = PrefixCache::root(text.salt);
  s.prompt_border = text.most / kCacheBlockTokens * kCacheBlockTokens;
  size_t usable = 0;  // places up to the last checkpoint
  const int32_t most = std::min(text.most, static_cast<int32_t>(text.contents.size()));
  for (int32_t end = kCacheBlockTokens; end <= most; end += kCacheBlockTokens) {
    const auto block = text.contents.subspan(static_cast<size_t>(end - kCacheBlockTokens), kCacheBlockTokens);
    PrefixKey key = PrefixCache::next(key_before(s, s.keys.size()), block);
    if (!prefixes_.contains(key)) break;
    s.keys.push_back(std::move(key));
    if (prefixes_.has_checkpoint(s.keys.back())) usable = s.keys.size();
  }
  s.keys.resize(usable);
  if (usable == 0) return 0;
  for (size_t place = 0; place < usable; ++place) {
    const auto blocks = prefixes_.whole(s.keys[place]);
    group(CacheGroup::kMain).pool.share(sequence, static_cast<int32_t>(place), blocks[0]);
    group(CacheGroup::kKeys).pool.share(sequence, static_cast<int32_t>(place), blocks[1]);
    prefixes_.touch(s.keys[place]);
  }
  s.length = s.ran = s.settled = static_cast<int32_t>(usable) * kCacheBlockTokens;
  s.records = {.end = s.length, .encoder_begin = 0, .decoder_begin = text.encoder_only ? s.length : 0};
  s.contents.assign(text.contents.begin(), text.contents.begin() + s.length);
  const auto& checkpoint = prefixes_.checkpoint(s.keys.back());
  const int32_t first = first_window_place(s.length);
  for (const size_t i : {size_t{0}, size_t{1}}) {
    BlockPool& pool = groups_[i].pool;  // window, drafter
    for (size_t n = 0; n < checkpoint[i].size(); ++n) {
      pool.share(sequence, first + static_cast<int32_t>(n), checkpoint[i][n]);
    }
  }
  return s.length;
}

void CachePool::close(int32_t sequence) {
  SPARK_CHECK(is_open(sequence));
  Sequence& s = of(sequence);
  // No row will be replaced any more: all that ran is good for others.
  publish(sequence, std::min(s.ran, s.length));
  if (s.caching && !s.keys.empty()) add_checkpoint(sequence, static_cast<int32_t>(s.keys.size()) - 1);
  release_all(sequence);
  s = Sequence{};
}

void CachePool::release_all(int32_t sequence) {
  for (Group& each : groups_) each.pool.release(sequence, 0, each.pool.table_stride());
}

int32_t CachePool::lowest_restart(int32_t sequence) const {
  const Sequence& s = of(sequence);
  return std::max(s.settled, s.ran - kMaxRollback);
}

// The place of the oldest record that a row at `begin` sees.
int32_t CachePool::first_window_place(int32_t begin) const {
  return std::max(0, begin - shape_.window + 1) / kCacheBlockTokens;
}

int32_t CachePool::missing(const Group& group, bool whole, int32_t sequence, int32_t begin,
                           int32_t end) const {
  if (whole) return sources_.empty() ? 0 : group.pool.blocks_missing(sequence, 0, places(end));
  return group.pool.blocks_missing(sequence, first_window_place(begin), places(end));
}

bool CachePool::can_cover(int32_t sequence, int32_t begin, int32_t end) const {
  for (size_t i = 0; i < kCacheGroups; ++i) {
    const BlockPool& pool = groups_[i].pool;
    if (missing(groups_[i], is_whole(static_cast<CacheGroup>(i)), sequence, begin, end) >
        pool.blocks_free() + pool.blocks_idle()) {
      return false;
    }
  }
  return true;
}

void CachePool::cover(Group& group, bool whole, int32_t sequence, int32_t begin, int32_t end) {
  while (group.pool.blocks_free() < missing(group, whole, sequence, begin, end)) {
    const bool evicted = whole ? prefixes_.evict_whole() : prefixes_.evict_checkpoint();
    SPARK_CHECK(evicted);
  }
  if (!whole) {
    group.pool.cover(sequence, first_window_place(begin), places(end));
  } else if (!sources_.empty()) {
    group.pool.cover(sequence, 0, places(end));
  }
  group.pool.release(sequence, places(end), group.pool.table_stride());
}

void CachePool::append(int32_t sequence, int32_t begin, int32_t rows, int32_t encoder_only,
                       std::span<const int64_t> contents) {
  SPARK_CHECK(is_open(sequence) && rows >= 0 && encoder_only >= 0 && encoder_only <= rows);
  Sequence& s = of(sequence);
  SPARK_CHECK(begin >= 0 && begin <= s.length && begin + rows <= shape_.limits.max_context);
  SPARK_CHECK(begin == 0 || begin >= lowest_restart(sequence));
  const int32_t end = begin + rows;
  if (begin == 0 && !s.keys.empty()) {
    // Written again from the start: what is in the prefix cache must not be.
    for (size_t i = 0; i < kCacheGroups; ++i) {
      const BlockPool& pool = groups_[i].pool;
      const bool needed = !is_whole(static_cast<CacheGroup>(i)) || !sources_.empty();
      if (needed &&
          places(end) > pool.blocks_free() + pool.blocks_idle() + pool.blocks_held_alone(sequence)) {
        throw Error("the cache has no blocks left for " + std::to_string(rows) + " tokens", "cache",
                    "close a sequence, or start with a larger cache");
      }
    }
    release_all(sequence);
    s.keys.clear();
  }
  if (!can_cover(sequence, begin, end)) {
    throw Error("the cache has no blocks left for " + std::to_string(rows) + " more tokens", "cache",
                "close a sequence, or start with a larger cache");
  }
  for (size_t i = 0; i < kCacheGroups; ++i) {
    cover(groups_[i], is_whole(static_cast<CacheGroup>(i)), sequence, begin, end);
  }
  s.length = end;
  s.settled = begin;
  s.ran = std::min(s.ran, begin);
  s.records.end = end;
  s.records.encoder_begin = std::min(s.records.encoder_begin, begin);
  s.records.decoder_begin =
      encoder_only > 0 ? begin + encoder_only : std::min(s.records.decoder_begin, begin);
  if (!s.caching) return;
  s.contents.resize(static_cast<size_t>(begin));
  if (std::ssize(contents) == rows) {
    s.contents.insert(s.contents.end(), contents.begin(), contents.end());
  } else {
    s.caching = false;
  }
}

const PrefixKey& CachePool::key_before(const Sequence& s, size_t place) const {
  return place == 0 ? s.root : s.keys[place - 1];
}

void CachePool::commit(int32_t sequence) {
  Sequence& s = of(sequence);
  SPARK_CHECK(is_open(sequence));
  s.ran = s.length;
  publish(sequence, s.ran - kMaxRollback);
  const int32_t oldest_needed = s.length - kMaxRollback - shape_.window + 1;
  const int32_t passed = std::max(0, oldest_needed) / kCacheBlockTokens;
  group(CacheGroup::kWindow).pool.release(sequence, 0, passed);
  group(CacheGroup::kDrafter).pool.release(sequence, 0, passed);
}

// Full blocks that end by `end` go into the prefix cache. They are never written again: see append().
void CachePool::publish(int32_t sequence, int32_t end) {
  Sequence& s = of(sequence);
  if (!s.caching) return;
  for (auto place = static_cast<int32_t>(s.keys.size()); (place + 1) * kCacheBlockTokens <= end; ++place) {
    publish_place(sequence, place);
    const int32_t border = (place + 1) * kCacheBlockTokens;
    if (border % shape_.limits.retention == 0 || border == s.prompt_border) add_checkpoint(sequence, place);
  }
}

void CachePool::publish_place(int32_t sequence, int32_t place) {
  Sequence& s = of(sequence);
  const auto at = static_cast<size_t>(place);
  const auto block = std::span<const int64_t>(s.contents)
                         .subspan(at * kCacheBlockTokens, static_cast<size_t>(kCacheBlockTokens));
  PrefixKey key = PrefixCache::next(key_before(s, at), block);
  BlockPool& main = group(CacheGroup::kMain).pool;
  BlockPool& keys = group(CacheGroup::kKeys).pool;
  if (!prefixes_.contains(key)) {
    prefixes_.insert(key, key_before(s, at), {main.table(sequence)[at], keys.table(sequence)[at]});
  } else if (prefixes_.whole(key)[0] != main.table(sequence)[at]) {
    // Another sequence was first, with the same bytes: one copy will do.
    main.release(sequence, place, place + 1);
    main.share(sequence, place, prefixes_.whole(key)[0]);
    keys.release(sequence, place, place + 1);
    keys.share(sequence, place, prefixes_.whole(key)[1]);
  }
  prefixes_.touch(key);
  s.keys.push_back(std::move(key));
}

void CachePool::add_checkpoint(int32_t sequence, int32_t place) {
  const PrefixKey& key = of(sequence).keys[static_cast<size_t>(place)];
  if (prefixes_.has_checkpoint(key)) return prefixes_.touch(key);
  const int32_t first = first_window_place((place + 1) * kCacheBlockTokens);
  std::vector<std::vector<int32_t>> blocks;
  for (const CacheGroup id : {CacheGroup::kWindow, CacheGroup::kDrafter}) {
    const auto table = group(id).pool.table(sequence);
    const auto seen = table.subspan(static_cast<size_t>(first), static_cast<size_t>(place + 1 - first));
    if (std::find(seen.begin(), seen.end(), -1) != seen.end()) return;  // already passed
    blocks.emplace_back(seen.begin(), seen.end());
  }
  prefixes_.add_checkpoint(key, std::move(blocks));
}

bool CachePool::has_room(std::span<const int32_t> sequences, std::span<const int32_t> lengths) const {
  if (sources_.empty()) return true;
  // Window groups are made for whatever fits a step.
  int64_t wanted = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int32_t held = is_open(sequences[i]) ? places(length(sequences[i])) : 0;
    wanted += std::max(0, places(lengths[i]) - held);
  }
  const BlockPool& pool = group(CacheGroup::kMain).pool;
  return wanted <= pool.blocks_free() + pool.blocks_idle();
}

int32_t CachePool::longest_sequence() const {
  if (sources_.empty()) return shape_.limits.max_context;
  const int64_t held = int64_t{group(CacheGroup::kMain).pool.blocks()} * kCacheBlockTokens;
  return static_cast<int32_t>(std::min<int64_t>(shape_.limits.max_context, held));
}

void CachePool::upload_tables() {
  for (Group& each : groups_) {
    for (int32_t sequence = 0; sequence < shape_.limits.max_sequences; ++sequence) {
      if (!each.pool.take_change(sequence)) continue;
      const auto table = each.pool.table(sequence);
      backend_.upload(each.table + static_cast<size_t>(sequence) * table.size(), table.data(),
                      table.size_bytes());
    }
  }
}

PagedCache CachePool::paged(uint8_t* base, const Group& group, int32_t ratio, int32_t record_bytes) const {
  return {.base = base,
          .block_table = group.table,
          .table_stride = group.pool.table_stride(),
          .records_per_block = records_per_block(ratio),
          .record_bytes = record_bytes};
}

PagedCache CachePool::window(int32_t layer) const {
  const CacheGroup id = layer < shape_.window_layers ? CacheGroup::kWindow : CacheGroup::kDrafter;
  return paged(window_memory_[static_cast<size_t>(layer)], group(id), 1, window_record_bytes(shape_.width));
}

const CachePool::SourceMemory& CachePool::memory_of(int32_t source) const {
  const auto found = std::find_if(sources_.begin(), sources_.end(),
                                  [&](const SourceMemory& memory) { return memory.source.layer == source; });
  SPARK_CHECK(found != sources_.end());
  return *found;
}

PagedCache CachePool::main(int32_t source) const {
  const SourceMemory& memory = memory_of(source);
  return paged(memory.main, group(CacheGroup::kMain), memory.source.ratio, main_record_bytes(shape_.width));
}

PagedCache CachePool::keys(int32_t source) const {
  const SourceMemory& memory = memory_of(source);
  return paged(memory.keys, group(CacheGroup::kKeys), memory.source.ratio,
               index_key_record_bytes(shape_.key_width));
}

float* CachePool::pair_state(int32_t source) const {
  return memory_of(source).pairs;
}

CacheUsage CachePool::usage() const {
  CacheUsage usage{.groups = {}, .bytes = bytes_};
  for (size_t i = 0; i < kCacheGroups; ++i) {
    const BlockPool& pool = groups_[i].pool;
    usage.groups[i] = {.blocks = pool.blocks(),
                       .in_use = pool.blocks_in_use(),
                       .idle = pool.blocks_idle(),
                       .block_bytes = groups_[i].block_bytes};
    usage.bytes_in_use += static_cast<uint64_t>(pool.blocks_in_use()) * groups_[i].block_bytes;
    usage.bytes_idle += static_cast<uint64_t>(pool.blocks_idle()) * groups_[i].block_bytes;
  }
  return usage;
}

void CachePool::check_accounting() const {
  for (const Group& each : groups_) each.pool.check_accounting();
  for (int32_t sequence = 0; sequence < shape_.limits.max_sequences; ++sequence) {
    const int32_t wanted = is_open(sequence) && !sources_.empty() ? places(length(sequence)) : 0;
    for (const CacheGroup id : {CacheGroup::kMain, CacheGroup::kKeys}) {
      const BlockPool& pool = group(id).pool;
      SPARK_CHECK(pool.blocks_missing(sequence, 0, pool.table_stride()) == pool.table_stride() - wanted);
    }
  }
}

}  // namespace spark::engine
