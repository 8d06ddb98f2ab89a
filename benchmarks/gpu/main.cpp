// gpu_bench check [FILTER] | cases [FILTER] | measure [--json FILE] | step [--rows N].. [--brief] [--json
// FILE] | prefill [--rows N].. [--brief] [--json FILE] | code
//
// check: every kernel case against the reference, packed and not, and products at real sizes. cases: the
// kernel cases alone (for compute-sanitizer, with a filter). measure: each kernel beside its floor. step:
// whole steps of a rank; brief: as configured only, nothing left out. prefill: reading a prompt. code: what
// fetching instructions costs.
#include <cstdio>
#include <cstring>
#include <iostream>

#include "common/error.h"
#include "common/file.h"
#include "engine/kernels/reference/reference_backend.h"
#include "harness.h"
#include "kernel_cases/cases.h"

namespace {

using namespace spark;
using namespace spark::bench_gpu;

Backends make_backends() {
  return {engine::make_cuda_backend({}),
          engine::make_cuda_backend({.dependent_launch = false, .side_stream = false})};
}

int run_cases(const std::string& filter, const engine::CudaOptions& options, const char* label) {
  const auto reference = engine::make_reference_backend();
  const auto cuda = engine::make_cuda_backend(options);
  std::cout << label << ": " << std::flush;
  return engine::cases::run_kernel_cases(*cuda, *reference, filter, std::cout);
}

int check(const std::string& filter) {
  int failed = run_cases(filter, {}, "as configured");
  failed += run_cases(filter.empty() ? "linear/bf16" : filter, {.pack_rows_from = 1}, "packed");
  failed += run_cases(filter.empty() ? "draft" : filter, {.pack_rows_from = 1}, "packed");
  failed += run_cases(filter.empty() ? "embed" : filter, {.pack_rows_from = 1}, "packed");
  failed += run_cases(filter, {.dependent_launch = false, .side_stream = false}, "one stream, no overlap");
  Backends backends = make_backends();
  failed += check_real_sizes(*backends.chained, *backends.plain);
  failed += check_wgmma_bits();
  std::cout << (failed == 0 ? "all checks pass\n" : std::to_string(failed) + " checks FAILED\n");
  return failed == 0 ? 0 : 1;
}

Json device_json(const engine::CudaDeviceInfo& d) {
  return {{"name", d.name},
          {"multiprocessors", d.multiprocessors},
          {"l2_bytes", d.l2_bytes},
          {"memory_bytes", d.memory_bytes}};
}

int measure(const std::string& json_file) {
  Backends backends = make_backends();
  ReadCeiling ceiling(*backends.chained);
  std::vector<Measurement> all;
  constexpr int kRows[] = {1, 6, 12, 24, 48};
  Json ceilings = Json::object();
  for (const int64_t mib : {2, 4, 8, 10, 16, 32, 64, 169, 1024}) {
    const double us = ceiling.microseconds(mib << 20);
    ceilings[std::to_string(mib)] = us;
    std::printf("read %4lld MiB: %8.2f us, %.2f TB/s\n", static_cast<long long>(mib), us,
                static_cast<double>(mib << 20) / us * 1e-6);
  }
  measure_products(backends, ceiling, kRows, all);
  measure_experts(backends, ceiling, kRows, all);
  measure_attention(backends, ceiling, kRows, all);
  measure_small(backends, ceiling, kRows, all);
#ifdef SPARK_HAS_CUBLASLT
  constexpr int kPeerRows[] = {6, 48};
  measure_cublas(*backends.chained, kPeerRows, all);
#endif
  std::cout << summary_of(all);
  if (!json_file.empty()) {
    write_file_atomic(json_file + ".txt", table_of(all));
    const Json json = {{"device", device_json(backends.chained->device())},
                       {"read_us_by_mib", ceilings},
                       {"measurements", json_of(all)}};
    write_file_atomic(json_file, json.dump(1) + "\n");
  }
  return 0;
}

int step(const std::string& json_file, const std::vector<int>& wanted, bool brief) {
  double bytes_per_us = 0;
  {
    const auto cuda = engine::make_cuda_backend({});
    ReadCeiling ceiling(*cuda);
    constexpr int64_t kLong = int64_t{2} << 30;
    bytes_per_us = static_cast<double>(kLong) / ceiling.microseconds(kLong);
  }
  const std::vector<int> rows = wanted.empty() ? std::vector<int>{1, 6, 12, 24, 48} : wanted;
  std::vector<StepResult> all = measure_steps(4, rows, bytes_per_us, brief);
  if (wanted.empty()) {
    const std::vector<StepResult> three = measure_steps(3, rows, bytes_per_us, brief);
    all.insert(all.end(), three.begin(), three.end());
  }
  std::cout << table_of(all);
  if (!json_file.empty()) {
    const Json json = {{"read_bytes_per_us", bytes_per_us}, {"steps", json_of(all)}};
    write_file_atomic(json_file, json.dump(1) + "\n");
  }
  return 0;
}

int prefill(const std::string& json_file, const std::vector<int>& wanted, bool brief) {
  const std::vector<int> rows = wanted.empty() ? std::vector<int>{128, 512, 2048} : wanted;
  const std::vector<StepResult> all = measure_prefill(4, rows, brief);
  std::cout << prefill_table_of(all);
  if (!json_file.empty()) write_file_atomic(json_file, Json({{"prefill", json_of(all)}}).dump(1) + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string verb = argc > 1 ? argv[1] : "";
    std::string argument, json_file;
    std::vector<int> rows;
    bool brief = false;
    for (int i = 2; i < argc; ++i) {
      if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
        json_file = argv[++i];
      } else if (std::strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
        rows.push_back(std::stoi(argv[++i]));
      } else if (std::strcmp(argv[i], "--brief") == 0) {
        brief = true;
      } else {
        argument = argv[i];
      }
    }
    if (engine::cuda_device_count() == 0)
      throw Error("no usable GPU", "", "H100, H200 or GB10 with a driver for CUDA 13");
    if (verb == "check") return check(argument);
    if (verb == "cases") return run_cases(argument, {}, "cases") == 0 ? 0 : 1;
    if (verb == "measure") return measure(json_file);
    if (verb == "step") return step(json_file, rows, brief);
    if (verb == "prefill") return prefill(json_file, rows, brief);
    if (verb == "code") {
      measure_code(*engine::make_cuda_backend({}));
      return 0;
    }
    std::cerr << "usage: gpu_bench check [FILTER] | cases [FILTER] | measure [--json FILE] | step | "
                 "prefill [--rows N].. [--brief] [--json FILE] | code\n";
    return 2;
  } catch (const Error& error) {
    std::cerr << error.describe() << "\n";
    return 1;
  }
}
