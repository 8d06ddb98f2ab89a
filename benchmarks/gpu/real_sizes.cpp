// Checks at the real sizes that a scalar reference could not do in the time: products of synthetic weights at
// random places against sums in double over the decoded tiles, equality of every row whatever the number of
// rows beside it, and equality of overlapping and plain launches.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/numeric/numeric.h"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

using namespace engine;

constexpr int kRows = 96;

struct Shape {
  const char* name;
  WeightFormat format;
  int64_t out, in;
  int groups;
};

constexpr Shape kShapes[] = {
    {"fp8 1792x5120", WeightFormat::kFp8, 1792, 5120, 0},
    {"fp8 8192x1280", WeightFormat::kFp8, 8192, 1280, 0},
    {"fp8 5120x2048", WeightFormat::kFp8, 5120, 2048, 0},
    {"fp8 5120x15360", WeightFormat::kFp8, 5120, 15360, 0},
    {"fp8 576x5120", WeightFormat::kFp8, 576, 5120, 0},
    {"fp8 5120x576", WeightFormat::kFp8, 5120, 576, 0},
    {"fp8 25600x6144", WeightFormat::kFp8, 25600, 6144, 0},
    {"grouped 2x1024x4096", WeightFormat::kFp8, 2048, 4096, 2},
    {"bf16 384x5120", WeightFormat::kBf16, 384, 5120, 0},
    {"bf16 32x5120", WeightFormat::kBf16, 32, 5120, 0},
    {"packed 32320x5120", WeightFormat::kBf16, 32320, 5120, 0},
    {"packed 32320x256", WeightFormat::kBf16, 32320, 256, 0},
};

// A placed weight in host memory, to decode single elements.
class HostTiles {
 public:
  HostTiles(CudaBackend& backend, const Weight& weight)
      : w_(*static_cast<const cuda::PreparedWeight*>(weight.prepared)) {
    tiles_.resize(static_cast<size_t>(cuda::prepared_bytes(w_.layout, w_.rows, w_.cols)));
    backend.download(tiles_.data(), w_.tiles, tiles_.size());
    blocks_ = w_.cols / 32;
    if (w_.layout == cuda::Layout::kFp8) {
      scales_.resize(static_cast<size_t>((w_.rows + 31) / 32 * blocks_));
      backend.download(scales_.data(), w_.scales, scales_.size());
    }
    if (w_.layout == cuda::Layout::kPacked) {
      offsets_.resize(static_cast<size_t>(w_.rows) + 1);
      backend.download(offsets_.data(), w_.exception_offsets, offsets_.size() * 4);
      entries_.resize(offsets_.back());
      backend.download(entries_.data(), w_.exceptions, entries_.size() * 4);
    }
  }

  // Value of the stored form alone; exceptions are added by exception_sum.
  double at(int64_t row, int64_t col) const {
    if (w_.layout == cuda::Layout::kFp8) {
      return static_cast<double>(e4m3_to_float(tiles_[cuda::fp8_tile_offset(row, col, blocks_)])) *
             static_cast<double>(ue8m0_to_float(scales_[static_cast<size_t>(row / 32 * blocks_ + col / 32)]));
    }
    uint16_t bits = 0;
    if (w_.layout == cuda::Layout::kBf16) {
      std::memcpy(&bits, &tiles_[cuda::bf16_tile_offset(row, col, blocks_)], 2);
      return static_cast<double>(bf16_to_float(bits));
    }
    uint32_t word = 0;
    std::memcpy(&word, &tiles_[cuda::packed_word_offset(row, col, blocks_)], 4);
    const int pair = cuda::tile_pair(static_cast<int>(row & 15), static_cast<int>(col & 31));
    const uint32_t turned = cuda::rotate_right(word, (32 - 4 * (pair & 3)) % 32) >> (16 * (col & 1));
    bits = static_cast<uint16_t>(tiles_[cuda::packed_byte_offset(row, col, blocks_)] | (turned & 0x8700));
    return std::ldexp(static_cast<double>(bf16_to_float(bits)), w_.exponent_base);
  }

  double exception_sum(int64_t row, const uint16_t* x) const {
    if (offsets_.empty()) return 0;
    double sum = 0;
    for (uint32_t e = offsets_[static_cast<size_t>(row)]; e < offsets_[static_cast<size_t>(row) + 1]; ++e) {
      sum += static_cast<double>(bf16_to_float(x[entries_[e] >> 16])) *
             static_cast<double>(bf16_to_float(static_cast<uint16_t>(entries_[e])));
    }
    return sum;
  }

 private:
  cuda::PreparedWeight w_;
  int64_t blocks_ = 0;
  std::vector<uint8_t> tiles_, scales_;
  std::vector<uint32_t> offsets_, entries_;
};

struct Inputs {
  std::vector<uint16_t> x;  // as the product sees them: quantised and back where it quantises
  uint16_t* device_x = nullptr;
  QuantisedRows q;
};

Inputs make_inputs(CudaBackend& backend, const Shape& s) {
  const int64_t in = s.in * std::max(s.groups, 1);
  Inputs result;
  result.device_x = random_bf16(backend, kRows * in, 1, 81);
  result.x.resize(static_cast<size_t>(kRows * in));
  backend.download(result.x.data(), result.device_x, result.x.size() * 2);
  if (s.format == WeightFormat::kFp8 && s.groups == 0) {
    result.q = {reserve<uint8_t>(backend, kRows * in), reserve<uint8_t>(backend, kRows * in / 32)};
    backend.quantise(
        {.rows = kRows, .cols = static_cast<int32_t>(in), .x = result.device_x, .out = result.q});
    fake_quantise_fp8_block32(result.x, result.x);
  }
  return result;
}

std::vector<float> run(CudaBackend& backend, const Shape& s, const Weight& weight, const Inputs& in,
                       int first, int rows) {
  const int64_t width = s.in * std::max(s.groups, 1);
  std::vector<float> result(static_cast<size_t>(rows * s.out));
  if (s.groups > 0) {
    uint16_t* y = reserve<uint16_t>(backend, rows * s.out);
    backend.grouped_linear(
        {.rows = rows, .groups = s.groups, .x = in.device_x + first * width, .weight = &weight, .y = y});
    std::vector<uint16_t> bits(result.size());
    backend.download(bits.data(), y, bits.size() * 2);
    for (size_t i = 0; i < bits.size(); ++i) result[i] = bf16_to_float(bits[i]);
    return result;
  }
  float* y = reserve<float>(backend, rows * s.out);
  const QuantisedRows q = in.q.codes == nullptr
                              ? QuantisedRows{}
                              : QuantisedRows{in.q.codes + first * width, in.q.scales + first * width / 32};
  backend.linear({.rows = rows,
                  .x = in.device_x + first * width,
                  .x_q = q,
                  .weight = &weight,
                  .y_f32 = y,
                  .y_stride = s.out});
  backend.download(result.data(), y, result.size() * 4);
  return result;
}

bool same(const std::vector<float>& a, size_t a_first, const std::vector<float>& b) {
  return std::memcmp(a.data() + a_first, b.data(), b.size() * sizeof(float)) == 0;
}

bool check_shape(CudaBackend& chained, CudaBackend& plain, const Shape& s) {
  const Weight weight = chained.synthetic_weight(s.format, s.out, s.in, 5);
  const Weight other = plain.synthetic_weight(s.format, s.out, s.in, 5);
  const Inputs in = make_inputs(chained, s);
  const Inputs other_in = make_inputs(plain, s);
  const std::vector<float> all = run(chained, s, weight, in, 0, kRows);
  const HostTiles tiles(chained, weight);
  Random random(91);
  double error = 0, norm = 0;
  const int64_t width = s.in * std::max(s.groups, 1);
  for (int i = 0; i < 400; ++i) {
    const int m = random.below(kRows);
    const int64_t n = random.below(static_cast<int>(s.out));
    const int64_t group = s.groups > 0 ? n / (s.out / s.groups) : 0;
    const uint16_t* x = in.x.data() + m * width + group * s.in;
    double sum = 0;
    for (int64_t k = 0; k < s.in; ++k) sum += static_cast<double>(bf16_to_float(x[k])) * tiles.at(n, k);
    sum += tiles.exception_sum(n, x);
    const double got = static_cast<double>(all[static_cast<size_t>(m * s.out + n)]);
    error += (got - sum) * (got - sum);
    norm += sum * sum;
  }
  const double relative = std::sqrt(error / norm);
  const double allowed = s.groups > 0 ? 4e-3 : 2e-6;
  bool invariant = true;
  for (const int rows : {1, 6, 8, 12, 24, 33, 48}) {
    const int first = random.below(kRows - rows + 1);
    invariant &= same(all, static_cast<size_t>(first * s.out), run(chained, s, weight, in, first, rows));
  }
  const bool repeats = same(all, 0, run(plain, s, other, other_in, 0, kRows));
  const bool ok = relative < allowed && invariant && repeats;
  std::printf("%-22s relative error %.1e%s%s%s\n", s.name, relative, relative < allowed ? "" : "  TOO LARGE",
              invariant ? "" : "  DEPENDS ON THE BATCH", repeats ? "" : "  DIFFERS WITHOUT OVERLAP");
  return ok;
}

}  // namespace

int check_real_sizes(CudaBackend& chained, CudaBackend& plain) {
  int failed = 0;
  for (const Shape& shape : kShapes) failed += check_shape(chained, plain, shape) ? 0 : 1;
  return failed;
}

}  // namespace spark::bench_gpu
