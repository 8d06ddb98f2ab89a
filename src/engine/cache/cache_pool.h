// All caches of all sequences, in blocks of 256 token positions.
//
//   CachePool pool(backend, cache_shape(config, {.max_sequences = 4, .max_context = 8192, .max_step_rows =
//   512})); pool.open(0); pool.append(0, 0, 300);      // rows at positions 0 .. 299 are about to run
//   pool.upload_tables();        // before the step's operations
//   ... window(layer), main(source), keys(source) go into the operations' arguments ...
//   pool.commit(0);              // after the step: frees window blocks that no later row can see
//   pool.close(0);               // everything is free again, or kept for a prefix
//
// Four groups of blocks, each with a pool, and a table per sequence that all layers of the group share:
//   window   one record per position and backbone layer, kept for the last window + max_rollback positions
//   drafter  the same of the drafter's layers
//   main     compressed entries of every KV source, 256 / ratio per block, kept for the whole sequence
//   keys     index keys of every KV source, likewise
// Beside them lies the open-pair state of ratio-2 sources, a ring per sequence. Record layouts are those of
// engine/numeric/records.h.
//
// With prefix caching, full blocks of sequences opened with their text stay after them (prefix_cache.h), with
// checkpoints of the window groups at multiples of `retention` positions, at the last border before a
// prompt's end, and at the last border of a sequence that closes. A later sequence whose text begins alike is
// opened at the last checkpoint that fits. Borders are multiples of 256, so no pair is ever open there, and
// the records are those that the sequence would have computed itself, since a row's result depends on its
// text only. Blocks that are kept but not held are given up for others when needed, the least recently used
// first.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/cache/prefix_cache.h"
#include "engine/kernels/backend.h"
#include "model/config.h"

namespace spark::engine {

// How far a sequence may be cut back at once: more than the rows of any speculative step.
inline constexpr int32_t kMaxRollback = 31;
// Rows of the open-pair ring: what a cut by kMaxRollback may still need.
inline constexpr int32_t kPairRing = kMaxRollback + 1;

struct CacheLimits {
  int32_t max_sequences = 1;
  int32_t max_context = 4096;   // tokens of one sequence
  int32_t max_step_rows = 512;  // rows of one step, all sequences together
  int64_t budget_bytes = 0;     // of everything; 0: room for every sequence's whole context
  bool prefix_caching = false;
  int32_t retention = 512;  // positions between checkpoints, a multiple of 256
};

struct CacheSource {
  int32_t layer = 0;
  int32_t ratio = 1;
};

struct CacheShape {
  CacheLimits limits;
  int32_t window = 0;          // positions
  int32_t window_layers = 0;   // of the backbone
  int32_t drafter_layers = 0;  // count on from them
  int32_t width = 0;           // of the latent
  int32_t key_width = 0;       // of an index key
  std::vector<CacheSource> sources;
};

CacheShape cache_shape(const model::ModelConfig& config, const CacheLimits& limits);

// Which records of a sequence exist. Main entries and index keys: of all positions below `end` (a ratio-2
// entry once its pair is complete). Window records: from the position given here to `end`, less what has been
// released because no later row can see it. The two kinds of layers differ when the first rows of a prompt
// skipped the decoder: its window records then begin later. Records of encoder layers and all entries follow
// from the tokens alone, those of decoder layers and drafter blocks from the tokens and `decoder_begin`.
struct RecordRange {
  int32_t end = 0;
  int32_t encoder_begin = 0;  // layers below LayerPlan::first_decoder_layer
  int32_t decoder_begin = 0;  // the other layers, and the drafter's
};

enum class CacheGroup : uint8_t { kWindow, kDrafter, kMain, kKeys };
inline constexpr size_t kCacheGroups = 4;
const char* name(CacheGroup group);  // "window", "drafter", "main", "keys"

struct CacheGroupUsage {
  int32_t blocks = 0;
  int32_t in_use = 0;  // held by open sequences
  int32_t idle = 0;    // kept for prefixes only
  uint64_t block_bytes = 0;
};

struct CacheUsage {
  std::array<CacheGroupUsage, kCacheGroups> groups;
  uint64_t bytes = 0;         // allocated, open-pair state and tables included
  uint64_t bytes_in_use = 0;  // of blocks in use
  uint64_t bytes_idle = 0;

  const CacheGroupUsage& of(CacheGroup group) const { return groups[static_cast<size_t>(group)]; }
};

// What a sequence is opened with to take part in prefix caching.
struct SequenceText {
  std::span<const int64_t>
      contents;      // of the positions that are known: token ids, or what stands in their place
  int32_t most = 0;  // the longest prefix to take up
  // Rows of prompts skip the decoder: its window records, and the drafter's, in a prefix are none to go by
  // and begin where the prefix ends. `most` then leaves a whole decoder window to compute.
  bool encoder_only = false;
  uint64_t salt = 0;
};

class CachePool {
 public:
  // Throws Error when the backend has no room, and for limits that make no sense.
  CachePool(Backend& backend, const CacheShape& shape);

  // A sequence is open or closed, and has a length in tokens. Misuse is a programming error.
  void open(int32_t sequence);
  // Opens with a cached prefix; returns its length, a multiple of 256, at most `most`.
  int32_t open(int32_t sequence, const SequenceText& text);
  void close(int32_t sequence);
  bool is_open(int32_t sequence) const { return of(sequence).length >= 0; }
  int32_t length(int32_t sequence) const { return of(sequence).length; }
  // The lowest position at which append() may start: where the last one did, or kMaxRollback before the end
  // of what ran if that is more. 0 is always allowed.
  int32_t lowest_restart(int32_t sequence) const;

  // Drops everything from `begin` on and makes room for `rows` more positions, the first `encoder_only` of
  // which get no records of decoder layers. `contents` of the rows are for prefix caching (of all, or of
  // none: the sequence is not cached from there on). Throws Error when no blocks are left; the sequence is
  // then as long as before the call.
  void append(int32_t sequence, int32_t begin, int32_t rows, int32_t encoder_only = 0,
              std::span<const int64_t> contents = {});
  const RecordRange& records(int32_t sequence) const { return of(sequence).records; }
  // The rows appended have run.
  void commit(int32_t sequence);
  void upload_tables();

  // See StepModel.
  bool has_room(std::span<const int32_t> sequences, std::span<const int32_t> lengths) const;
  int32_t longest_sequence() const;

  // `layer` counts the backbone's layers, then the drafter's; `source` is a layer id of a KV source.
  PagedCache window(int32_t layer) const;
  PagedCache main(int32_t source) const;
  PagedCache keys(int32_t source) const;
  float* pair_state(int32_t source) const;  // null for ratio 1

  CacheUsage usage() const;
  size_t cached_prefixes() const { return prefixes_.size(); }
  // Counts everything again; a difference is a programming error.
  void check_accounting() const;
  const CacheShape& shape() const { return shape_; }

 private:
  struct Group {
    explicit Group(const BlockPoolShape& blocks) : pool(blocks) {}
    BlockPool pool;
    int32_t* table = nullptr;  // in backend memory, [sequences][stride]
    uint64_t block_bytes = 0;
  };
  struct Sequence {
    int32_t length = -1;         // -1: closed
    int32_t ran = 0;             // rows that have run
    int32_t settled = 0;         // what comes before is replaced by a restart at 0 only
    int32_t prompt_border = -1;  // a checkpoint is made there
    RecordRange records = {};
    bool caching = false;                // what follows is cached
    std::vector<int64_t> contents = {};  // of all positions, when caching
    std::vector<PrefixKey> keys = {};    // of the places that are in the prefix cache
    PrefixKey root = {};
  };
  struct SourceMemory {
    CacheSource source;
    uint8_t* main = nullptr;
    uint8_t* keys = nullptr;
    float* pairs = nullptr;
  };

  const Sequence& of(int32_t sequence) const;
  Sequence& of(int32_t sequence);
  Group& group(CacheGroup id) { return groups_[static_cast<size_t>(id)]; }
  const Group& group(CacheGroup id) const { return groups_[static_cast<size_t>(id)]; }
  std::vector<BlockPool*> pools(bool whole);
  const PrefixKey& key_before(const Sequence& s, size_t place) const;
  int32_t first_window_place(int32_t begin) const;
  int32_t missing(const Group& group, bool whole, int32_t sequence, int32_t begin, int32_t end) const;
  bool can_cover(int32_t sequence, int32_t begin, int32_t end) const;
  void cover(Group& group, bool whole, int32_t sequence, int32_t begin, int32_t end);
  void release_all(int32_t sequence);
  void publish(int32_t sequence, int32_t end);
  void publish_place(int32_t sequence, int32_t place);
  void add_checkpoint(int32_t sequence, int32_t place);
  void allocate_memory();
  const SourceMemory& memory_of(int32_t source) const;
  uint8_t* allocate(uint64_t bytes, const char* purpose);
  PagedCache paged(uint8_t* base, const Group& group, int32_t ratio, int32_t record_bytes) const;

  Backend& backend_;
  CacheShape shape_;
  std::vector<Group> groups_;  // [kCacheGroups]; never grows, its pools are referred to
  PrefixCache prefixes_;
  std::vector<Sequence> sequences_;
  std::vector<uint8_t*> window_memory_;  // backbone, then drafter
  std::vector<SourceMemory> sources_;
  uint64_t bytes_ = 0;
};

}  // namespace spark::engine
