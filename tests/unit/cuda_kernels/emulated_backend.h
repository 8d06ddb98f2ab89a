// A backend on the emulated device, and data for it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "cuda_emulation/launch_count.h"
#include "engine/kernels/cuda/cuda_backend.h"
#include "kernel_cases/random.h"

namespace spark::engine {

class EmulatedBackend : public testing::Test {
 protected:
  template <class T>
  T* make(const std::vector<T>& values) {
    auto* memory = static_cast<T*>(cuda_->allocate(values.size() * sizeof(T), "test"));
    cuda_->upload(memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  template <class T>
  T* room(size_t count) {
    return static_cast<T*>(cuda_->allocate(count * sizeof(T), "test"));
  }
  template <class T>
  std::vector<T> read(const T* from, size_t count) {
    std::vector<T> values(count);
    cuda_->download(values.data(), from, count * sizeof(T));
    return values;
  }
  uint16_t* rows(int32_t count, int32_t cols) {
    return make(cases::bf16_values(random_, static_cast<size_t>(count * cols)));
  }
  // Kernels that `work` launches, with whatever waits at its end.
  uint64_t launches(const std::function<void()>& work) {
    cuda_->synchronise();
    const uint64_t before = emulation::kernels_run();
    work();
    cuda_->synchronise();
    return emulation::kernels_run() - before;
  }
  Weight place(const cases::HostWeight& host) {
    kept_.push_back(std::make_unique<cases::HostWeight>(host));
    return cuda_->place(kept_.back()->view());
  }
  StepRows steps(int32_t count, int32_t step = 1) {
    std::vector<int32_t> sequence, position, first;
    for (int32_t t = 0; t < count; ++t) {
      sequence.push_back(t);
      position.push_back(step * t);
      first.push_back(t);
    }
    const auto zeros = std::vector<int32_t>(static_cast<size_t>(count), 0);
    return {.rows = count,
            .token = make(zeros),
            .position = make(position),
            .sequence = make(sequence),
            .first_row = make(first),
            .last_row = make(first),
            .window_start = make(zeros),
            .is_image = make(std::vector<uint8_t>(static_cast<size_t>(count), 0))};
  }

  std::unique_ptr<CudaBackend> cuda_ = make_cuda_backend({});
  cases::Random random_{77};
  std::vector<std::unique_ptr<cases::HostWeight>> kept_;
};

}  // namespace spark::engine
