// Sparse attention of many rows: attention_rows.cu says how it differs from attention.cu.
#pragma once

#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

// Whether the device has room for it and the rows fill the device.
bool takes_attention_rows(const DeviceLimits& device, const SparseAttentionArgs& args);
void launch_attention_rows(const Launch& on, const SparseAttentionArgs& args, const EarlyRecords& early);

}  // namespace spark::engine::cuda
