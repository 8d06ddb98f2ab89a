// Memory of a node, component by component, and what of it the cache can hold.
//
//   const NodeMemory memory = node_memory(request);
//   for (const MemoryPart& part : memory.parts) print(part.name, part.head, part.worker);
//   memory.available_head();               // what MemAvailable falls to on the head, in bytes
//   const CacheCapacity capacity = cache_capacity(request);
//
// Weights and the native engine's caches are exact, as it counts them itself (spark-engine --check); what
// else a rank takes is calibrated (ops/plan/calibration.h).
#pragma once

#include <string>
#include <vector>

#include "ops/plan/request.h"

namespace spark::ops {

struct MemoryPart {
  std::string name;
  double head = 0;    // bytes on the head
  double worker = 0;  // bytes on every other node
  bool exact = false;
};

struct NodeMemory {
  double node = 0;  // what the kernel manages
  std::vector<MemoryPart> parts;

  double used(bool head) const;
  double available(bool head) const { return node - used(head); }
};

NodeMemory node_memory(const PlanRequest& request);

// vLLM's page accounting, as a model named "uniform pages": every cache is kept in pages of one size, that of
// `block_size` tokens in the cache of the largest ratio; a request of the longest length takes whole pages of
// every cache for its tokens and one more chunk, and window pages of every layer. Calibrated on two published
// capacities (2,845,543 tokens in 3.5 GiB and 8,580,566 in 10.5 GiB), which it meets within 0.3 %.
struct UniformPages {
  int64_t page_bytes = 0;
  int64_t pages_per_block = 0;  // all compressed caches, per block of tokens
  int64_t window_pages = 0;     // of one request
  int64_t request_pages = 0;    // of a request of the longest length

  double bytes_per_token(int64_t block_size) const;
};
UniformPages uniform_pages(const PlanRequest& request);

// The smallest kv_cache_memory_bytes with which the native engine starts.
int64_t least_native_cache_bytes(const PlanRequest& request);

// Of the drafter's Markov head, what a vLLM rank leaves to the others; 0 for the native engine, whose ranks
// all have the whole of it.
double markov_bytes_elsewhere(const PlanRequest& request);

struct CacheCapacity {
  std::string accounting;  // the model's name
  double bytes = 0;
  double growth_per_token = 0;  // the model's own: 890 B
  double bytes_per_token = 0;   // as accounted
  int64_t tokens = 0;
  double windows = 0;  // requests of the longest length at once
};
CacheCapacity cache_capacity(const PlanRequest& request);

}  // namespace spark::ops
