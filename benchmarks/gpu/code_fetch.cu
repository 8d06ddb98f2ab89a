// What it costs that code is not at hand. A decode step runs about fifteen kernels a layer, each once and of
// 10 to 65 KB, so every instruction is fetched again in every layer; how much that costs depends on what
// still holds it. Here straight code of a known size is run by every multiprocessor and timed by its own
// clock: right after itself, after other code, after other code and a stream of data through L2 (in its two
// kinds), and in a ring of kernels as a step is one.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/error.h"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

constexpr int kInstructionBytes = 16;
constexpr int kPasses = 2;
constexpr int kRing = 24;
constexpr int64_t kStreamBytes = int64_t{256} << 20;

// 64 instructions that no compiler shortens: four chains of multiply-adds, one issued a cycle.
#define SPARK_FOUR                                          \
  "fma.rn.f32 %0, %0, %4, %5; fma.rn.f32 %1, %1, %4, %5;\n" \
  "fma.rn.f32 %2, %2, %4, %5; fma.rn.f32 %3, %3, %4, %5;\n"
#define SPARK_SIXTEEN SPARK_FOUR SPARK_FOUR SPARK_FOUR SPARK_FOUR
#define SPARK_KILOBYTE SPARK_SIXTEEN SPARK_SIXTEEN SPARK_SIXTEEN SPARK_SIXTEEN

// kId makes kernels of the same size different code.
template <int kKilobytes, int kId>
__global__ void straight_kernel(float x, long long* cycles, float* sink) {
  float a = x, b = x + 1, c = x + 2, d = x + static_cast<float>(kId);
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const long long begin = clock64();
#pragma unroll
    for (int i = 0; i < kKilobytes; ++i)
      asm volatile(SPARK_KILOBYTE : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "f"(x), "f"(x));
    const long long end = clock64();
    if (threadIdx.x == 0) cycles[static_cast<int>(blockIdx.x) * kPasses + pass] = end - begin;
    __syncthreads();
  }
  if (a + b + c + d == 12345.0f) *sink = a;  // practically never, and the compiler cannot know
}

template <bool kEvictFirst>
__global__ void stream_kernel(const uint4* from, int64_t count, uint32_t* sink) {
  uint64_t policy = 0;
  if constexpr (kEvictFirst)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  uint32_t mixed = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint4 v;
    if constexpr (kEvictFirst) {
      asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from + i), "l"(policy));
    } else {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from + i));
    }
    mixed ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mixed == 0x12345678u) *sink = mixed;
}

using Kernel = void (*)(float, long long*, float*);

struct Bench {
  CudaBackend& backend;
  cudaStream_t stream;
  int blocks;
  long long* cycles;
  float* sink;
  uint8_t* data;

  void run(Kernel kernel, int warps) const {
    kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(32 * warps), 0, stream>>>(1.5f, cycles,
                                                                                            sink);
  }
  void read(bool evict_first) const {
    const auto kernel = evict_first ? stream_kernel<true> : stream_kernel<false>;
    kernel<<<static_cast<unsigned>(blocks * 4), 512, 0, stream>>>(
        reinterpret_cast<const uint4*>(data), kStreamBytes / 16, reinterpret_cast<uint32_t*>(sink));
  }
  // Cycles an instruction in this pass of the last run: median of the multiprocessors.
  double cycles_of(int kilobytes, int pass) const {
    std::vector<long long> host(static_cast<size_t>(blocks) * kPasses);
    if (cudaMemcpyAsync(host.data(), cycles, host.size() * sizeof(long long), cudaMemcpyDeviceToHost,
                        stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
      throw Error("cannot run", "code benchmark");
    std::vector<long long> of;
    for (int b = 0; b < blocks; ++b) of.push_back(host[static_cast<size_t>(b * kPasses + pass)]);
    std::nth_element(of.begin(), of.begin() + blocks / 2, of.end());
    return static_cast<double>(of[static_cast<size_t>(blocks / 2)]) /
           (kilobytes * (1024.0 / kInstructionBytes));
  }
};

template <class Before>
double median_of(const Bench& bench, Kernel kernel, int kilobytes, int warps, int pass,
                 const Before& before) {
  constexpr int kRounds = 7;
  std::vector<double> all;
  for (int i = 0; i < kRounds; ++i) {
    before();
    bench.run(kernel, warps);
    all.push_back(bench.cycles_of(kilobytes, pass));
  }
  std::nth_element(all.begin(), all.begin() + kRounds / 2, all.end());
  return all[kRounds / 2];
}

template <int kKilobytes>
void measure_size(const Bench& bench) {
  const Kernel kernel = straight_kernel<kKilobytes, 0>, other = straight_kernel<256, 1>;
  for (const int warps : {1, 16}) {
    const auto row = [&](int pass, const auto& before) {
      return median_of(bench, kernel, kKilobytes, warps, pass, before);
    };
    const auto itself = [&] { bench.run(kernel, warps); };
    const auto after_code = [&] { itself(), bench.run(other, 1); };
    const auto after_data = [&] { itself(), bench.run(other, 1), bench.read(false); };
    const auto after_first = [&] { itself(), bench.run(other, 1), bench.read(true); };
    std::printf("%6d %6d %9.2f %9.2f %9.2f %9.2f %9.2f\n", kKilobytes, warps, row(1, itself), row(0, itself),
                row(0, after_code), row(0, after_first), row(0, after_data));
  }
}

// The first `kernels` of a ring of kernels of 16 KB, over and over; cycles an instruction of the last one's
// first pass.
template <int... kIds>
void measure_ring(const Bench& bench, std::integer_sequence<int, kIds...>) {
  const Kernel kernels[] = {straight_kernel<16, 100 + kIds>...};
  for (const int count : {1, 2, 4, 6, 8, 12, 16, 24}) {
    const auto ring = [&](bool streams) {
      return median_of(bench, kernels[count - 1], 16, 4, 0, [&] {
        for (int turn = 0; turn < 2; ++turn) {
          for (int k = 0; k < count; ++k) {
            if (streams && k == 0) bench.read(false);
            if (turn == 0 || k + 1 < count) bench.run(kernels[k], 4);
          }
        }
      });
    };
    std::printf("%6d %6d %9.2f %9.2f\n", count, count * 16, ring(false), ring(true));
  }
}

}  // namespace

void measure_code(CudaBackend& backend) {
  const int blocks = backend.device().multiprocessors;
  const Bench bench{.backend = backend,
                    .stream = static_cast<cudaStream_t>(backend.native_stream()),
                    .blocks = blocks,
                    .cycles = reserve<long long>(backend, int64_t{blocks} * kPasses),
                    .sink = reserve<float>(backend, 1),
                    .data = reserve<uint8_t>(backend, kStreamBytes)};
  std::printf("cycles an instruction of straight code, median of the multiprocessors\n");
  std::printf("%6s %6s %9s %9s %9s %9s %9s\n", "KB", "warps", "2nd pass", "relaunch", "other", "+ first",
              "+ data");
  measure_size<4>(bench);
  measure_size<16>(bench);
  measure_size<32>(bench);
  measure_size<64>(bench);
  measure_size<128>(bench);
  std::printf("a ring of kernels of 16 KB\n%6s %6s %9s %9s\n", "count", "KB", "alone", "+ data");
  measure_ring(bench, std::make_integer_sequence<int, kRing>());
}

}  // namespace spark::bench_gpu
