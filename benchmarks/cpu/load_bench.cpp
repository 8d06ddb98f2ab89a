// How fast weights come from disk into memory: plain direct reads as dd does them, the engine's stream of
// tensors, and copying from a map, all over the same files in one run.
//
//   load_bench DIR [--rounds N] [--no-io-uring]
//
// DIR is a checkpoint (`spark model synth --preset small` makes one of 350 MB; larger is better). Every way
// reads every tensor once and copies it, as a backend with memory of its own does; before each the kernel is
// told to forget the files. The best of the rounds counts, for all ways alike.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <functional>
#include <iostream>

#include "../../apps/run_program.h"
#include "common/clock.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/checkpoint/tensor_stream.h"

namespace spark::engine {
namespace {

struct Flags {
  std::string folder;
  int rounds = 3;
  bool io_uring = true;
};

// Where copies go: memory that is touched already, so that its pages cost nothing here.
class Sink {
 public:
  Sink() : memory_(size_t{64} << 20, 1) {}
  void copy(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), memory_.size());
      std::memcpy(memory_.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
    }
  }

 private:
  std::vector<uint8_t> memory_;
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags), checkpoint_(flags.folder) {
    for (const auto& shard : checkpoint_.shards()) {
      for (const StoredTensor& tensor : shard->header().tensors)
        parts_.push_back({tensor.name, 0, tensor.bytes});
    }
  }

  void run() {
    Table table({{"way", Align::kLeft},
                 {"seconds", Align::kRight},
                 {"rate", Align::kRight},
                 {"of dd", Align::kRight}});
    const double dd_s = best([&] { like_dd(); });
    const auto add = [&](const std::string& name, double seconds) {
      const double rate = static_cast<double>(checkpoint_.total_bytes()) / seconds;
      table.add({name, format_fixed(seconds, 3), format_bytes(static_cast<uint64_t>(rate)) + "/s",
                 format_fixed(dd_s / seconds * 100, 0) + "%"});
    };
    add("dd: direct reads of 4 MiB, one at a time", dd_s);
    add(std::string("stream of tensors, direct") + (direct_ ? "" : " (refused by the file system: buffered)"),
        best([&] { stream(true); }));
    add("stream of tensors, through the page cache", best([&] { stream(false); }));
    add("copying from a map", best([&] { map(); }));
    std::cout << format_bytes(checkpoint_.total_bytes()) << " of tensors in " << flags_.folder << "\n\n"
              << table.text();
  }

 private:
  double best(const std::function<void()>& way) {
    double least = 1e30;
    for (int round = 0; round < flags_.rounds; ++round) {
      for (const auto& shard : checkpoint_.shards()) {
        const int file = ::open(shard->path().c_str(), O_RDONLY | O_CLOEXEC);
        ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        ::close(file);
      }
      const double began_s = monotonic_s();
      way();
      least = std::min(least, monotonic_s() - began_s);
    }
    return least;
  }

  void like_dd() {
    constexpr size_t kPiece = size_t{4} << 20;
    const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, kPiece), &std::free);
    for (const auto& shard : checkpoint_.shards()) {
      const RandomAccessFile file(shard->path(), FileAccess::kDirect);
      for (uint64_t at = 0; at < file.size(); at += kPiece) {
        const size_t needed = static_cast<size_t>(std::min<uint64_t>(kPiece, file.size() - at));
        file.read(at, {static_cast<uint8_t*>(buffer.get()), kPiece}, needed);
      }
    }
  }

  void stream(bool direct) {
    TensorStreamOptions options;
    options.direct = direct;
    options.queue.use_io_uring = flags_.io_uring;
    TensorStream stream(checkpoint_, parts_, options);
    for (const TensorPart& part : parts_) sink_.copy(stream.take(part.name).bytes);
    if (direct) direct_ = stream.is_direct();
  }

  void map() {
    const Checkpoint fresh(flags_.folder);
    for (const TensorPart& part : parts_) sink_.copy(fresh.tensor(part.name).bytes);
  }

  Flags flags_;
  Checkpoint checkpoint_;
  std::vector<TensorPart> parts_;
  Sink sink_;
  bool direct_ = true;
};

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Weights from disk into memory.", "load_bench");
  app.add_option("DIR", flags.folder, "Checkpoint")->required();
  app.add_option("--rounds", flags.rounds)->capture_default_str()->check(CLI::Range(1, 100));
  app.add_flag("--io-uring,!--no-io-uring", flags.io_uring)->default_str("on");
  CLI11_PARSE(app, argc, argv);
  Bench(flags).run();
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::engine::run(argc, argv); }, 1);
}
