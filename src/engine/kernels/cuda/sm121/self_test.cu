// The self-test multiplies by the functions that the products multiply by, and compares with sums whose every
// partial sum is exact, so that neither order nor rounding inside the instruction matters.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/kernels/cuda/memory.h"
#include "engine/kernels/cuda/sm121/fp4_step.cuh"
#include "engine/kernels/cuda/sm121/launch.h"
#include "engine/kernels/cuda/sm121/self_test.h"
#include "engine/numeric/e2m1.h"
#include "engine/numeric/e4m3.h"

namespace spark::engine::cuda::sm121 {
namespace {

constexpr int kRows = 16, kColumns = 8, kDepth = 64;  // of weights, of rows, two 32-blocks
constexpr int kRandomCases = 4;                       // of each kind

// What a warp's lanes hold, as in linear_fp8.cu (one block) and fp4_step.cuh (two).
struct LaneOperands {
  uint4 w;
  uint2 x0, x1;
  uint32_t w_scales, x_scales;
  uint32_t fp4;  // of the whole warp
};

__global__ void __launch_bounds__(32) self_test_kernel(const LaneOperands* operands, float* out) {
  const int lane = static_cast<int>(threadIdx.x), at = static_cast<int>(blockIdx.x) * 32 + lane;
  const LaneOperands in = operands[at];
  float sum[4] = {};
  if (in.fp4 != 0) {
    fp4_tile_step(sum, in.w, in.w_scales, in.x0, in.x1, in.x_scales);
  } else {
    mma_block_scaled_e4m3<0, 0>(sum, fp8_operand(in.w.x, in.w.y, in.w.z, in.w.w), in.x0, in.w_scales,
                                in.x_scales);
  }
  for (int q = 0; q < 4; ++q) out[at * 4 + q] = sum[q];
}

struct Case {
  bool fp4 = false;
  const char* what = "";
  uint8_t weights[kRows][kDepth] = {};  // E2M1 or E4M3 codes
  uint8_t x[kColumns][kDepth] = {};     // E4M3 codes
  uint8_t weight_scales[kRows][2], x_scales[kColumns][2];
};

class Random {
 public:
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state_ >> 33) % n;
  }
  // 0.5 to 3.75 of either sign, now and then zero: 32 products have a sum of at most 17 bits.
  uint8_t e4m3() {
    return below(8) == 0 ? 0 : static_cast<uint8_t>(below(2) << 7 | (6 + below(3)) << 3 | below(8));
  }
  uint8_t e2m1() { return static_cast<uint8_t>(below(16)); }
  uint8_t scale() { return static_cast<uint8_t>(120 + below(15)); }

 private:
  uint64_t state_ = 121;
};

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  Random random;
  for (int i = 0; i < 2 * kRandomCases; ++i) {
    Case c;
    c.fp4 = i >= kRandomCases;
    c.what = c.fp4 ? "E2M1 weights" : "E4M3 weights";
    for (auto& row : c.weights) {
      for (uint8_t& code : row) code = c.fp4 ? random.e2m1() : random.e4m3();
    }
    for (auto& row : c.x) {
      for (uint8_t& code : row) code = random.e4m3();
    }
    for (auto& scales : c.weight_scales) {
      for (uint8_t& scale : scales) scale = random.scale();
    }
    for (auto& scales : c.x_scales) {
      for (uint8_t& scale : scales) scale = random.scale();
    }
    cases.push_back(c);
  }
  // 4 * 4 + 2^-9 * 2^-9, at another place for every weight row.
  constexpr uint8_t kFour = 9 << 3, kSmallest = 1;
  Case far;
  far.what = "E4M3 products 22 bits apart";
  for (int k = 0; k < 32; ++k) {
    for (auto& row : far.x) row[k] = k % 2 == 0 ? kFour : kSmallest;
    far.weights[k / 2][k] = k % 2 == 0 ? kFour : kSmallest;
  }
  std::memset(far.weight_scales, 127, sizeof far.weight_scales);
  std::memset(far.x_scales, 127, sizeof far.x_scales);
  cases.push_back(far);
  return cases;
}

uint2 eight_codes(const uint8_t* codes) {
  uint32_t words[2];
  std::memcpy(words, codes, sizeof words);
  uint2 both;
  both.x = words[0];
  both.y = words[1];
  return both;
}

uint32_t fp4_word(const uint8_t* codes) {
  uint32_t word = 0;
  for (int e = 0; e < 8; ++e) word |= fp4_container_code(codes[e], e);
  return word;
}

// Bytes that nobody is to ask for hold the code of NaN.
uint32_t scale_word(const uint8_t (&scales)[2], bool both) {
  return 0xFFFF0000U | (both ? uint32_t{scales[1]} : 0xFFU) << 8 | scales[0];
}

LaneOperands operands_of(const Case& c, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const uint8_t *row = c.weights[g] + 8 * t, *row8 = c.weights[g + 8] + 8 * t, *x = c.x[g] + 8 * t;
  LaneOperands in = {};
  if (c.fp4) {
    in.w.x = fp4_word(row), in.w.y = fp4_word(row8);
    in.w.z = fp4_word(row + 32), in.w.w = fp4_word(row8 + 32);
  } else {
    const uint2 upper = eight_codes(row), lower = eight_codes(row8);
    in.w.x = upper.x, in.w.y = upper.y, in.w.z = lower.x, in.w.w = lower.y;
  }
  in.x0 = eight_codes(x);
  in.x1 = eight_codes(x + 32);
  in.w_scales = scale_word(c.weight_scales[block_scaled_row(lane)], c.fp4);
  in.x_scales = scale_word(c.x_scales[g], c.fp4);
  in.fp4 = c.fp4 ? 1 : 0;
  return in;
}

float expected(const Case& c, int n, int m) {
  float sum = 0;
  for (int b = 0; b < (c.fp4 ? 2 : 1); ++b) {
    double products = 0;
    for (int k = b * 32; k < b * 32 + 32; ++k) {
      const float w = c.fp4 ? engine::e2m1_to_float(c.weights[n][k]) : engine::e4m3_to_float(c.weights[n][k]);
      products += static_cast<double>(w) * static_cast<double>(engine::e4m3_to_float(c.x[m][k]));
    }
    sum += static_cast<float>(std::ldexp(products, c.weight_scales[n][b] + c.x_scales[m][b] - 2 * 127));
  }
  return sum;
}

void release(void* memory) {
  cudaFree(memory);
}

}  // namespace

std::string block_scaled_fault() {
  const std::vector<Case> cases = make_cases();
  std::vector<LaneOperands> operands;
  for (const Case& c : cases) {
    for (int lane = 0; lane < 32; ++lane) operands.push_back(operands_of(c, lane));
  }
  std::vector<float> out(operands.size() * 4);
  const Stream stream;
  const size_t in_bytes = operands.size() * sizeof(LaneOperands), out_bytes = out.size() * sizeof(float);
  Staging staging(std::max(in_bytes, out_bytes));
  void* memory = nullptr;
  check(cudaMalloc(&memory, in_bytes + out_bytes), "memory for the device's self-test");
  const std::unique_ptr<void, decltype(&release)> owner(memory, release);
  auto* in = static_cast<LaneOperands*>(memory);
  auto* results = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + in_bytes);
  staging.upload(stream.get(), in, operands.data(), in_bytes);
  Launch on;
  on.stream = stream.get();
  launch_kernel(on, self_test_kernel, dim3(static_cast<unsigned>(cases.size())), 32, 0, 1, in, results);
  staging.download(stream.get(), out.data(), results, out_bytes);
  stream.wait();
  for (size_t i = 0; i < cases.size(); ++i) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int q = 0; q < 4; ++q) {
        const int n = (lane >> 2) + 8 * (q >> 1), m = 2 * (lane & 3) + (q & 1);
        const float is = out[(i * 32 + static_cast<size_t>(lane)) * 4 + static_cast<size_t>(q)];
        const float should = expected(cases[i], n, m);
        if (is == should) continue;
        return "the block-scaled matrix instruction returns " + std::to_string(is) + " for " +
               std::to_string(should) + " (" + cases[i].what + ", row " + std::to_string(n) + ", column " +
               std::to_string(m) + "); products use the 16-bit instruction instead, and are slower";
      }
    }
  }
  return "";
}

}  // namespace spark::engine::cuda::sm121
