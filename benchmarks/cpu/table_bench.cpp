// How fast rows of an Engram table come from disk: rows per second with pread (one thread, eight) and
// io_uring, with the page cache cold and warm, and from the reader's own cache.
//
//   table_bench [--dir DIR] [--rows N] [--step-rows N] [--steps N]
//
// Writes a table of N rows of 256 + 8 bytes in DIR first (the temporary folder; choose a disk of the kind to
// be measured). A step asks for random rows, 24 for each of its tokens as the model does. Cold: the kernel is
// told to forget the file before every step; what the disk's own cache still knows cannot be helped.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <random>

#include "../../apps/run_program.h"
#include "common/clock.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "engine/checkpoint/table_reader.h"

namespace spark::engine {
namespace {

struct Flags {
  std::string folder = std::filesystem::temp_directory_path().string();
  int64_t rows = 4'000'000;
  size_t step_rows = 1152;  // 48 tokens
  int steps = 30;
};

void write_table(const std::string& path, int64_t rows) {
  SafetensorsWriter writer(
      path, {{"codes", model::Dtype::kF8E4m3, {rows, 256}}, {"scales", model::Dtype::kF8E8m0, {rows, 8}}});
  std::mt19937_64 random(1);
  std::vector<uint8_t> bytes(size_t{8} << 20);
  for (const TensorSpec& spec : writer.order()) {
    for (uint64_t left = tensor_bytes(spec); left > 0;) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
      for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
      }
      writer.append(std::span(bytes).first(count));
      left -= count;
    }
  }
  writer.finish();
}

void forget(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

struct Way {
  const char* name;
  bool io_uring;
  unsigned threads;
  bool direct;
};

class Bench {
 public:
  explicit Bench(const Flags& flags)
      : flags_(flags),
        path_(
            (std::filesystem::path(flags.folder) / ("spark-table-" + std::to_string(::getpid()))).string()) {
    write_table(path_, flags.rows);
    file_ = std::make_unique<SafetensorsFile>(path_);
  }
  ~Bench() { std::filesystem::remove(path_); }

  void run() {
    Table table({{"rows from", Align::kLeft},
                 {"with", Align::kLeft},
                 {"rows/s", Align::kRight},
                 {"step of " + std::to_string(flags_.step_rows) + " ms", Align::kRight},
                 {"reads/row", Align::kRight}});
    for (const bool direct : {true, false}) {
      const char* from = direct ? "disk, direct" : "disk, buffered";
      measure(table, from, {"pread, 1 thread", false, 0, direct}, 0, true);
      measure(table, from, {"pread, 8 threads", false, 8, direct}, 0, true);
      measure(table, from, {"io_uring, 512 in flight", true, 0, direct}, 0, true);
    }
    measure(table, "page cache", {"pread, 1 thread", false, 0, false}, 0, false);
    measure(table, "page cache", {"io_uring, 512 in flight", true, 0, false}, 0, false);
    measure(table, "row cache", {"nothing to read", true, 0, true}, size_t{1} << 30, false);
    std::cout << format_count(static_cast<uint64_t>(flags_.rows)) << " rows, " << format_bytes(file_->size())
              << " in " << flags_.folder << "\n\n"
              << table.text();
  }

 private:
  void measure(Table& table, const char* from, const Way& way, size_t cache_bytes, bool cold) {
    std::vector<RowReader> parts = {file_->rows(*file_->find("codes")), file_->rows(*file_->find("scales"))};
    TableReader reader(std::move(parts), {.cache_bytes = cache_bytes,
                                          .direct = way.direct,
                                          .queue = {.use_io_uring = way.io_uring, .threads = way.threads}});
    std::mt19937_64 random(7);
    std::vector<uint8_t> codes(flags_.step_rows * 256), scales(flags_.step_rows * 8);
    const std::vector<std::span<uint8_t>> out = {codes, scales};
    std::vector<int64_t> ids(flags_.step_rows);
    std::vector<double> times;
    for (int step = 0; step < flags_.steps; ++step) {
      if (cold) forget(path_);
      // Warm: the same rows every time, the first time not counted.
      if (cold || step == 0) {
        for (int64_t& id : ids) id = static_cast<int64_t>(random() % static_cast<uint64_t>(flags_.rows));
      }
      const double began_s = monotonic_s();
      reader.begin(ids, out);
      reader.finish();
      if (cold || step > 0) times.push_back(monotonic_s() - began_s);
    }
    std::sort(times.begin(), times.end());
    const double median_s = times[times.size() / 2];
    const TableCounters counters = reader.counters();
    const double asked = static_cast<double>(counters.hits + counters.misses);
    table.add({from,
               std::string(way.name) +
                   (way.io_uring && std::string(reader.method()) == "pread" ? " (refused: pread)" : ""),
               format_count(static_cast<uint64_t>(static_cast<double>(flags_.step_rows) / median_s)),
               format_fixed(median_s * 1e3, 2),
               format_fixed(static_cast<double>(counters.reads) / asked, 2)});
  }

  Flags flags_;
  std::string path_;
  std::unique_ptr<SafetensorsFile> file_;
};

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Rows of an Engram table from disk.", "table_bench");
  app.add_option("--dir", flags.folder, "Where to write the table")->capture_default_str();
  app.add_option("--rows", flags.rows, "Of the table")
      ->capture_default_str()
      ->check(CLI::Range(1000, 400'000'000));
  app.add_option("--step-rows", flags.step_rows, "Rows of a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--steps", flags.steps, "Steps of each way; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(3, 10000));
  CLI11_PARSE(app, argc, argv);
  Bench(flags).run();
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::engine::run(argc, argv); }, 1);
}
