// config.json as a file: one limit of its size for whoever reads it.
#pragma once

#include <cstddef>
#include <string>

#include "model/config.h"

namespace spark::model {

inline constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// What read_model_config() makes of the file; one of more than kMaxConfigBytes is refused.
ModelConfig load_model_config(const std::string& path);

}  // namespace spark::model
