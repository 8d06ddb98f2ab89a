// The CUDA backend: SM90 (H200) and SM121 (GB10).
//
//   if (cuda_device_count() > 0) backend = make_cuda_backend({});
//
// Weights are cut into tiles in the order of the matrix instruction's registers when they are placed, in
// their own formats; large BF16 weights (vocabulary head) are packed to 12 bits an element, exactly. All
// buffers come from an arena; scratch memory grows on the first steps and stays. A recorded step is captured
// into a CUDA graph on its second run. A row's result depends on neither the rows beside it nor their number.
#pragma once

#include <memory>
#include <optional>

#include "engine/kernels/backend.h"

namespace spark::engine {

struct CudaOptions {
  int device = 0;
  bool dependent_launch = true;    // kernels start while their predecessors drain
  bool side_stream = true;         // mHC coefficients and the shared expert run beside the main chain
  int64_t pack_rows_from = 16384;  // BF16 weights with at least this many rows are packed
};

// What the device is and what the backend uses of it.
struct CudaDeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;
  std::string notice = {};  // what of it is not used, and why; empty: nothing
};

// Devices that this build has code for; 0 when there is no driver.
int cuda_device_count();
// Of the first device; nullopt when it shares the machine's memory, where the driver's answer leaves out what
// the kernel would give back, and when there is none.
std::optional<uint64_t> cuda_free_memory();

class CudaBackend : public Backend {
 public:
  virtual const CudaDeviceInfo& device() const = 0;

  // Waits for everything and throws the first error of the device.
  virtual void synchronise() = 0;
  virtual int64_t allocated_bytes() const = 0;
  // Of that, what operations needed to run: see plan/scratch_plan.h.
  virtual int64_t scratch_bytes() const = 0;

  // Weights of pseudo-random contents in the kernels' layouts, for measurements at full size. FP8 and FP4
  // scales lie around 2^-8, BF16 values around 2^-6.
  virtual Weight synthetic_weight(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) = 0;
  virtual ExpertBank synthetic_experts(int experts, int64_t hidden, int64_t width, uint64_t seed) = 0;
  // Bytes that one use of a placed weight reads.
  virtual int64_t weight_bytes(const Weight& weight) const = 0;

  // Memory of pseudo-random bytes without the patterns of NaN and infinity in E4M3 and BF16.
  virtual const uint8_t* synthetic_bytes(int64_t bytes, uint64_t seed) = 0;
  // Pseudo-random bytes; `bytes` is a multiple of 8.
  virtual void fill_random(void* to, int64_t bytes, uint64_t seed) = 0;
  // The cudaStream_t on which operations run in order, for kernels of a benchmark's own.
  virtual void* native_stream() = 0;

  // index[m] = the largest of logits[m][0 .. columns), the lowest index on ties.
  virtual void argmax(const float* logits, int32_t rows, int64_t columns, int32_t* index) = 0;

  // Records `body` as a graph and returns the mean time of one of `repeats` replays in microseconds, after a
  // warm-up; the minimum over `rounds` such means.
  virtual double time_graph(const std::function<void()>& body, int repeats, int rounds) = 0;
};

// Throws Error when the device does not exist or is of another kind than this build's.
std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options);

}  // namespace spark::engine
