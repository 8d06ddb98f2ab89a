// How fast the CPU backend is: memory bandwidth, products at several widths and row counts, and (with a
// checkpoint) whole decode steps, per operation and against the reference in the same run.
//
//   decode_bench [--checkpoint DIR | --preset tiny|small] [--threads N] [--tokens N] [--prompt N]
//                [--reference-tokens N]
//
// --preset makes a synthetic checkpoint in the temporary folder first. The ratio to the reference is taken
// over the same positions.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/checkpoint/synthetic.h"
#include "engine/forward/load_model.h"
#include "engine/kernels/cpu/cpu_backend.h"
#include "engine/kernels/reference/reference_backend.h"
#include "timed_backend.h"

namespace spark::engine {
namespace {

struct Flags {
  std::string checkpoint;
  std::string preset;
  int threads = 0;
  int tokens = 400;
  int prompt = 64;
  int reference_tokens = 100;
};

// CPU time of the whole process: what a busy machine does not add to.
double cpu_s() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes per second that `threads` threads read together from a buffer far larger than any cache.
double read_bandwidth(int threads) {
  constexpr size_t kBytes = size_t{512} << 20;
  std::vector<uint64_t> data(kBytes / 8, 1);
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const double start = now_s();
    std::vector<std::thread> readers;
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const size_t share = data.size() / static_cast<size_t>(threads);
    for (size_t t = 0; t < sums.size(); ++t) {
      readers.emplace_back([&, t] {
        const uint64_t* from = data.data() + t * share;
        uint64_t sum = 0;
        for (size_t i = 0; i < share; ++i) sum += from[i];
        sums[t] = sum;
      });
    }
    for (std::thread& reader : readers) reader.join();
    const double seconds = now_s() - start;
    if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == 0) std::abort();
    best = std::max(best, static_cast<double>(kBytes) / seconds);
  }
  return best;
}

Weight host_weight(WeightFormat format, int64_t rows, int64_t cols, std::vector<uint8_t>& data,
                   std::vector<uint8_t>& scales) {
  const int64_t bits = format == WeightFormat::kFp4 ? 4 : format == WeightFormat::kFp8 ? 8 : 16;
  data.resize(static_cast<size_t>(rows * cols * bits / 8));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>((i * 2654435761u >> 9) & 0x3F);
  scales.assign(static_cast<size_t>(rows * cols / 32), 120);
  return {format, rows, cols, data.data(), scales.data()};
}

// Time of one product of the given shape, with enough copies of the weight that it comes from memory.
double product_seconds(int threads, WeightFormat format, int64_t out, int64_t in, int32_t rows) {
  const auto backend = make_cpu_backend(threads);
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  const Weight host = host_weight(format, out, in, data, scales);
  const auto copies = std::max<size_t>(1, (size_t{384} << 20) / data.size());
  std::vector<Weight> weights;
  for (size_t i = 0; i < copies; ++i) weights.push_back(backend->place(host));
  const auto row_bytes = static_cast<size_t>(in) * 2;
  auto* x = static_cast<uint16_t*>(backend->allocate(row_bytes * static_cast<size_t>(rows), "x"));
  auto* codes = static_cast<uint8_t*>(backend->allocate(row_bytes * static_cast<size_t>(rows), "codes"));
  auto* y = static_cast<uint16_t*>(backend->allocate(static_cast<size_t>(rows * out) * 2, "y"));
  std::memset(codes + rows * in, 120, static_cast<size_t>(rows * in / 32));
  const auto run = [&](const Weight& weight) {
    backend->linear({.rows = rows,
                     .x = x,
                     .x_q = {codes, codes + rows * in},
                     .weight = &weight,
                     .y = y,
                     .y_stride = out});
  };
  for (const Weight& weight : weights) run(weight);
  const double start = now_s();
  int64_t calls = 0;
  while (now_s() - start < 0.3 || calls < 2) {
    run(weights[static_cast<size_t>(calls) % copies]);
    ++calls;
  }
  return (now_s() - start) / static_cast<double>(calls);
}

void print_products(int threads, double bandwidth) {
  Table table({{"product", Align::kLeft},
               {"rows", Align::kRight},
               {"us", Align::kRight},
               {"GB/s of weights", Align::kRight},
               {"of bandwidth", Align::kRight},
               {"GMAC/s", Align::kRight}});
  const std::pair<WeightFormat, const char*> formats[] = {
      {WeightFormat::kFp8, "FP8"}, {WeightFormat::kFp4, "FP4"}, {WeightFormat::kBf16, "BF16"}};
  for (const auto& [format, name] : formats) {
    for (const int32_t rows : {1, 6, 64, 256}) {
      constexpr int64_t kOut = 2048;
      constexpr int64_t kIn = 1024;
      const double seconds = product_seconds(threads, format, kOut, kIn, rows);
      const double bits = format == WeightFormat::kFp4 ? 4.25 : format == WeightFormat::kFp8 ? 8 : 16;
      const double rate = kOut * kIn * bits / 8 / seconds;
      table.add({std::string(name) + " 2048 x 1024", std::to_string(rows), format_fixed(seconds * 1e6, 1),
                 format_fixed(rate / 1e9, 1), format_fixed(100 * rate / bandwidth, 0) + " %",
                 format_fixed(kOut * kIn * rows / seconds / 1e9, 1)});
    }
  }
  std::cout << table.text() << "\n";
}

struct DecodeTime {
  double token_s = 1e9;    // elapsed, after the prompt
  double token_cpu_s = 0;  // CPU time of all threads
  double prefill_s = 0;
};

// Greedy decode of one stream.
DecodeTime decode(Decoder& model, int prompt, int tokens) {
  DecodeTime time;
  model.open_sequence(0);
  std::vector<StepRow> rows;
  for (int32_t t = 0; t < prompt; ++t)
    rows.push_back({.sequence = 0,
                    .token = (t * 37 + 11) % model.vocab_size(),
                    .position = t,
                    .wants_logits = t + 1 == prompt});
  const double begin = now_s();
  auto logits = model.run(rows);
  const double start = now_s();
  const double start_cpu = cpu_s();
  time.prefill_s = start - begin;
  for (int32_t t = prompt; t < prompt + tokens; ++t) {
    const auto next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const StepRow row{.sequence = 0, .token = next, .position = t, .wants_logits = true};
    logits = model.run({&row, 1});
  }
  time.token_s = (now_s() - start) / tokens;
  time.token_cpu_s = (cpu_s() - start_cpu) / tokens;
  model.close_sequence(0);
  return time;
}

std::unique_ptr<Decoder> load(const Flags& flags, std::unique_ptr<Backend> backend) {
  const int context = flags.prompt + std::max(flags.tokens, flags.reference_tokens) + 1;
  LoadOptions options{.folder = flags.checkpoint};
  options.limits = {.max_sequences = 1, .max_context = context, .max_step_rows = std::max(flags.prompt, 8)};
  return load_model(options, std::move(backend));
}

// Best of several runs: other programs on the machine only ever add time.
DecodeTime best_decode(Decoder& model, int prompt, int tokens) {
  DecodeTime best;
  for (int round = 0; round < 5; ++round) {
    const DecodeTime time = decode(model, prompt, tokens);
    if (time.token_s < best.token_s) best = time;
  }
  return best;
}

void print_operations(const OperationTimes& times, double steps, double bandwidth) {
  Table table({{"operation", Align::kLeft},
               {"calls/token", Align::kRight},
               {"us/call", Align::kRight},
               {"us/token", Align::kRight},
               {"share", Align::kRight},
               {"GB/s of weights", Align::kRight},
               {"of bandwidth", Align::kRight}});
  std::vector<std::pair<std::string, OperationTime>> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double total = 0;
  for (const auto& [name, time] : sorted) total += time.seconds;
  for (const auto& [name, time] : sorted) {
    const double rate = time.weight_bytes / time.seconds;
    table.add({name, format_fixed(static_cast<double>(time.calls) / steps, 1),
               format_fixed(1e6 * time.seconds / static_cast<double>(time.calls), 2),
               format_fixed(1e6 * time.seconds / steps, 1),
               format_fixed(100 * time.seconds / total, 1) + " %",
               rate > 0 ? format_fixed(rate / 1e9, 2) : "",
               rate > 0 ? format_fixed(100 * rate / bandwidth, 0) + " %" : ""});
  }
  table.add({"all operations", "", "", format_fixed(1e6 * total / steps, 1), "", "", ""});
  std::cout << table.text() << "\n";
}

void bench_checkpoint(const Flags& flags, double bandwidth) {
  DecodeTime cpu;
  for (const int threads : {1, flags.threads}) {
    const auto model = load(flags, make_cpu_backend(threads));
    cpu = best_decode(*model, flags.prompt, flags.tokens);
    std::printf("%-22s decode %7.0f tok/s (%.1f us/token, %.1f us of CPU), prefill of %d rows %.0f tok/s\n",
                model->backend().name().c_str(), 1 / cpu.token_s, 1e6 * cpu.token_s, 1e6 * cpu.token_cpu_s,
                flags.prompt, flags.prompt / cpu.prefill_s);
  }
  const auto reference = load(flags, make_reference_backend());
  const DecodeTime slow = decode(*reference, flags.prompt, flags.reference_tokens);
  const auto model = load(flags, make_cpu_backend(flags.threads));
  const DecodeTime same = best_decode(*model, flags.prompt, flags.reference_tokens);
  std::printf("%-22s decode %7.1f tok/s: over the same %d tokens the CPU backend is %.1f times as fast\n\n",
              "reference", 1 / slow.token_s, flags.reference_tokens, slow.token_s / same.token_s);

  OperationTimes times;
  const auto timed = load(flags, make_timed_backend(make_cpu_backend(flags.threads), times));
  decode(*timed, flags.prompt, 10);
  times.clear();
  // One prefill step counts as one more token here; with hundreds of tokens it does not matter.
  decode(*timed, 1, flags.tokens);
  print_operations(times, flags.tokens + 1, bandwidth);
}

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--checkpoint") flags.checkpoint = argv[i + 1];
    if (name == "--preset") flags.preset = argv[i + 1];
    if (name == "--threads") flags.threads = std::atoi(argv[i + 1]);
    if (name == "--tokens") flags.tokens = std::atoi(argv[i + 1]);
    if (name == "--prompt") flags.prompt = std::atoi(argv[i + 1]);
    if (name == "--reference-tokens") flags.reference_tokens = std::atoi(argv[i + 1]);
  }
  if (flags.threads <= 0) flags.threads = static_cast<int>(std::thread::hardware_concurrency());
  return flags;
}

std::string synthetic_folder(const std::string& preset) {
  const std::optional<SyntheticPreset> known = synthetic_preset(preset);
  if (!known) throw Error("there is no preset \"" + preset + "\"", "--preset", "choose tiny or small");
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("spark-decode-bench-" + preset);
  if (!std::filesystem::exists(folder)) create_synthetic_checkpoint(*known, 1, folder.string(), false);
  return folder.string();
}

int run(int argc, char** argv) {
  Flags flags = parse(argc, argv);
  if (!flags.preset.empty()) flags.checkpoint = synthetic_folder(flags.preset);
  const double one = read_bandwidth(1);
  const double all = read_bandwidth(flags.threads);
  std::printf("memory read bandwidth: %.1f GB/s on 1 thread, %.1f GB/s on %d\n\n", one / 1e9, all / 1e9,
              flags.threads);
  if (flags.checkpoint.empty()) {
    print_products(flags.threads, all);
  } else {
    bench_checkpoint(flags, all);
  }
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  try {
    return spark::engine::run(argc, argv);
  } catch (const spark::Error& error) {
    std::cerr << error.describe() << "\n";
    return 1;
  }
}
