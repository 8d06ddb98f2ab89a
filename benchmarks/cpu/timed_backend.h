// A backend that forwards to another one and keeps the time and the weight bytes of every operation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/kernels/backend.h"

namespace spark::engine {

struct OperationTime {
  int64_t calls = 0;
  double seconds = 0;
  double weight_bytes = 0;  // in the checkpoint's formats, each weight once per call
};
using OperationTimes = std::map<std::string, OperationTime>;

// `times` must outlive the backend.
std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend> inner, OperationTimes& times);

}  // namespace spark::engine
