// Latency-bound operations between the large ones.
#include <functional>

#include "caches.h"
#include "harness.h"

namespace spark::bench_gpu {
namespace {

constexpr int kHidden = 5120;
constexpr int kStreams = 4;

// All the inputs that any of them needs.
struct Inputs {
  Steps steps;
  Caches caches;
  uint16_t* h;
  uint16_t* x;
  uint16_t* y;
  uint16_t* norm;
  uint16_t* kv;
  uint16_t* gate;
  engine::QuantisedRows q;
  std::vector<engine::Weight> fn;
  float* coefficients;
  float* pre;
  float* post;
  float* comb;
  float* logits;
  float* bias;
  int32_t* ids;
  float* weights;
  float* angles;
  uint16_t* heads;
  int32_t* index;
  size_t turn = 0;
};

Inputs make_inputs(CudaBackend& backend, int rows) {
  Inputs in;
  in.steps = make_steps(backend, rows, 32768);
  in.caches = make_caches(backend, in.steps.streams, 32768, 2);
  in.h = random_bf16(backend, int64_t{rows} * kStreams * kHidden, 1, 51);
  in.x = random_bf16(backend, int64_t{rows} * kHidden, 1, 52);
  in.y = reserve<uint16_t>(backend, int64_t{rows} * kHidden);
  in.norm = random_bf16(backend, kHidden, 1, 53);
  in.kv = random_bf16(backend, int64_t{rows} * (kStreams + 1) * kHidden, 1, 57);
  in.gate = random_bf16(backend, kStreams * kHidden, 1, 58);
  in.q = {reserve<uint8_t>(backend, int64_t{rows} * 8192), reserve<uint8_t>(backend, int64_t{rows} * 256)};
  for (uint64_t i = 0; i < 64; ++i) {
    in.fn.push_back(backend.synthetic_weight(engine::WeightFormat::kF32, 24, kStreams * kHidden, 60 + i));
  }
  in.coefficients = place(backend, std::vector<float>(32, 0.1F));
  in.pre = place(backend, std::vector<float>(static_cast<size_t>(rows) * 4, 0.25F));
  in.post = reserve<float>(backend, rows * 4);
  in.comb = place(backend, std::vector<float>(static_cast<size_t>(rows) * 16, 0.25F));
  std::vector<float> logits(static_cast<size_t>(rows) * 384);
  Random random(54);
  for (float& z : logits) z = random.normal();
  in.logits = place(backend, logits);
  in.bias = reserve<float>(backend, 384);
  in.ids = reserve<int32_t>(backend, rows * 6);
  in.weights = reserve<float>(backend, rows * 6);
  in.angles = place(backend, std::vector<float>(static_cast<size_t>(rows) * 64, 0.7F));
  in.heads = random_bf16(backend, int64_t{rows} * 16 * 512, 1, 55);
  in.index = reserve<int32_t>(backend, rows);
  return in;
}

using Body = std::function<void(CudaBackend&, Inputs&, int)>;
struct Operation {
  const char* name;
  int64_t bytes;  // weights only
  Body body;
};

void mix(CudaBackend& b, Inputs& in, int rows) {
  b.mhc_mix({.rows = rows,
             .streams = kStreams,
             .hidden = kHidden,
             .h = in.h,
             .fn = &in.fn[in.turn++ % in.fn.size()],
             .scale = in.coefficients,
             .base = in.coefficients,
             .pre = in.post,
             .post = in.post,
             .comb = in.comb});
}
void collapse(CudaBackend& b, Inputs& in, int rows) {
  b.mhc_collapse({.rows = rows,
                  .streams = kStreams,
                  .hidden = kHidden,
                  .h = in.h,
                  .pre = in.pre,
                  .norm_weight = in.norm,
                  .x = in.x,
                  .x_q = in.q});
}
void expand(CudaBackend& b, Inputs& in, int rows) {
  b.mhc_expand({.rows = rows,
                .streams = kStreams,
                .hidden = kHidden,
                .y = in.y,
                .post = in.pre,
                .comb = in.comb,
                .h = in.h});
}

std::vector<Operation> operations() {
  constexpr int64_t kFnBytes = int64_t{24} * kStreams * kHidden * 4;
  return {
      {"mHC mix + join", kFnBytes,
       [](CudaBackend& b, Inputs& in, int rows) {
         mix(b, in, rows);
         expand(b, in, rows);
       }},
      {"mHC collapse + norm + quantise", 0, collapse},
      {"mHC expand", 0, expand},
      {"mHC expand, mix, collapse", kFnBytes,
       [](CudaBackend& b, Inputs& in, int rows) {
         expand(b, in, rows);
         mix(b, in, rows);
         collapse(b, in, rows);
       }},
      {"rms norm 1280 + quantise", 0,
       [](CudaBackend& b, Inputs& in, int rows) {
         b.rms_norm(
             {.rows = rows, .cols = 1280, .x = in.x, .x_stride = 1792, .weight = in.norm, .y_q = in.q});
       }},
      {"quantise 2048", 0,
       [](CudaBackend& b, Inputs& in, int rows) {
         b.quantise({.rows = rows, .cols = 2048, .x = in.x, .out = in.q});
       }},
      {"rms norm 5120 + quantise", 0,
       [](CudaBackend& b, Inputs& in, int rows) {
         b.rms_norm({.rows = rows, .cols = kHidden, .x = in.x, .weight = in.norm, .y_q = in.q});
       }},
      {"Engram gate + inject", 0,
       [](CudaBackend& b, Inputs& in, int) {
         b.engram_inject({.step = in.steps.step,
                          .streams = kStreams,
                          .hidden = kHidden,
                          .kv = in.kv,
                          .q_weight = in.gate,
                          .k_weight = in.gate,
                          .h = in.h});
       }},
      {"rope 16 heads", 0,
       [](CudaBackend& b, Inputs& in, int rows) {
         b.rope({.rows = rows, .heads = 16, .width = 512, .pairs = 32, .cos_sin = in.angles, .x = in.heads});
       }},
      {"window write", 0,
       [](CudaBackend& b, Inputs& in, int) {
         b.window_write({.step = in.steps.step,
                         .width = 512,
                         .pairs = 32,
                         .cos_sin = in.angles,
                         .kv = in.x,
                         .cache = in.caches.window});
       }},
      {"route 384 top 6", 0,
       [](CudaBackend& b, Inputs& in, int) {
         b.route({.step = in.steps.step,
                  .experts = 384,
                  .top_k = 6,
                  .logits = in.logits,
                  .bias = in.bias,
                  .ids = in.ids,
                  .weights = in.weights});
       }},
  };
}

}  // namespace

void measure_small(Backends& backends, ReadCeiling& ceiling, std::span<const int> rows,
                   std::vector<Measurement>& out) {
  for (const int m : rows) {
    Inputs chained = make_inputs(*backends.chained, m);
    Inputs plain = make_inputs(*backends.plain, m);
    for (const Operation& operation : operations()) {
      Measurement r{.name = operation.name, .rows = m};
      r.bytes = operation.bytes;
      r.read_us = operation.bytes > 0 ? ceiling.microseconds(operation.bytes) : 0;
      r.us = time_graph(
          *backends.chained, [&] { operation.body(*backends.chained, chained, m); }, 40, 5);
      r.plain_us = time_graph(
          *backends.plain, [&] { operation.body(*backends.plain, plain, m); }, 40, 5);
      out.push_back(r);
    }
  }
}

}  // namespace spark::bench_gpu
