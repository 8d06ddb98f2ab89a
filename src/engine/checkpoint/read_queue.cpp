#include "engine/checkpoint/read_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"

namespace spark::engine {
namespace {

// The caller works too once it waits, so a queue with no threads is a loop over pread.
class PreadQueue final : public ReadQueue {
 public:
  explicit PreadQueue(unsigned threads) : wanted_threads_(threads) {}

  ~PreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* method() const override { return "pread"; }

  void start(std::span<const FileRead> reads) override {
    SPARK_CHECK(unfinished_ == 0);
    if (reads.size() > 1 && threads_.empty()) {
      for (unsigned i = 0; i < wanted_threads_; ++i) threads_.emplace_back([this] { work(); });
    }
    {
      const std::lock_guard lock(mutex_);
      reads_.assign(reads.begin(), reads.end());
      next_ = 0;
      unfinished_ = reads_.size();
      failure_ = nullptr;
    }
    if (reads.size() > 1) wake_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    while (take_one(lock)) {
    }
    done_.wait(lock, [this] { return unfinished_ == 0; });
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (!take_one(lock)) wake_.wait(lock, [this] { return stopping_ || next_ < reads_.size(); });
    }
  }

  // Under the lock, which is open during the read. False when none is left to take.
  bool take_one(std::unique_lock<std::mutex>& lock) {
    if (next_ >= reads_.size()) return false;
    const FileRead read = reads_[next_++];
    lock.unlock();
    std::exception_ptr failure;
    try {
      read.file->read(read.offset, read.to, read.needed_bytes());
    } catch (const Error&) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr && failure_ == nullptr) failure_ = failure;
    if (--unfinished_ == 0) done_.notify_all();
    return true;
  }

  const unsigned wanted_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<FileRead> reads_;
  size_t next_ = 0;
  size_t unfinished_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
};

}  // namespace

std::unique_ptr<ReadQueue> make_read_queue(const ReadQueueOptions& options) {
  if (options.use_io_uring) {
    std::string why_not;
    if (auto queue = make_io_uring_queue(options.depth, why_not)) return queue;
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) log_info("io_uring is not used (" + why_not + "); reading with pread instead");
  }
  return std::make_unique<PreadQueue>(options.threads);
}

}  // namespace spark::engine
