// Rows of a table that is too large to load, for steps that each need some: a bounded cache of rows read
// lately, reads of what is missing side by side and joined where they are near, and reading ahead on a thread
// of its own. A table is one or several tensors with the same rows (codes and scales).
//
//   TableReader table({checkpoint.rows("layers.1.engram.embed.weight"), checkpoint.rows("...scale")}, {});
//   table.prefetch(ids_of_the_next_step);            // a hint, returns at once
//   table.begin(ids, {codes, scales});               // what is cached is copied, the rest is being read
//   table.finish();                                  // codes[i * 256 ..], scales[i * 8 ..] are row ids[i]
//
// begin() and finish() belong to one thread. Errors name file and place; after one nothing is in flight and
// the table is as usable as before. Rows are the file's bytes whatever was cached or read ahead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/checkpoint/read_queue.h"
#include "engine/checkpoint/row_cache.h"
#include "engine/checkpoint/row_reader.h"

namespace spark::engine {

struct TableReaderOptions {
  size_t cache_bytes = size_t{128} << 20;  // of records; the index takes about 24 bytes a row more
  // Past the page cache, where 4096 bytes would be kept for a row of 264. False for a machine whose memory
  // holds the tables, or much of them.
  bool direct = true;
  ReadQueueOptions queue = {};
};

// Since the start. Rows count as often as they are asked for.
struct TableCounters {
  uint64_t hits = 0;        // rows that were there when a step asked
  uint64_t awaited = 0;     // rows that were just being read ahead
  uint64_t misses = 0;      // rows that the step had read
  uint64_t prefetched = 0;  // rows read ahead
  uint64_t reads = 0;       // operations on files
  uint64_t bytes = 0;       // read from files
  uint64_t failures = 0;    // steps and read-aheads that failed
  double wait_s = 0;        // that steps waited for rows

  TableCounters& operator+=(const TableCounters& other);
};

class TableReader {
 public:
  TableReader(std::vector<RowReader> parts, const TableReaderOptions& options);
  ~TableReader();
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  int64_t rows() const { return parts_.front().rows(); }
  size_t parts() const { return parts_.size(); }
  size_t row_bytes(size_t part) const { return parts_[part].row_bytes(); }
  const char* method() const { return queue_->method(); }

  // From any thread. When more is asked for than is read, the surplus is forgotten.
  void prefetch(std::span<const int64_t> ids);

  // Throws Error for a row outside the table. `out` has one span for each part, of ids.size() rows; all must
  // stay until finish().
  void begin(std::span<const int64_t> ids, std::span<const std::span<uint8_t>> out);
  void finish();

  TableCounters counters() const;
  // For tests: waits until nothing is left to read ahead.
  void wait_for_prefetches() const;

 private:
  struct Wanted {
    int64_t row = 0;
    size_t place = 0;  // in the step
  };
  // Rows on their way from the files: one run of memory for all extents.
  struct Batch {
    std::vector<int64_t> rows;  // ascending, each once
    std::vector<uint8_t> memory;
    std::span<uint8_t> bytes;  // in it, at a whole block
    std::vector<FileRead> reads;
    std::vector<size_t> at;  // [part][row] where the row lies in `bytes`
  };

  void plan(Batch& batch) const;
  void copy(const Batch& batch, size_t index, uint8_t* record) const;
  void give(const uint8_t* record, size_t place);
  void drain();
  bool start_next();
  void finish_missing();
  void finish_awaited(std::unique_lock<std::mutex>& lock);
  void read_ahead();
  void read_ahead_batch(Batch& batch, ReadQueue& queue);
  void count_reads(const Batch& batch);  // under the lock

  const std::vector<RowReader> parts_;
  std::vector<std::unique_ptr<const RandomAccessFile>>
      direct_files_;  // [part], null: read through the page cache
  const TableReaderOptions options_;
  size_t record_bytes_ = 0;
  std::unique_ptr<ReadQueue> queue_;  // of begin() and finish()

  // Of the step in progress.
  std::vector<std::span<uint8_t>> out_;
  std::vector<Wanted> missing_;  // by row
  size_t finished_ = 0;          // of them, with the rows of earlier reads
  size_t started_ = 0;           // with those being read
  std::vector<Wanted> awaited_;
  Batch step_;
  bool in_progress_ = false;

  mutable std::mutex mutex_;                 // of all that follows
  std::condition_variable ahead_;            // work for the thread, or the end
  mutable std::condition_variable arrived_;  // rows read ahead have come, or will not
  RowCache cache_;
  std::deque<std::vector<int64_t>> to_prefetch_;
  size_t rows_to_prefetch_ = 0;
  bool reading_ahead_ = false;
  bool stopping_ = false;
  TableCounters counters_;
  std::thread thread_;  // runs from the first prefetch() on
};

}  // namespace spark::engine
