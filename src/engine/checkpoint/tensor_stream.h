// Tensors, or parts of them, read from disk at its full speed by whoever copies them once: large direct reads
// (O_DIRECT, where the file system has it), many in flight, ahead of the reader and without the page cache.
//
//   TensorStream stream(checkpoint, {{"embed.weight", 0, 1323827200}, {"layers.0...", 0, 4096}}, {});
//   const StagedBytes part = stream.take("embed.weight");     // waits; its memory lives as long as `part`
//
// Parts are read in the order they are listed, as far ahead as the staging memory goes; one that is taken out
// of turn is read next. Each part can be taken once. Errors name file and place, and come when the part is
// taken. One thread takes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/read_queue.h"

namespace spark::engine {

// A tensor's bytes [begin, end).
struct TensorPart {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct StagedBytes {
  std::shared_ptr<const void> memory;
  std::span<const uint8_t> bytes;
};

struct TensorStreamOptions {
  size_t staging_bytes =
      size_t{256} << 20;  // read ahead and not yet let go; exceeded only for a part that is waited for
  size_t batch_bytes = size_t{32} << 20;  // read together
  size_t piece_bytes = size_t{4} << 20;   // of one read
  bool direct = true;
  ReadQueueOptions queue = {.depth = 32};
};

class TensorStream {
 public:
  // The checkpoint outlives the stream. Throws Error for a name it does not have, or a part outside its
  // tensor.
  TensorStream(const Checkpoint& checkpoint, std::vector<TensorPart> parts,
               const TensorStreamOptions& options);
  ~TensorStream();
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;

  StagedBytes take(const std::string& name);

  uint64_t bytes_read() const;
  bool is_direct() const;  // of the files read so far, all

 private:
  enum class State : uint8_t { kWaiting, kReading, kReady, kFailed, kTaken };
  struct Part {
    TensorPart part;
    const SafetensorsFile* shard = nullptr;
    uint64_t offset = 0;  // in the file
    State state = State::kWaiting;
    StagedBytes staged = {};

    size_t size() const { return static_cast<size_t>(part.end - part.begin); }
  };
  class Staging;

  void work();
  std::vector<size_t> next_batch();  // under the lock
  void read(const std::vector<size_t>& batch, ReadQueue& queue);
  const RandomAccessFile& file_of(const SafetensorsFile& shard);  // under the lock

  const TensorStreamOptions options_;
  std::vector<Part> parts_;
  std::unordered_map<std::string, size_t> by_name_;

  // Staging memory with the lock of all that follows. Parts that were taken keep it alive.
  std::shared_ptr<Staging> staging_;
  std::condition_variable arrived_;
  std::map<const SafetensorsFile*, std::unique_ptr<RandomAccessFile>> files_;
  size_t next_ = 0;  // the first part that may still wait
  size_t wanted_;    // part that is waited for; parts_.size(): none
  uint64_t bytes_read_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace spark::engine
