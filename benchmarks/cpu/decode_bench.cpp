// How fast the CPU backend is: memory bandwidth, products at several widths and row counts, and (with a
// checkpoint) whole decode steps, per operation and against the reference in the same run.
//
//   decode_bench [--checkpoint DIR | --preset tiny|small] [--threads N] [--tokens N] [--prompt N]
//                [--reference-tokens N] [--streams 16]
//
// --preset makes a synthetic checkpoint in the temporary folder first. The ratio to the reference is taken
// over the same positions. --streams: sequences that decode together in the second table of operations; the
// two are taken in turns in one run.
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

#include "../../apps/run_program.h"
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
  int streams = 16;
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

// Greedy decode of some streams, a row each in every step.
DecodeTime decode(Decoder& model, int prompt, int tokens, int streams = 1) {
  DecodeTime time;
  std::vector<StepRow> next;
  const auto choose = [&](std::span<const float> logits, StepRow& row) {
    row.token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ++row.position;
  };
  const double begin = now_s();
  for (int32_t stream = 0; stream < streams; ++stream) {
    model.open_sequence(stream);
    std::vector<StepRow> rows;
    for (int32_t t = 0; t < prompt; ++t)
      rows.push_back({.sequence = stream,
                      .token = (t * 37 + 11 + stream * 101) % model.vocab_size(),
                      .position = t,
                      .wants_logits = t + 1 == prompt});
    next.push_back(rows.back());
    choose(model.run(rows), next.back());
  }
  const double start = now_s();
  const double start_cpu = cpu_s();
  time.prefill_s = start - begin;
  const auto vocab = static_cast<size_t>(model.vocab_size());
  for (int t = 0; t < tokens; ++t) {
    const auto logits = model.run(next);
    for (size_t i = 0; i < next.size(); ++i) choose(logits.subspan(i * vocab, vocab), next[i]);
  }
  time.token_s = (now_s() - start) / tokens / streams;
  time.token_cpu_s = (cpu_s() - start_cpu) / tokens / streams;
  for (int32_t stream = 0; stream < streams; ++stream) model.close_sequence(stream);
  return time;
}

std::unique_ptr<Decoder> load(const Flags& flags, std::unique_ptr<Backend> backend) {
  const int context = flags.prompt + std::max(flags.tokens, flags.reference_tokens) + 1;
  LoadOptions options{.folder = flags.checkpoint};
  options.limits = {.max_sequences = flags.streams,
                    .max_context = context,
                    .max_step_rows = std::max({flags.prompt, flags.streams, 8})};
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

// Per operation: microseconds a token costs with one stream and with many.
void print_operations(const OperationTimes& one, const OperationTimes& many, double steps, int streams) {
  const std::string many_name = "at " + std::to_string(streams);
  Table table({{"operation", Align::kLeft},
               {"calls/step", Align::kRight},
               {"us/token at 1", Align::kRight},
               {"share", Align::kRight},
               {"us/token " + many_name, Align::kRight},
               {"share", Align::kRight},
               {"us/step " + many_name, Align::kRight},
               {"ratio", Align::kRight}});
  std::vector<std::pair<std::string, OperationTime>> sorted(many.begin(), many.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  const auto total = [](const OperationTimes& times) {
    double sum = 0;
    for (const auto& [name, time] : times) sum += time.seconds;
    return sum;
  };
  const double all_one = total(one), all_many = total(many);
  const auto row = [&](const std::string& name, const std::string& calls, double s_one, double s_many) {
    table.add({name, calls, format_fixed(1e6 * s_one / steps, 1),
               format_fixed(100 * s_one / all_one, 1) + " %", format_fixed(1e6 * s_many / steps / streams, 1),
               format_fixed(100 * s_many / all_many, 1) + " %", format_fixed(1e6 * s_many / steps, 1),
               format_fixed(streams * s_one / s_many, 2)});
  };
  for (const auto& [name, time] : sorted)
    row(name, format_fixed(static_cast<double>(time.calls) / steps, 1), one.at(name).seconds, time.seconds);
  row("all operations", "", all_one, all_many);
  std::cout << table.text() << "\n";
}

void bench_streams(const Flags& flags) {
  OperationTimes times, one, many;
  const auto timed = load(flags, make_timed_backend(make_cpu_backend(flags.threads), times));
  const auto model = load(flags, make_cpu_backend(flags.threads));
  DecodeTime best_one, best_many;
  const auto keep = [&](OperationTimes& best) {
    for (const auto& [name, time] : times) {
      const auto [at, fresh] = best.emplace(name, time);
      if (!fresh && time.seconds < at->second.seconds) at->second = time;
    }
    times.clear();
  };
  for (int round = 0; round < 5; ++round) {
    const DecodeTime a = decode(*model, 1, flags.tokens);
    const DecodeTime b = decode(*model, 1, flags.tokens, flags.streams);
    if (a.token_s < best_one.token_s) best_one = a;
    if (b.token_s < best_many.token_s) best_many = b;
    times.clear();
    decode(*timed, 1, flags.tokens);
    keep(one);
    decode(*timed, 1, flags.tokens, flags.streams);
    keep(many);
  }
  std::printf(
      "1 stream: %.1f us/token (CPU %.1f); %d streams: %.1f us/token (CPU %.1f): %.2f times as many\n\n",
      1e6 * best_one.token_s, 1e6 * best_one.token_cpu_s, flags.streams, 1e6 * best_many.token_s,
      1e6 * best_many.token_cpu_s, best_one.token_s / best_many.token_s);
  // One prefill step a stream counts as one more step here; with hundreds of tokens it does not matter.
  print_operations(one, many, flags.tokens, flags.streams);
}

void bench_checkpoint(const Flags& flags) {
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

  bench_streams(flags);
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
    if (name == "--streams") flags.streams = std::atoi(argv[i + 1]);
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
    bench_checkpoint(flags);
  }
  return 0;
}

}  // namespace
}  // namespace spark::engine

int main(int argc, char** argv) {
  return spark::app::run_program([&] { return spark::engine::run(argc, argv); }, 1);
}
