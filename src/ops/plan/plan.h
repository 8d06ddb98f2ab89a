// What a profile will take and give, before anything is launched: memory per node, tokens of cache, step and
// prefill times, and, when it does not fit, the smallest change that makes it fit.
//
//   const Plan plan = make_plan(request, {.workload = "prose"});
//   std::cout << plan_text(plan);
//   if (!plan.misfits.empty()) return 1;
//
// Pure: the same request gives the same bytes.
#pragma once

#include <string>
#include <vector>

#include "ops/plan/memory.h"
#include "ops/plan/speed.h"

namespace spark::ops {

struct PlanOptions {
  std::string workload = "prose";
  std::vector<int64_t> streams = {};  // empty: powers of two up to max_num_seqs
  int64_t context = 1024;             // tokens before a step, per stream
  std::vector<int64_t> prompts = {};  // empty: 32K, 256K, 500K, 1M as far as they fit
};

// One change of the profile that by itself makes it fit.
struct Change {
  std::string setting;  // "engine.kv_cache_memory_bytes"
  std::string from;
  std::string to;
  double size = 0;     // relative, to order changes by
  std::string effect;  // what it costs
};

struct Misfit {
  std::string what;             // "node1 would be left with 3.1 GiB of memory; 5 GiB are needed"
  std::vector<Change> changes;  // smallest first; empty: no single change helps
};

struct Plan {
  PlanRequest request;
  PlanOptions options;
  NodeMemory memory;
  double needed_available = 0;  // bytes that must stay available on every node
  CacheCapacity capacity;
  std::vector<StepTime> steps;
  std::vector<PrefillTime> prefills;
  std::vector<Misfit> misfits;
};

// Throws Error when the model does not split over the ranks or the options make no sense.
Plan make_plan(const PlanRequest& request, const PlanOptions& options = {});

// Why the request does not fit, without changes.
std::vector<std::string> reasons_against(const PlanRequest& request);

std::string plan_text(const Plan& plan);
Json plan_json(const Plan& plan);

}  // namespace spark::ops
