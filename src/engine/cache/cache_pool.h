// All caches of all sequences, in blocks of 256 token positions.
//
//   CachePool pool(backend, cache_shape(config, {.max_sequences = 4, .max_context = 8192, .max_step_rows =
//   512})); pool.open(0); pool.append(0, 0, 300);      // rows at positions 0 .. 299 are about to run
//   pool.upload_tables();        // before the step's operations
//   ... window(layer), main(source), keys(source) go into the operations' arguments ...
//   pool.release_passed(0);      // after the step: frees window blocks that no later row can see
//   pool.close(0);               // everything is free again
//
// Two groups of blocks, each with one table per sequence that all layers of the group share:
//   window  one record per position and layer (drafter layers included); kept for the last window +
//   max_rollback positions global  main and index-key records of every KV source, 256 / ratio per block; kept
//   for the whole sequence
// Beside them lies the open-pair state of ratio-2 sources, a ring per sequence. Record layouts are those of
// engine/numeric/records.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/block_pool.h"
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
};

struct CacheSource {
  int32_t layer = 0;
  int32_t ratio = 1;
};

struct CacheShape {
  CacheLimits limits;
  int32_t window = 0;         // positions
  int32_t window_layers = 0;  // backbone, then drafter
  int32_t width = 0;          // of the latent
  int32_t key_width = 0;      // of an index key
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

struct CacheUsage {
  int32_t window_blocks = 0;
  int32_t window_blocks_in_use = 0;
  int32_t global_blocks = 0;
  int32_t global_blocks_in_use = 0;
  uint64_t bytes = 0;         // allocated, open-pair state and tables included
  uint64_t bytes_in_use = 0;  // of blocks in use
};

class CachePool {
 public:
  // Throws Error when the backend has no room.
  CachePool(Backend& backend, const CacheShape& shape);

  // A sequence is open or closed, and has a length in tokens. Misuse is a programming error.
  void open(int32_t sequence);
  void close(int32_t sequence);
  bool is_open(int32_t sequence) const { return lengths_[static_cast<size_t>(sequence)] >= 0; }
  int32_t length(int32_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  // The lowest position at which append() may start; 0 is always allowed.
  int32_t lowest_restart(int32_t sequence) const;

  // Drops everything from `begin` on and makes room for `rows` more positions, the first `encoder_only` of
  // which get no records of decoder layers. Throws Error when no blocks are left; the sequence is then as
  // long as before the call.
  void append(int32_t sequence, int32_t begin, int32_t rows, int32_t encoder_only = 0);
  const RecordRange& records(int32_t sequence) const { return records_[static_cast<size_t>(sequence)]; }
  void release_passed(int32_t sequence);
  void upload_tables();

  // `layer` counts the backbone's layers, then the drafter's; `source` is a layer id of a KV source.
  PagedCache window(int32_t layer) const;
  PagedCache main(int32_t source) const;
  PagedCache keys(int32_t source) const;
  float* pair_state(int32_t source) const;  // null for ratio 1

  CacheUsage usage() const;
  const CacheShape& shape() const { return shape_; }

 private:
  struct SourceMemory {
    CacheSource source;
    uint8_t* main = nullptr;
    uint8_t* keys = nullptr;
    float* pairs = nullptr;
  };
  const SourceMemory& memory_of(int32_t source) const;
  uint8_t* allocate(uint64_t bytes, const char* purpose);
  uint64_t window_block_bytes() const;
  uint64_t global_block_bytes() const;
  PagedCache paged(uint8_t* base, const int32_t* table, const BlockPool& pool, int32_t ratio,
                   int32_t record_bytes) const;

  Backend& backend_;
  CacheShape shape_;
  BlockPool window_;
  BlockPool global_;
  std::vector<int32_t> lengths_;  // -1: closed
  std::vector<RecordRange> records_;
  std::vector<uint8_t*> window_memory_;
  std::vector<SourceMemory> sources_;
  int32_t* window_table_ = nullptr;  // in backend memory, [sequences][stride]
  int32_t* global_table_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace spark::engine
