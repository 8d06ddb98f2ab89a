// Device memory of the backend: an arena of zeroed memory, page-locked staging for transfers, owned handles.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spark::engine::cuda {

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timing = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory lives as long as the arena. Safe while another stream is being captured.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(size_t bytes, const std::string& purpose);
  int64_t reserved_bytes() const { return reserved_; }

 private:
  Stream stream_;
  std::vector<void*> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  int64_t reserved_ = 0;
};

// Two page-locked buffers through which all transfers go, in stream order.
class Staging {
 public:
  explicit Staging(size_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void upload(cudaStream_t stream, void* to, const void* from, size_t bytes);
  void download(cudaStream_t stream, void* to, const void* from, size_t bytes);

 private:
  std::byte* take(cudaStream_t stream, size_t bytes);

  size_t bytes_;  // of one buffer
  void* host_[2] = {};
  Event free_[2];
  int turn_ = 0;
  size_t used_ = 0;  // of the current buffer
};

}  // namespace spark::engine::cuda
