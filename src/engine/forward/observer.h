// A look into the forward pass, for layer-local tests and for hunting a difference between two backends. A
// model without an observer computes nothing extra; with one it runs unrecorded.
//
//   class Dump : public Observer { void tensor(const ObservedTensor& t) override { ... } };
//   decoder.set_observer(&dump);
#pragma once

#include <cstdint>
#include <string>

#include "engine/kernels/types.h"

namespace spark::engine {

enum class ObservedType : uint8_t { kBf16, kF32, kI32 };

// A [rows][cols] array in the backend's memory; valid during the call. Names are those of a layer's steps:
// "layers.3.attn_in", "layers.3.attn.selected", "layers.3.h", "final_hidden", "drafter_aux".
struct ObservedTensor {
  std::string name;
  ObservedType type = ObservedType::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;
};

// What passes from one layer to the next; an observer may replace the contents.
struct LayerState {
  int32_t rows = 0;
  uint16_t* h = nullptr;                // BF16 [rows][streams][hidden]
  float* pre = nullptr;                 // [rows][streams], the next collapse's coefficients
  int32_t* selected = nullptr;          // [rows][index_topk]
  int32_t* candidate_blocks = nullptr;  // [rows][candidate_topk_blocks]
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before_layer(int32_t layer, const LayerState& state) {
    (void)layer;
    (void)state;
  }
  virtual void tensor(const ObservedTensor& tensor) { (void)tensor; }
};

}  // namespace spark::engine
