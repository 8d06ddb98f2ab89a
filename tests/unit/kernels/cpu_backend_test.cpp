// The CPU backend against the reference, over all kernel cases; its independence of threads and of the
// instruction set.
#include "engine/kernels/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include "engine/kernels/cpu/simd_targets.h"
#include "engine/kernels/reference/reference_backend.h"
#include "kernel_cases/cases.h"

namespace spark::engine {
namespace {

using cases::Device;
using cases::KernelCase;
using cases::Problem;
using cases::Results;

// One device per kind for the whole program: cases reuse its memory.
struct Devices {
  std::unique_ptr<Backend> reference = make_reference_backend();
  std::unique_ptr<Backend> one = make_cpu_backend(1);
  std::unique_ptr<Backend> two = make_cpu_backend(CpuOptions{.threads = 2, .fork_ns = 0});
  std::unique_ptr<Backend> three = make_cpu_backend(CpuOptions{.threads = 3, .fork_ns = 0});
  Device on_reference{*reference};
  Device on_one{*one};
  Device on_two{*two};
  Device on_three{*three};
};
Devices& devices() {
  static Devices all;
  return all;
}

class CpuKernel : public testing::TestWithParam<KernelCase> {};

TEST_P(CpuKernel, AgreesWithTheReferenceAndIsBatchInvariant) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_one, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

TEST_P(CpuKernel, DoesNotDependOnThreads) {
  const Problem problem = GetParam().make();
  const Results one = devices().on_one.run(problem, whole(problem), 0xFF);
  const auto mask = specified(problem, one, one);
  for (Device* device : {&devices().on_two, &devices().on_three}) {
    EXPECT_EQ(compare_bits(problem, one, mask, device->run(problem, whole(problem), 0xFF)), "")
        << device->backend().name();
  }
}

std::string test_name(const testing::TestParamInfo<KernelCase>& info) {
  std::string name;
  for (const char c : info.param.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, CpuKernel, testing::ValuesIn(cases::kernel_cases()), test_name);

// Restores the choice of the instruction set.
struct WithTargets {
  explicit WithTargets(int64_t mask) { cpu::limit_simd_targets(mask); }
  ~WithTargets() { cpu::limit_simd_targets(0); }
};

std::vector<int64_t> separate(int64_t targets) {
  std::vector<int64_t> list;
  for (; targets != 0; targets &= targets - 1) list.push_back(targets & -targets);
  return list;
}

TEST(CpuSimd, EveryTargetAgreesWithTheReference) {
  for (const int64_t target : separate(cpu::usable_simd_targets())) {
    const WithTargets limit(target);
    const auto backend = make_cpu_backend(1);
    std::ostringstream report;
    EXPECT_EQ(cases::run_kernel_cases(*backend, *devices().reference, "", report), 0) << report.str();
  }
}

// The emulation (the last one) has no fused multiply-add and may differ.
TEST(CpuSimd, VectorWidthsGiveTheSameBits) {
  std::vector<int64_t> targets = separate(cpu::usable_simd_targets());
  if (targets.size() < 3) GTEST_SKIP() << "one vector width only on this processor";
  for (const KernelCase& kernel_case : cases::kernel_cases()) {
    const Problem problem = kernel_case.make();
    const Results best = devices().on_one.run(problem, whole(problem), 0xFF);
    const WithTargets limit(targets[1]);
    EXPECT_EQ(compare_bits(problem, best, specified(problem, best, best),
                           devices().on_one.run(problem, whole(problem), 0xFF)),
              "")
        << kernel_case.name;
  }
}

}  // namespace
}  // namespace spark::engine
