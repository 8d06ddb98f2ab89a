// One step of a tensor-parallel rank (rank_model.h), of decode or of a prompt. Timed as one graph.
#include <algorithm>
#include <initializer_list>

#include "rank_model.h"

namespace spark::bench_gpu {
namespace {

class StepTimer {
 public:
  StepTimer(CudaBackend& cuda, int ranks, int most_rows) : cuda_(cuda), model_(cuda, ranks, most_rows) {}

  StepResult measure(int rows, bool split_up) {
    model_.prepare(rows, make_steps(cuda_, rows, kContext));
    StepResult result{.ranks = model_.ranks(), .rows = rows};
    result.bytes = model_.step_bytes(rows);
    result.step_us = time(true, true);
    result.draft_us = time(false, true);
    model_.run_backbone();
    result.distinct_experts = model_.distinct_experts(rows);
    if (split_up) {
      leave_out(result, {"experts", "dense FP8", "dense BF16", "vocabulary head", "draft head", "sparse MLA",
                         "indexer", "mHC mix", "mHC collapse, expand", "casts and norms",
                         "rope, cache writes", "route"});
    }
    return result;
  }

  StepResult measure_prompt(int rows, bool split_up) {
    model_.prepare(rows, make_prompt(cuda_, rows, kContext), 1);
    rounds_ = 3;
    StepResult result{.ranks = model_.ranks(), .rows = rows};
    result.step_us = time(true, false);
    if (split_up) {
      leave_out(result, {"experts", "dense FP8", "dense BF16", "sparse MLA", "indexer", "mHC mix",
                         "mHC collapse, expand", "casts and norms", "rope, cache writes", "route"});
    }
    return result;
  }

 private:
  void leave_out(StepResult& result, std::initializer_list<const char*> kinds) {
    const bool drafter = result.draft_us > 0;
    for (const char* kind : kinds) {
      model_.skip({kind});
      result.without.emplace_back(kind, time(true, drafter));
    }
    model_.skip({});
  }

  double time(bool backbone, bool drafter) {
    return time_graph(
        cuda_,
        [&] {
          if (backbone) model_.run_backbone();
          if (drafter) model_.run_drafter();
        },
        1, rounds_);
  }

  CudaBackend& cuda_;
  RankModel model_;
  int rounds_ = 12;
};

}  // namespace

std::vector<StepResult> measure_steps(int ranks, std::span<const int> rows, double bytes_per_us, bool brief) {
  std::vector<StepResult> results;
  {
    const auto cuda = engine::make_cuda_backend({});
    StepTimer timer(*cuda, ranks, 64);
    for (const int m : rows) {
      results.push_back(timer.measure(m, !brief && m == 6 && ranks == 4));
      results.back().floor_us = static_cast<double>(results.back().bytes) / bytes_per_us;
    }
  }
  if (!brief) {
    const auto cuda = engine::make_cuda_backend({.dependent_launch = false, .side_stream = false});
    StepTimer timer(*cuda, ranks, 64);
    for (StepResult& r : results) r.plain_us = timer.measure(r.rows, false).step_us;
  }
  return results;
}

std::vector<StepResult> measure_prefill(int ranks, std::span<const int> rows, bool brief) {
  const auto cuda = engine::make_cuda_backend({});
  StepTimer timer(*cuda, ranks, *std::max_element(rows.begin(), rows.end()));
  std::vector<StepResult> results;
  for (const int m : rows) results.push_back(timer.measure_prompt(m, !brief && m == rows.back()));
  return results;
}

}  // namespace spark::bench_gpu
