// Reads through io_uring. The build defines SPARK_HAS_IO_URING where liburing was found.
#include "engine/checkpoint/read_queue.h"

#ifdef SPARK_HAS_IO_URING
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#endif

namespace spark::engine {

#ifdef SPARK_HAS_IO_URING

namespace {

class IoUringQueue final : public ReadQueue {
 public:
  // Takes the ring over.
  IoUringQueue(const io_uring& ring, unsigned depth) : ring_(ring), depth_(depth) {}
  ~IoUringQueue() override {
    while (in_flight_ > 0) reap_one();
    io_uring_queue_exit(&ring_);
  }
  IoUringQueue(const IoUringQueue&) = delete;
  IoUringQueue& operator=(const IoUringQueue&) = delete;

  const char* method() const override { return "io_uring"; }

  void start(std::span<const FileRead> reads) override {
    SPARK_CHECK(in_flight_ == 0 && next_ == reads_.size());
    reads_.assign(reads.begin(), reads.end());
    next_ = 0;
    unread_.clear();
    submit();
  }

  void wait() override {
    while (next_ < reads_.size() || in_flight_ > 0) {
      reap_one();
      while (in_flight_ > 0 && io_uring_cq_ready(&ring_) > 0) reap_one();
      submit();
    }
    // What failed or came short is read again the plain way, which finishes it or says what is wrong.
    const std::vector<FileRead> again = std::exchange(unread_, {});
    for (const FileRead& read : again) read.file->read(read.offset, read.to, read.needed_bytes());
  }

 private:
  void submit() {
    if (broken_) {
      unread_.insert(unread_.end(), reads_.begin() + static_cast<std::ptrdiff_t>(next_), reads_.end());
      next_ = reads_.size();
      return;
    }
    unsigned prepared = 0;
    while (next_ < reads_.size() && in_flight_ + prepared < depth_) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      const FileRead& read = reads_[next_];
      const size_t bytes = std::min<size_t>(read.to.size(), size_t{1} << 30);
      io_uring_prep_read(entry, read.file->descriptor(), read.to.data(), static_cast<unsigned>(bytes),
                         read.offset);
      io_uring_sqe_set_data(entry, reinterpret_cast<void*>(static_cast<uintptr_t>(next_)));
      ++next_;
      ++prepared;
    }
    while (prepared > 0) {
      const int count = io_uring_submit(&ring_);
      if (count > 0) {
        in_flight_ += static_cast<unsigned>(count);
        prepared -= static_cast<unsigned>(count);
      } else if (in_flight_ > 0) {
        reap_one();  // the kernel has no room for more at the moment
      } else if (count != -EINTR && count != -EAGAIN) {
        // What is prepared stays in the ring, which is therefore never used again.
        log_warning(std::string("io_uring takes no more reads (") + std::strerror(-count) +
                    "); reading with pread from now on");
        broken_ = true;
        next_ -= prepared;
        return submit();
      }
    }
  }

  void reap_one() {
    io_uring_cqe* done = nullptr;
    int status = io_uring_wait_cqe(&ring_, &done);
    while (status == -EINTR) status = io_uring_wait_cqe(&ring_, &done);
    SPARK_CHECK(status == 0);
    const FileRead& read =
        reads_[static_cast<size_t>(reinterpret_cast<uintptr_t>(io_uring_cqe_get_data(done)))];
    const size_t got = done->res > 0 ? static_cast<size_t>(done->res) : 0;
    if (got < read.needed_bytes()) {
      // All of it once more: what is left need not begin where a direct read may.
      unread_.push_back(read);
    }
    io_uring_cqe_seen(&ring_, done);
    --in_flight_;
  }

  io_uring ring_;
  const unsigned depth_;
  std::vector<FileRead> reads_;
  std::vector<FileRead> unread_;
  size_t next_ = 0;
  unsigned in_flight_ = 0;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<ReadQueue> make_io_uring_queue(unsigned depth, std::string& why_not) {
  io_uring ring{};
  if (const int status = io_uring_queue_init(depth, &ring, 0); status < 0) {
    why_not = std::string("the kernel refuses it: ") + std::strerror(-status);
    return nullptr;
  }
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
  if (probe != nullptr) io_uring_free_probe(probe);
  if (!can_read) {
    io_uring_queue_exit(&ring);
    why_not = "this kernel's has no plain reads; Linux 5.6 has";
    return nullptr;
  }
  return std::make_unique<IoUringQueue>(ring, depth);
}

#else

std::unique_ptr<ReadQueue> make_io_uring_queue(unsigned, std::string& why_not) {
  why_not = "this build has no liburing";
  return nullptr;
}

#endif

}  // namespace spark::engine
