#include "engine/checkpoint/table_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "engine/checkpoint/direct_blocks.h"
#include "engine/checkpoint/read_extents.h"

namespace spark::engine {
namespace {

// Rows read ahead at a time: enough to keep a disk busy, few enough that a step need not wait long for them.
constexpr size_t kAheadRows = 4096;
// Missing rows of a step read at a time.
constexpr size_t kStepRows = 8192;
// Rows that may wait to be read ahead; a long prompt's chunk has 200,000.
constexpr size_t kMostAhead = size_t{1} << 20;

size_t record_size(const std::vector<RowReader>& parts) {
  size_t bytes = 0;
  for (const RowReader& part : parts) {
    SPARK_CHECK(part.rows() == parts.front().rows());
    bytes += part.row_bytes();
  }
  return bytes;
}

static_assert(kExtentGap >= kDirectBlock, "extents of whole blocks must not overlap");

size_t cache_places(const std::vector<RowReader>& parts, size_t bytes) {
  return std::min(bytes / record_size(parts), static_cast<size_t>(parts.front().rows()));
}

}  // namespace

TableCounters& TableCounters::operator+=(const TableCounters& other) {
  hits += other.hits;
  awaited += other.awaited;
  misses += other.misses;
  prefetched += other.prefetched;
  reads += other.reads;
  bytes += other.bytes;
  failures += other.failures;
  wait_s += other.wait_s;
  return *this;
}

TableReader::TableReader(std::vector<RowReader> parts, const TableReaderOptions& options)
    : parts_(std::move(parts)),
      options_(options),
      record_bytes_(record_size(parts_)),
      queue_(make_read_queue(options.queue)),
      cache_(cache_places(parts_, options.cache_bytes), record_bytes_) {
  for (const RowReader& part : parts_) {
    std::unique_ptr<const RandomAccessFile> file;
    if (options.direct) file = std::make_unique<RandomAccessFile>(part.path(), FileAccess::kDirect);
    if (file != nullptr && !file->is_direct()) file = nullptr;
    direct_files_.push_back(std::move(file));
  }
}

TableReader::~TableReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ahead_.notify_all();
  if (thread_.joinable()) thread_.join();
  drain();
}

// A step that failed before it could finish leaves reads behind, into memory that is ours.
void TableReader::drain() {
  if (!std::exchange(in_progress_, false)) return;
  try {
    queue_->wait();
  } catch (const Error&) {
    // nobody needs those rows any more
  }
}

void TableReader::plan(Batch& batch) const {
  batch.reads.clear();
  batch.at.resize(parts_.size() * batch.rows.size());
  std::vector<WantedBytes> wanted(batch.rows.size());
  struct Run {
    const RandomAccessFile* file;
    uint64_t offset;
    size_t bytes;
    size_t needed;
    size_t at;
  };
  std::vector<Run> runs;
  size_t total = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const RowReader& reader = parts_[part];
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      wanted[i] = {.offset = reader.row_offset(batch.rows[i]), .bytes = reader.row_bytes()};
    }
    const RandomAccessFile* direct = direct_files_[part].get();
    for (const Extent& extent : plan_extents(wanted)) {
      const uint64_t end = extent.offset + extent.bytes;
      const uint64_t first = direct != nullptr ? align_down(extent.offset) : extent.offset;
      const uint64_t last = direct != nullptr ? align_up(end) : end;
      for (size_t i = extent.first; i < extent.first + extent.count; ++i) {
        batch.at[part * batch.rows.size() + i] = total + static_cast<size_t>(wanted[i].offset - first);
      }
      runs.push_back({.file = direct != nullptr ? direct : &reader.file(),
                      .offset = first,
                      .bytes = static_cast<size_t>(last - first),
                      .needed = static_cast<size_t>(end - first),
                      .at = total});
      total += runs.back().bytes;
    }
    // The next part's runs may be direct and must begin at a block.
    if (direct == nullptr) total = static_cast<size_t>(align_up(total));
  }
  batch.memory.resize(total + kDirectBlock);
  const auto address = reinterpret_cast<uintptr_t>(batch.memory.data());
  batch.bytes = std::span(batch.memory).subspan(static_cast<size_t>(align_up(address) - address), total);
  for (const Run& run : runs) {
    batch.reads.push_back({.file = run.file,
                           .offset = run.offset,
                           .to = batch.bytes.subspan(run.at, run.bytes),
                           .needed = run.needed});
  }
}

void TableReader::copy(const Batch& batch, size_t index, uint8_t* record) const {
  for (size_t part = 0; part < parts_.size(); ++part) {
    const size_t bytes = row_bytes(part);
    std::memcpy(record, batch.bytes.data() + batch.at[part * batch.rows.size() + index], bytes);
    record += bytes;
  }
}

void TableReader::give(const uint8_t* record, size_t place) {
  for (size_t part = 0; part < parts_.size(); ++part) {
    const size_t bytes = row_bytes(part);
    std::memcpy(out_[part].data() + place * bytes, record, bytes);
    record += bytes;
  }
}

void TableReader::count_reads(const Batch& batch) {
  counters_.reads += batch.reads.size();
  counters_.bytes += batch.bytes.size();
}

void TableReader::begin(std::span<const int64_t> ids, std::span<const std::span<uint8_t>> out) {
  SPARK_CHECK(out.size() == parts_.size());
  for (size_t part = 0; part < parts_.size(); ++part) {
    SPARK_CHECK(out[part].size() == ids.size() * row_bytes(part));
  }
  for (const int64_t id : ids) static_cast<void>(parts_.front().row_offset(id));
  drain();
  out_.assign(out.begin(), out.end());
  missing_.clear();
  awaited_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (const uint8_t* record = cache_.find(ids[i])) {
        give(record, i);
      } else {
        (cache_.is_reserved(ids[i]) ? awaited_ : missing_).push_back({.row = ids[i], .place = i});
      }
    }
    counters_.hits += ids.size() - awaited_.size() - missing_.size();
    counters_.awaited += awaited_.size();
    counters_.misses += missing_.size();
  }
  std::sort(missing_.begin(), missing_.end(), [](const Wanted& a, const Wanted& b) { return a.row < b.row; });
  started_ = 0;
  in_progress_ = true;
  start_next();
}

// Starts reading the next missing rows: as many as keep a disk busy, so that whole blocks of them fit into
// memory.
bool TableReader::start_next() {
  finished_ = started_;
  step_.rows.clear();
  for (; started_ < missing_.size(); ++started_) {
    const int64_t row = missing_[started_].row;
    if (!step_.rows.empty() && step_.rows.back() == row) continue;
    if (step_.rows.size() == kStepRows) break;
    step_.rows.push_back(row);
  }
  if (step_.rows.empty()) return false;
  plan(step_);
  queue_->start(step_.reads);
  return true;
}

void TableReader::finish() {
  SPARK_CHECK(in_progress_);
  const double began_s = monotonic_s();
  try {
    if (!step_.rows.empty()) {
      do {
        queue_->wait();
        finish_missing();
      } while (start_next());
    }
    in_progress_ = false;
    std::unique_lock lock(mutex_);
    finish_awaited(lock);
    counters_.wait_s += monotonic_s() - began_s;
  } catch (const Error&) {
    in_progress_ = false;  // the queue is at rest
    const std::lock_guard lock(mutex_);
    ++counters_.failures;
    throw;
  }
}

void TableReader::finish_missing() {
  const std::lock_guard lock(mutex_);
  count_reads(step_);
  std::vector<uint8_t> record(record_bytes_);
  size_t next = finished_;
  for (size_t i = 0; i < step_.rows.size(); ++i) {
    const int64_t row = step_.rows[i];
    copy(step_, i, record.data());
    for (; next < started_ && missing_[next].row == row; ++next) give(record.data(), missing_[next].place);
    if (cache_.find(row) != nullptr || cache_.is_reserved(row)) continue;  // read ahead in the meantime
    if (uint8_t* cached = cache_.insert(row)) std::memcpy(cached, record.data(), record_bytes_);
  }
}

void TableReader::finish_awaited(std::unique_lock<std::mutex>& lock) {
  std::vector<uint8_t> record;
  for (const Wanted& wanted : awaited_) {
    arrived_.wait(lock, [&] { return !cache_.is_reserved(wanted.row); });
    if (const uint8_t* cached = cache_.find(wanted.row)) {
      give(cached, wanted.place);
      continue;
    }
    // It came and went, or its reading ahead failed: the step's own attempt decides.
    lock.unlock();
    record.resize(record_bytes_);
    size_t at = 0;
    for (const RowReader& part : parts_) {
      part.read(wanted.row, std::span(record).subspan(at, part.row_bytes()));
      at += part.row_bytes();
    }
    give(record.data(), wanted.place);
    lock.lock();
    counters_.reads += parts_.size();
    counters_.bytes += record_bytes_;
  }
}

void TableReader::prefetch(std::span<const int64_t> ids) {
  if (ids.empty() || cache_.places() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    if (rows_to_prefetch_ + ids.size() > kMostAhead) return;
    rows_to_prefetch_ += ids.size();
    to_prefetch_.emplace_back(ids.begin(), ids.end());
    if (!thread_.joinable()) thread_ = std::thread([this] { read_ahead(); });
  }
  ahead_.notify_one();
}

void TableReader::wait_for_prefetches() const {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [this] { return to_prefetch_.empty() && !reading_ahead_; });
}

void TableReader::read_ahead() {
  const auto queue = make_read_queue(options_.queue);
  Batch batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    ahead_.wait(lock, [this] { return stopping_ || !to_prefetch_.empty(); });
    if (stopping_) return;
    const std::vector<int64_t> ids = std::move(to_prefetch_.front());
    to_prefetch_.pop_front();
    rows_to_prefetch_ -= ids.size();
    reading_ahead_ = true;
    for (size_t begin = 0; begin < ids.size() && !stopping_; begin += kAheadRows) {
      batch.rows.clear();
      for (size_t i = begin; i < std::min(begin + kAheadRows, ids.size()); ++i) {
        if (ids[i] < 0 || ids[i] >= rows() || cache_.find(ids[i]) != nullptr || cache_.is_reserved(ids[i]))
          continue;
        if (!cache_.reserve(ids[i])) break;
        batch.rows.push_back(ids[i]);
      }
      std::sort(batch.rows.begin(), batch.rows.end());
      lock.unlock();
      read_ahead_batch(batch, *queue);
      lock.lock();
    }
    reading_ahead_ = false;
    arrived_.notify_all();
  }
}

void TableReader::read_ahead_batch(Batch& batch, ReadQueue& queue) {
  std::string failure;
  try {
    plan(batch);
    queue.start(batch.reads);
    queue.wait();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (failure.empty()) {
      copy(batch, i, cache_.fill(batch.rows[i]));
    } else {
      cache_.drop(batch.rows[i]);
    }
  }
  arrived_.notify_all();
  if (failure.empty()) {
    counters_.prefetched += batch.rows.size();
    return count_reads(batch);
  }
  // The step that needs a row will say so to whom it concerns; here it is said once.
  if (counters_.failures++ == 0) log_warning(parts_.front().path() + ": reading ahead failed: " + failure);
}

TableCounters TableReader::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace spark::engine
