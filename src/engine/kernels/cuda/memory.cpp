#include "engine/kernels/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "common/units.h"
#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kChunkBytes = size_t{64} << 20;

}  // namespace

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}
Stream::~Stream() {
  cudaStreamDestroy(stream_);
}
void Stream::wait() const {
  check(cudaStreamSynchronize(stream_), "waiting for the device");
}

Event::Event(bool timing) {
  check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "creating an event");
}
Event::~Event() {
  cudaEventDestroy(event_);
}

Arena::~Arena() {
  for (void* chunk : chunks_) cudaFree(chunk);
}

void* Arena::allocate(size_t bytes, const std::string& purpose) {
  const size_t wanted = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (wanted > left_) {
    // A large piece gets memory of its own and leaves the current chunk open.
    const size_t size = wanted > kChunkBytes / 4 ? wanted : kChunkBytes;
    void* chunk = nullptr;
    const cudaError_t status = cudaMalloc(&chunk, size);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw Error("no device memory for " + format_bytes(bytes) + " of " + purpose + "; " +
                      format_bytes(free) + " of " + format_bytes(total) + " are free",
                  "CUDA backend", "lower the number of sequences, the context or the rows of a step");
    }
    check(status, "allocating device memory");
    chunks_.push_back(chunk);
    reserved_ += static_cast<int64_t>(size);
    check(cudaMemsetAsync(chunk, 0, size, stream_.get()), "clearing device memory");
    stream_.wait();
    if (size == wanted) return chunk;
    next_ = static_cast<std::byte*>(chunk);
    left_ = size;
  }
  void* result = next_;
  next_ += wanted;
  left_ -= wanted;
  return result;
}

Staging::Staging(size_t bytes) : bytes_(bytes) {
  for (void*& host : host_) check(cudaMallocHost(&host, bytes), "allocating page-locked memory");
}

Staging::~Staging() {
  for (void* host : host_) cudaFreeHost(host);
}

std::byte* Staging::take(cudaStream_t stream, size_t bytes) {
  if (used_ + bytes > bytes_) {
    // The other half may still be read by copies of a while ago.
    check(cudaEventRecord(free_[turn_].get(), stream), "recording a transfer");
    turn_ ^= 1;
    used_ = 0;
    check(cudaEventSynchronize(free_[turn_].get()), "waiting for a transfer");
  }
  std::byte* at = static_cast<std::byte*>(host_[turn_]) + used_;
  used_ += (bytes + 63) / 64 * 64;
  return at;
}

void Staging::upload(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, bytes_);
    std::byte* host = take(stream, piece);
    std::memcpy(host, static_cast<const std::byte*>(from) + done, piece);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, host, piece, cudaMemcpyHostToDevice, stream),
          "copying to the device");
    done += piece;
  }
}

void Staging::download(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, bytes_);
    std::byte* host = take(stream, piece);
    check(cudaMemcpyAsync(host, static_cast<const std::byte*>(from) + done, piece, cudaMemcpyDeviceToHost,
                          stream),
          "copying from the device");
    check(cudaStreamSynchronize(stream), "waiting for the device");
    std::memcpy(static_cast<std::byte*>(to) + done, host, piece);
    done += piece;
  }
  if (bytes == 0) check(cudaStreamSynchronize(stream), "waiting for the device");
}

}  // namespace spark::engine::cuda
