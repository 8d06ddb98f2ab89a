// The Engram rows of a step: from token ids to table rows to bytes in the backend's memory. The tables stay
// on disk; only the rows that tokens name are read, those of steps to come ahead of time.
//
//   EngramLookup lookup(backend, checkpoint, config, classes_of_tokens, max_sequences, max_rows, {});
//   lookup.prefetch(prompt, 0);                 // a hint: these tokens will come
//   lookup.append(0, 17);                       // sequence 0 grew by token 17
//   lookup.begin_fetch(rows);                   // starts reading, all tables
//   lookup.finish_fetch();                      // waits and uploads
//   ... lookup.codes(table), lookup.scales(table) go into engram_dequantise ...
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/table_reader.h"
#include "engine/kernels/backend.h"
#include "model/config.h"
#include "model/engram.h"

namespace spark::engine {

// One row of a step: a position of a sequence's history.
struct EngramRow {
  int32_t sequence = 0;
  int32_t position = 0;
};

class EngramLookup {
 public:
  // `classes` maps token ids to their classes (text/engram_map.h). A model without Engram layers has no
  // tables.
  EngramLookup(Backend& backend, const Checkpoint& checkpoint, const model::ModelConfig& config,
               std::vector<int32_t> classes, int32_t max_sequences, int32_t max_rows,
               const TableReaderOptions& options);

  // The history of a sequence: its tokens' classes; the positions of an image span are dead.
  void truncate(int32_t sequence, int32_t length);
  void append(int32_t sequence, int32_t token);
  void append_dead(int32_t sequence);

  // Row ids of one position, [columns].
  void row_ids(int64_t table, const EngramRow& row, std::span<int64_t> ids) const;

  // Consecutive tokens of a text, the first at `position`. Unless that is 0, the first lead() of them only
  // lead up to the others.
  void prefetch(std::span<const int32_t> tokens, int32_t position);
  int32_t lead() const;

  // Both throw Error when a table cannot be read; begin_fetch() may be called again then.
  void begin_fetch(std::span<const EngramRow> rows);
  void finish_fetch();

  int64_t tables() const { return static_cast<int64_t>(tables_.size()); }
  const uint8_t* codes(int64_t table) const { return tables_[static_cast<size_t>(table)].codes; }
  const uint8_t* scales(int64_t table) const { return tables_[static_cast<size_t>(table)].scales; }

  TableCounters counters() const;    // of all tables together; from any thread
  void wait_for_prefetches() const;  // for tests
  const char* read_method() const { return tables_.empty() ? "none" : tables_.front().reader->method(); }

 private:
  struct Table {
    std::unique_ptr<TableReader> reader;
    uint8_t* codes = nullptr;   // E4M3 [rows][columns * head width]
    uint8_t* scales = nullptr;  // UE8M0 [rows][columns * head width / 32]
    std::vector<uint8_t> staged_codes;
    std::vector<uint8_t> staged_scales;
  };

  Backend& backend_;
  model::EngramHash hash_;
  std::vector<int32_t> classes_;
  std::vector<std::vector<int32_t>> histories_;  // [sequence][position]
  std::vector<Table> tables_;
  std::vector<int64_t> ids_;  // [rows][columns]
};

}  // namespace spark::engine
