// Dense products: FP8, grouped, BF16, packed.
#include <functional>

#include "harness.h"

namespace spark::bench_gpu {
namespace {

using engine::Weight;
using engine::WeightFormat;

struct Product {
  const char* name;
  WeightFormat format;
  int64_t out;
  int64_t in;
  int groups = 0;  // of a grouped product; `in` is then a group's
  bool f32 = false;
};

// Shapes of a TP4 rank first, then the whole model's.
constexpr Product kProducts[] = {
    {"q-a + kv 1792x5120", WeightFormat::kFp8, 1792, 5120},
    {"q-b TP4 8192x1280", WeightFormat::kFp8, 8192, 1280},
    {"wo-a TP4 2x1024x4096", WeightFormat::kFp8, 2048, 4096, 2},
    {"wo-b TP4 5120x2048", WeightFormat::kFp8, 5120, 2048},
    {"index q-b 4096x1280", WeightFormat::kFp8, 4096, 1280},
    {"shared up TP4 576x5120", WeightFormat::kFp8, 576, 5120},
    {"shared down TP4 5120x576", WeightFormat::kFp8, 5120, 576},
    {"router 384x5120", WeightFormat::kBf16, 384, 5120, 0, true},
    {"compressor 512x5120", WeightFormat::kBf16, 512, 5120, 0, true},
    {"index weights 32x5120", WeightFormat::kBf16, 32, 5120},
    {"head TP4 32320x5120", WeightFormat::kBf16, 32320, 5120, 0, true},
    {"markov TP4 32320x256", WeightFormat::kBf16, 32320, 256, 0, true},
    {"q-b 32768x1280", WeightFormat::kFp8, 32768, 1280},
    {"wo-b 5120x8192", WeightFormat::kFp8, 5120, 8192},
    {"engram 25600x6144", WeightFormat::kFp8, 25600, 6144},
    {"main 5120x15360", WeightFormat::kFp8, 5120, 15360},
};

// The product on one backend: weights rotate, activations and outputs stay.
class Runner {
 public:
  Runner(CudaBackend& backend, const Product& product, int most_rows) : backend_(backend), product_(product) {
    const int64_t all_in = product.groups > 0 ? product.in * product.groups : product.in;
    weights_.push_back(backend.synthetic_weight(product.format, product.out, product.in, 7));
    bytes_ = backend.weight_bytes(weights_[0]);
    for (int i = 1; i < copies_for(backend, bytes_); ++i) {
      weights_.push_back(
          backend.synthetic_weight(product.format, product.out, product.in, static_cast<uint64_t>(7 + i)));
    }
    x_ = random_bf16(backend, most_rows * all_in, 1, 5);
    if (product.format == WeightFormat::kFp8 && product.groups == 0) {
      q_ = {reserve<uint8_t>(backend, most_rows * all_in),
            reserve<uint8_t>(backend, most_rows * all_in / 32)};
      backend.quantise({.rows = most_rows, .cols = static_cast<int32_t>(all_in), .x = x_, .out = q_});
    }
    if (product.f32) {
      y_f32_ = reserve<float>(backend, most_rows * product.out);
    } else {
      y_ = reserve<uint16_t>(backend, most_rows * product.out);
    }
  }

  int64_t bytes() const { return bytes_; }

  double time(int rows) {
    const int repeats = bytes_ > (int64_t{64} << 20) ? 12 : 48;
    return time_graph(
        backend_, [&] { run(rows); }, repeats, 5);
  }

 private:
  void run(int rows) {
    const Weight& weight = weights_[turn_++ % weights_.size()];
    if (product_.groups > 0) {
      backend_.grouped_linear({.rows = rows, .groups = product_.groups, .x = x_, .weight = &weight, .y = y_});
    } else {
      backend_.linear({.rows = rows,
                       .x = x_,
                       .x_q = q_,
                       .weight = &weight,
                       .y = y_,
                       .y_f32 = y_f32_,
                       .y_stride = product_.out});
    }
  }

  CudaBackend& backend_;
  const Product& product_;
  std::vector<Weight> weights_;
  int64_t bytes_ = 0;
  size_t turn_ = 0;
  uint16_t* x_ = nullptr;
  engine::QuantisedRows q_;
  uint16_t* y_ = nullptr;
  float* y_f32_ = nullptr;
};

}  // namespace

void measure_products(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                      std::vector<Measurement>& out) {
  for (const Product& product : kProducts) {
    Runner chained(*backends.chained, product, 96);
    Runner plain(*backends.plain, product, 96);
    const double read = ceiling.microseconds(chained.bytes());
    for (const int m : rows) {
      out.push_back({.name = product.name,
                     .rows = m,
                     .bytes = chained.bytes(),
                     .flops = 2.0 * m * static_cast<double>(product.out) * static_cast<double>(product.in),
                     .read_us = read,
                     .us = chained.time(m),
                     .plain_us = plain.time(m),
                     .note = {}});
    }
  }
}

}  // namespace spark::bench_gpu
