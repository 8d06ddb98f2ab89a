// What the GPU measurements share: sizes of rotation, the plain-read ceiling, results and their table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "engine/kernels/cuda/cuda_backend.h"

namespace spark::bench_gpu {

using engine::CudaBackend;

// One measured operation at one number of rows.
struct Measurement {
  std::string name;
  int rows = 0;
  int64_t bytes = 0;  // that must move: weights, scales, cache records; activations are left out
  double flops = 0;
  double read_us = 0;   // a plain read of the same bytes, the floor
  double us = 0;        // in a graph of such calls, each overlapping its predecessor's end
  double plain_us = 0;  // the same without overlap
  std::string note = {};
};

// Both backends of a run: launches that overlap their predecessors, and launches that do not.
struct Backends {
  std::unique_ptr<CudaBackend> chained;
  std::unique_ptr<CudaBackend> plain;
};

// Times reads of `bytes` from a buffer several times the L2, rotating, in a graph; the best of a few launch
// shapes.
class ReadCeiling {
 public:
  explicit ReadCeiling(CudaBackend& backend);
  double microseconds(int64_t bytes);

 private:
  CudaBackend& backend_;
  uint8_t* buffer_ = nullptr;
  uint32_t* sink_ = nullptr;
  std::vector<std::pair<int64_t, double>> known_;
};

// CudaBackend::time_graph, or -1 after printing what went wrong: one broken operation must not hide the
// others.
double time_graph(CudaBackend& backend, const std::function<void()>& body, int repeats, int rounds);

// Copies of something of this size that make one rotation larger than the L2 several times over.
int copies_for(const CudaBackend& backend, int64_t bytes);

// A cheap counter-based generator; the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  float normal();

 private:
  uint64_t state_;
};

// Device arrays from host values.
template <typename T>
T* place(engine::Backend& backend, const std::vector<T>& values) {
  T* to = static_cast<T*>(backend.allocate(values.size() * sizeof(T), "benchmark"));
  backend.upload(to, values.data(), values.size() * sizeof(T));
  return to;
}
template <typename T>
T* reserve(engine::Backend& backend, int64_t count) {
  return static_cast<T*>(backend.allocate(static_cast<size_t>(count) * sizeof(T), "benchmark"));
}

uint16_t* random_bf16(engine::Backend& backend, int64_t count, float sigma, uint64_t seed);
engine::QuantisedRows random_codes(engine::Backend& backend, int64_t rows, int64_t cols, uint64_t seed);

// `streams` sequences of equal numbers of rows, at the end of a context of `context` tokens.
struct Steps {
  engine::StepRows step;
  int streams = 0;
};
Steps make_steps(engine::Backend& backend, int rows, int context);
// The last rows of one prompt of so many tokens.
Steps make_prompt(engine::Backend& backend, int rows, int context);
int streams_of(int rows);

// `count` different numbers below `n`, ascending.
std::vector<int32_t> distinct(Random& random, int count, int n);

// All of them, and one line per operation.
std::string table_of(std::span<const Measurement> measurements);
std::string summary_of(std::span<const Measurement> measurements);
Json json_of(std::span<const Measurement> measurements);

void measure_products(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                      std::vector<Measurement>& out);
void measure_experts(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                     std::vector<Measurement>& out);
void measure_attention(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                       std::vector<Measurement>& out);
void measure_small(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                   std::vector<Measurement>& out);

#ifdef SPARK_HAS_CUBLASLT
void measure_cublas(CudaBackend& backend, std::span<const int> rows, std::vector<Measurement>& out);
#endif

// Straight code that is at hand, in L2 or in memory; prints its own tables.
void measure_code(CudaBackend& backend);

// A tensor-parallel rank's whole step; prints its own tables.
struct StepResult {
  int ranks = 0;
  int rows = 0;
  double step_us = 0;   // backbone, drafter and heads
  double plain_us = 0;  // without overlap of launches
  double draft_us = 0;  // the drafter's part, alone
  int64_t bytes = 0;
  double floor_us = 0;                                       // bytes at the rate of a long plain read
  int distinct_experts = 0;                                  // that the rows chose in the last layer
  std::vector<std::pair<std::string, double>> without = {};  // step time with one kind of operation left out
};
// `brief`: nothing left out, and no second run without overlap.
std::vector<StepResult> measure_steps(int ranks, std::span<const int> rows, double bytes_per_us, bool brief);
std::string table_of(std::span<const StepResult> results);
// A rank's part of reading so many tokens at the end of a long prompt: backbone and the drafter's context,
// the head for the last row; step_us is all of it, draft_us nothing.
std::vector<StepResult> measure_prefill(int ranks, std::span<const int> rows, bool brief);
std::string prefill_table_of(std::span<const StepResult> results);
Json json_of(std::span<const StepResult> results);

// Numerical checks at real sizes, on synthetic weights; returns the number of failures.
int check_real_sizes(CudaBackend& chained, CudaBackend& plain);
// The matrix instruction of a warpgroup against that of a warp; returns how many checks failed.
int check_wgmma_bits();

}  // namespace spark::bench_gpu
