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

constexpr int kRows = 300;  // as a prompt; pieces of them as decode steps

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
  for (const int rows : {1, 6, 8, 12, 24, 33, 48, 96, 128}) {
    const int first = random.below(kRows - rows + 1);
    invariant &= same(all, static_cast<size_t>(first * s.out), run(chained, s, weight, in, first, rows));
  }
  const bool repeats = same(all, 0, run(plain, s, other, other_in, 0, kRows));
  const bool ok = relative < allowed && invariant && repeats;
  std::printf("%-22s relative error %.1e%s%s%s\n", s.name, relative, relative < allowed ? "" : "  TOO LARGE",
              invariant ? "" : "  DEPENDS ON THE BATCH", repeats ? "" : "  DIFFERS WITHOUT OVERLAP");
  return ok;
}

// The experts of a prompt's rows against those of the same rows in decode-sized pieces, bit for bit.
bool check_experts(CudaBackend& backend) {
  constexpr int kAll = 700, kPiece = 50, kExperts = 48, kTopK = 6, kHidden = 5120, kWidth = 576;
  const ExpertBank bank = backend.synthetic_experts(kExperts, kHidden, kWidth, 7);
  const ExpertWeights shared = {.w1 = backend.synthetic_weight(WeightFormat::kFp8, kWidth, kHidden, 8),
                                .w3 = backend.synthetic_weight(WeightFormat::kFp8, kWidth, kHidden, 9),
                                .w2 = backend.synthetic_weight(WeightFormat::kFp8, kHidden, kWidth, 10)};
  const uint16_t* x = random_bf16(backend, int64_t{kAll} * kHidden, 1, 82);
  const QuantisedRows q = {reserve<uint8_t>(backend, int64_t{kAll} * kHidden),
                           reserve<uint8_t>(backend, int64_t{kAll} * kHidden / 32)};
  backend.quantise({.rows = kAll, .cols = kHidden, .x = x, .out = q});
  Random random(92);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int t = 0; t < kAll; ++t) {
    // Some experts get many rows, some a few.
    for (const int32_t e : distinct(random, kTopK, t % 3 == 0 ? kExperts : 12)) ids.push_back(e);
    for (int k = 0; k < kTopK; ++k) weights.push_back(0.1F + 0.05F * static_cast<float>(k));
  }
  const int32_t* const device_ids = place(backend, ids);
  const float* const device_weights = place(backend, weights);
  const Steps steps = make_prompt(backend, kAll, 4096);
  uint16_t* const y = reserve<uint16_t>(backend, int64_t{kAll} * kHidden);
  const auto run_rows = [&](int first, int rows) {
    StepRows step = steps.step;
    step.rows = rows;
    backend.experts({.step = step,
                     .hidden = kHidden,
                     .width = kWidth,
                     .top_k = kTopK,
                     .limit = 10,
                     .x_q = {q.codes + int64_t{first} * kHidden, q.scales + int64_t{first} * kHidden / 32},
                     .ids = device_ids + first * kTopK,
                     .weights = device_weights + first * kTopK,
                     .bank = &bank,
                     .shared = &shared,
                     .y = y + int64_t{first} * kHidden});
  };
  const auto outputs = [&] {
    std::vector<uint16_t> bits(size_t{kAll} * kHidden);
    backend.download(bits.data(), y, bits.size() * 2);
    return bits;
  };
  run_rows(0, kAll);
  const std::vector<uint16_t> whole = outputs();
  for (int first = 0; first < kAll; first += kPiece) run_rows(first, kPiece);
  const std::vector<uint16_t> pieces = outputs();
  size_t differ = 0, zero = 0;
  for (size_t i = 0; i < whole.size(); ++i) differ += whole[i] != pieces[i], zero += (whole[i] & 0x7FFF) == 0;
  const bool ok = differ == 0 && zero < whole.size() / 100;
  std::printf("experts of %d rows    %zu of %zu outputs differ from those in pieces of %d\n", kAll, differ,
              whole.size(), kPiece);
  return ok;
}

}  // namespace

int check_real_sizes(CudaBackend& chained, CudaBackend& plain) {
  int failed = 0;
  for (const Shape& shape : kShapes) failed += check_shape(chained, plain, shape) ? 0 : 1;
  failed += check_experts(chained) ? 0 : 1;
  return failed;
}

}  // namespace spark::bench_gpu
