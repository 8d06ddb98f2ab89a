// What a model will take, before anything is allocated.
//
//   const MemoryPlan plan = plan_memory(config, {.backend = "cuda", .limits = limits}, 4);
//   std::cout << plan.text();
//   plan.check(memory_available_to("cuda"));     // throws Error when it does not fit
//
// Weights are summed over the tensors (model/split.h), caches and the arrays of a step are those that the
// model itself would allocate, counted by a backend without memory. The CUDA backend allocates its scratch
// memory when operations first need it; it is counted by the function that it allocates with, as if steps
// came in the worst order (kernels/cuda/plan/scratch_plan.h). Not counted: code, stacks, the allocator's own
// (of the CUDA backend at most 64 MiB, and 16 MiB for transfers).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/forward/load_model.h"
#include "model/config.h"

namespace spark::engine {

struct MemoryPlan {
  struct Item {
    std::string name;
    uint64_t bytes = 0;
  };
  std::vector<Item> items;  // of one rank
  uint64_t mapped =
      0;  // weights used where the files are mapped: pages that the kernel may drop and read again

  uint64_t total() const;
  std::string text() const;  // a table
  // Throws Error that says what to lower; does nothing when `available` is not known.
  void check(std::optional<uint64_t> available) const;
};

// Throws Error when the widths do not split over `ranks`. Only backend, limits, engram and
// collective_dtype of the options matter.
MemoryPlan plan_memory(const model::ModelConfig& config, const LoadOptions& options, int64_t ranks);

// Of the GPU, or of the machine for backends that compute in its memory and for GPUs that share it.
std::optional<uint64_t> memory_available_to(const std::string& backend);

}  // namespace spark::engine
