// Many small reads at once: started together, waited for together, in flight side by side. io_uring where the
// kernel allows it, a few threads with pread where it does not (containers often forbid io_uring).
//
//   const auto queue = make_read_queue({});
//   queue->start(reads);      // returns while they are in flight, as far as the queue is deep
//   ... other work ...
//   queue->wait();            // every byte is there, or Error: the first read that failed
//
// What is read into and the file must stay until wait() has returned. One thread uses a queue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/checkpoint/random_access_file.h"

namespace spark::engine {

struct FileRead {
  const RandomAccessFile* file = nullptr;
  uint64_t offset = 0;
  std::span<uint8_t> to;
  size_t needed = kAll;  // bytes that must come; the file may end after them

  static constexpr size_t kAll = ~size_t{0};
  size_t needed_bytes() const { return needed < to.size() ? needed : to.size(); }
};

class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  virtual const char* method() const = 0;  // "io_uring", "pread"
  // Nothing of an earlier start() may be unfinished.
  virtual void start(std::span<const FileRead> reads) = 0;
  // After an Error, too, nothing is in flight any more.
  virtual void wait() = 0;
};

struct ReadQueueOptions {
  bool use_io_uring = true;
  unsigned depth = 512;  // reads in flight with io_uring
  unsigned threads = 8;  // with pread; they start with the first batch of more than one read
};

// Falls back to pread, and says once per process why, when io_uring is refused.
std::unique_ptr<ReadQueue> make_read_queue(const ReadQueueOptions& options);

// Internal: null, with the reason, when this build or this kernel has none.
std::unique_ptr<ReadQueue> make_io_uring_queue(unsigned depth, std::string& why_not);

}  // namespace spark::engine
