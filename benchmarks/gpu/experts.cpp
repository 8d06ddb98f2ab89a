// The expert layer of a TP4 rank: 384 experts of width 576, top 6, and the shared expert.
#include <set>

#include "harness.h"

namespace spark::bench_gpu {
namespace {

constexpr int kExperts = 384;
constexpr int kTopK = 6;
constexpr int kHidden = 5120;
constexpr int kWidth = 576;
constexpr int kLayers = 3;

struct Layer {
  engine::ExpertBank bank;
  engine::ExpertWeights shared;
};

class Runner {
 public:
  Runner(CudaBackend& backend, int most_rows) : backend_(backend) {
    for (uint64_t i = 0; i < kLayers; ++i) {
      Layer layer;
      layer.bank = backend.synthetic_experts(kExperts, kHidden, kWidth, 100 + i);
      layer.shared = {.w1 = backend.synthetic_weight(engine::WeightFormat::kFp8, kWidth, kHidden, 200 + i),
                      .w3 = backend.synthetic_weight(engine::WeightFormat::kFp8, kWidth, kHidden, 300 + i),
                      .w2 = backend.synthetic_weight(engine::WeightFormat::kFp8, kHidden, kWidth, 400 + i)};
      layers_.push_back(std::move(layer));
    }
    x_q_ = random_codes(backend, most_rows, kHidden, 9);
    y_ = reserve<uint16_t>(backend, int64_t{most_rows} * kHidden);
  }

  // Returns the number of distinct experts that the rows choose.
  int choose(int rows) {
    Random random(static_cast<uint64_t>(rows));
    std::vector<int32_t> ids;
    std::set<int32_t> seen;
    for (int t = 0; t < rows; ++t) {
      for (const int32_t e : distinct(random, kTopK, kExperts)) {
        ids.push_back(e);
        seen.insert(e);
      }
    }
    ids_ = place(backend_, ids);
    weights_ = place(backend_, std::vector<float>(ids.size(), 0.25F));
    steps_ = make_steps(backend_, rows, 4096);
    return static_cast<int>(seen.size());
  }

  double time(int rows) {
    return time_graph(
        backend_, [&] { run(rows); }, 12, 5);
  }

  int64_t shared_bytes() const {
    const engine::ExpertWeights& s = layers_[0].shared;
    return backend_.weight_bytes(s.w1) + backend_.weight_bytes(s.w3) + backend_.weight_bytes(s.w2);
  }

 private:
  void run(int rows) {
    const Layer& layer = layers_[turn_++ % layers_.size()];
    backend_.experts({.step = steps_.step,
                      .hidden = kHidden,
                      .width = kWidth,
                      .top_k = kTopK,
                      .limit = 10,
                      .x_q = x_q_,
                      .ids = ids_,
                      .weights = weights_,
                      .bank = &layer.bank,
                      .shared = &layer.shared,
                      .y = y_});
    (void)rows;
  }

  CudaBackend& backend_;
  std::vector<Layer> layers_;
  size_t turn_ = 0;
  engine::QuantisedRows x_q_;
  uint16_t* y_ = nullptr;
  int32_t* ids_ = nullptr;
  float* weights_ = nullptr;
  Steps steps_;
};

}  // namespace

void measure_experts(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                     std::vector<Measurement>& out) {
  Runner chained(*backends.chained, 96);
  Runner plain(*backends.plain, 96);
  // Codes at half a byte and one scale byte per 32 elements, three matrices.
  constexpr int64_t kExpertBytes = int64_t{3} * kHidden * kWidth / 2 + int64_t{3} * kHidden * kWidth / 32;
  for (const int m : rows) {
    const int experts = chained.choose(m);
    plain.choose(m);
    Measurement r{.name = "experts TP4", .rows = m};
    r.bytes = experts * kExpertBytes + chained.shared_bytes();
    r.flops = 2.0 * m * (kTopK + 1) * 3 * kHidden * kWidth;
    r.read_us = ceiling.microseconds(r.bytes);
    r.us = chained.time(m);
    r.plain_us = plain.time(m);
    r.note = std::to_string(experts) + " experts + shared";
    out.push_back(r);
  }
}

}  // namespace spark::bench_gpu
