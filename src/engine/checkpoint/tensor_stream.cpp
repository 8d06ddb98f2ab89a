#include "engine/checkpoint/tensor_stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/units.h"
#include "engine/checkpoint/direct_blocks.h"

namespace spark::engine {
namespace {

// One reads while the other's batch is handed over.
constexpr int kThreads = 2;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

// Blocks that were let go are used again, since fresh pages cost as much as reading them.
class TensorStream::Staging : public std::enable_shared_from_this<Staging> {
 public:
  Staging(size_t limit, size_t kept_block)
      : limit_(limit), kept_block_((kept_block + kHugePage - 1) / kHugePage * kHugePage) {}
  ~Staging() {
    for (void* block : free_) std::free(block);
  }

  std::mutex mutex;
  std::condition_variable work;  // for the reading threads: room, something wanted, the end

  std::shared_ptr<uint8_t> take(size_t bytes) {
    const size_t size = std::max<size_t>(align_up(bytes), kept_block_);
    void* block = nullptr;
    {
      const std::lock_guard lock(mutex);
      used_ += size;
      if (size == kept_block_ && !free_.empty()) {
        block = free_.back();
        free_.pop_back();
      }
    }
    if (block == nullptr) {
      block = std::aligned_alloc(kHugePage, (size + kHugePage - 1) / kHugePage * kHugePage);
      if (block != nullptr) ::madvise(block, size, MADV_HUGEPAGE);  // a hint
    }
    if (block == nullptr) {
      give_back(nullptr, size);
      throw Error("no memory for " + format_bytes(size) + " of staging", "loading weights");
    }
    return {static_cast<uint8_t*>(block),
            [self = shared_from_this(), size](uint8_t* memory) { self->give_back(memory, size); }};
  }

  // Under the lock.
  bool has_room() const { return used_ == 0 || used_ + kept_block_ <= limit_; }

 private:
  void give_back(void* block, size_t size) {
    {
      const std::lock_guard lock(mutex);
      used_ -= size;
      if (block != nullptr && size == kept_block_ && (free_.size() + 1) * kept_block_ <= limit_) {
        free_.push_back(std::exchange(block, nullptr));
      }
    }
    std::free(block);
    work.notify_all();
  }

  const size_t limit_;
  const size_t kept_block_;
  std::vector<void*> free_;
  size_t used_ = 0;
};

TensorStream::TensorStream(const Checkpoint& checkpoint, std::vector<TensorPart> parts,
                           const TensorStreamOptions& options)
    : options_(options),
      staging_(std::make_shared<Staging>(options.staging_bytes, options.batch_bytes)),
      wanted_(parts.size()) {
  for (TensorPart& part : parts) {
    const auto [shard, entry] = checkpoint.stored(part.name);
    const uint64_t size = entry->bytes;
    if (part.begin > part.end || part.end > size) {
      throw Error("has " + std::to_string(size) + " bytes; " + std::to_string(part.begin) + " to " +
                      std::to_string(part.end) + " were asked for",
                  part.name);
    }
    by_name_.emplace(part.name, parts_.size());
    parts_.push_back({.part = std::move(part), .shard = shard, .offset = entry->offset + part.begin});
  }
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
}

TensorStream::~TensorStream() {
  {
    const std::lock_guard lock(staging_->mutex);
    stopping_ = true;
  }
  staging_->work.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

const RandomAccessFile& TensorStream::file_of(const SafetensorsFile& shard) {
  std::unique_ptr<RandomAccessFile>& file = files_[&shard];
  if (file == nullptr) {
    const auto access = options_.direct ? FileAccess::kDirect : FileAccess::kBuffered;
    file = std::make_unique<RandomAccessFile>(shard.path(), access);
  }
  return *file;
}

// Parts that follow one another from the one that is waited for, or else from the first that nobody has
// begun.
std::vector<size_t> TensorStream::next_batch() {
  while (next_ < parts_.size() && parts_[next_].state != State::kWaiting) ++next_;
  const size_t begin = wanted_ < parts_.size() && parts_[wanted_].state == State::kWaiting ? wanted_ : next_;
  std::vector<size_t> batch;
  size_t bytes = 0;
  for (size_t i = begin; i < parts_.size() && parts_[i].state == State::kWaiting; ++i) {
    // Other parts may lie between; what is read along must stay small, so a batch keeps to one neighbourhood.
    const size_t padded = parts_[i].size() + 2 * kDirectBlock;
    if (!batch.empty() && bytes + padded > options_.batch_bytes) break;
    batch.push_back(i);
    bytes += padded;
  }
  return batch;
}

void TensorStream::work() {
  const auto queue = make_read_queue(options_.queue);
  std::unique_lock lock(staging_->mutex);
  for (;;) {
    staging_->work.wait(lock, [this] {
      const bool is_awaited = wanted_ < parts_.size() && parts_[wanted_].state == State::kWaiting;
      while (next_ < parts_.size() && parts_[next_].state != State::kWaiting) ++next_;
      return stopping_ || is_awaited || (next_ < parts_.size() && staging_->has_room());
    });
    if (stopping_) return;
    const std::vector<size_t> batch = next_batch();
    for (const size_t i : batch) parts_[i].state = State::kReading;
    lock.unlock();
    std::exception_ptr failure;
    try {
      read(batch, *queue);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    lock.lock();
    for (const size_t i : batch) parts_[i].state = failure == nullptr ? State::kReady : State::kFailed;
    if (failure != nullptr && failure_ == nullptr) failure_ = failure;
    arrived_.notify_all();
  }
}

void TensorStream::read(const std::vector<size_t>& batch, ReadQueue& queue) {
  std::vector<size_t> order = batch;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(parts_[a].shard, parts_[a].offset) < std::tie(parts_[b].shard, parts_[b].offset);
  });
  // Neighbours in a file become one run of whole blocks.
  struct Run {
    const RandomAccessFile* file = nullptr;
    uint64_t begin = 0;
    uint64_t end = 0;     // of the blocks
    uint64_t needed = 0;  // the last byte that must come
    size_t at = 0;        // in the staging memory
  };
  std::vector<Run> runs;
  std::vector<size_t> run_of(order.size());
  for (size_t k = 0; k < order.size(); ++k) {
    const Part& part = parts_[order[k]];
    const RandomAccessFile* file = nullptr;
    {
      const std::lock_guard lock(staging_->mutex);
      file = &file_of(*part.shard);
    }
    const uint64_t end = part.offset + part.size();
    if (!runs.empty() && runs.back().file == file && align_down(part.offset) <= runs.back().end) {
      runs.back().end = std::max(runs.back().end, align_up(end));
      runs.back().needed = std::max(runs.back().needed, end);
    } else {
      runs.push_back({.file = file, .begin = align_down(part.offset), .end = align_up(end), .needed = end});
    }
    run_of[k] = runs.size() - 1;
  }
  size_t total = 0;
  for (Run& run : runs) {
    run.at = total;
    total += static_cast<size_t>(run.end - run.begin);
  }
  const auto memory = staging_->take(total);
  std::vector<FileRead> reads;
  for (const Run& run : runs) {
    for (uint64_t at = run.begin; at < run.end; at += options_.piece_bytes) {
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(options_.piece_bytes, run.end - at));
      // The last block of a file is seldom whole.
      const uint64_t needed = run.needed > at ? std::min<uint64_t>(bytes, run.needed - at) : 0;
      if (needed == 0) continue;
      reads.push_back({.file = run.file,
                       .offset = at,
                       .to = {memory.get() + run.at + (at - run.begin), bytes},
                       .needed = static_cast<size_t>(needed)});
    }
  }
  queue.start(reads);
  queue.wait();
  const std::lock_guard lock(staging_->mutex);
  bytes_read_ += total;
  for (size_t k = 0; k < order.size(); ++k) {
    Part& part = parts_[order[k]];
    const Run& run = runs[run_of[k]];
    part.staged = {.memory = memory,
                   .bytes = {memory.get() + run.at + (part.offset - run.begin), part.size()}};
  }
}

StagedBytes TensorStream::take(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw Error("is not among the tensors to be read", name);
  std::unique_lock lock(staging_->mutex);
  Part& part = parts_[found->second];
  SPARK_CHECK(part.state != State::kTaken);
  if (part.state == State::kWaiting) {
    wanted_ = found->second;
    staging_->work.notify_all();
  }
  arrived_.wait(lock, [&] { return part.state == State::kReady || part.state == State::kFailed; });
  wanted_ = parts_.size();
  if (part.state == State::kFailed) std::rethrow_exception(failure_);
  part.state = State::kTaken;
  return std::exchange(part.staged, {});
}

uint64_t TensorStream::bytes_read() const {
  const std::lock_guard lock(staging_->mutex);
  return bytes_read_;
}

bool TensorStream::is_direct() const {
  const std::lock_guard lock(staging_->mutex);
  return std::all_of(files_.begin(), files_.end(), [](const auto& file) { return file.second->is_direct(); });
}

}  // namespace spark::engine
