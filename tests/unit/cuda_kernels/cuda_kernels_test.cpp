// The CUDA kernels and their backend, thread by thread on the CPU (tests/cuda_emulation): every kernel case
// that is small enough, against the reference, whole and in pieces of the batch. What this cannot show is
// races between threads that no barrier orders, and speed; benchmarks/gpu/run does both on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda_emulation/block_scaled_mma.h"
#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/reference/reference_backend.h"
#include "kernel_cases/cases.h"

namespace spark::engine {
namespace {

using cases::Device;
using cases::KernelCase;

struct Devices {
  std::unique_ptr<Backend> reference = make_reference_backend();
  std::unique_ptr<Backend> cuda = make_cuda_backend({});
  std::unique_ptr<Backend> packing = make_cuda_backend({.pack_rows_from = 1});
  std::unique_ptr<Backend> gb10 = make_cuda_backend({.device = 1});
  Device on_reference{*reference};
  Device on_cuda{*cuda};
  Device on_packing{*packing};
  Device on_gb10{*gb10};
};
Devices& devices() {
  static Devices all;
  return all;
}

bool contains(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

// Cases of real widths take the emulator long; they run on the GPU, and here with
// --gtest_also_run_disabled_tests.
bool slow(const std::string& name) {
  for (const char* part : {"real", "wide", "long", "many heads", "many rows", "x2304", "x1280", "borders",
                           "experts/tiny", "wider", "all outputs"}) {
    if (contains(name, part)) return true;
  }
  return false;
}

class CudaKernel : public testing::TestWithParam<KernelCase> {};
class SlowCudaKernel : public testing::TestWithParam<KernelCase> {};
class Gb10Kernel : public testing::TestWithParam<KernelCase> {};
class SlowGb10Kernel : public testing::TestWithParam<KernelCase> {};
class PackedCudaKernel : public testing::TestWithParam<KernelCase> {};

TEST_P(CudaKernel, AgreesWithTheReferenceAndIsBatchInvariant) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_cuda, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

TEST_P(SlowCudaKernel, DISABLED_AgreesWithTheReferenceAndIsBatchInvariant) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_cuda, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

TEST(Emulation, HasBothDevices) {
  EXPECT_EQ(make_cuda_backend({})->device().compute_major, 9);
  EXPECT_EQ(make_cuda_backend({.device = 1})->device().compute_major, 12);
}

TEST_P(Gb10Kernel, AgreesWithTheReferenceAndIsBatchInvariant) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_gb10, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

TEST_P(SlowGb10Kernel, DISABLED_AgreesWithTheReferenceAndIsBatchInvariant) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_gb10, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

TEST_P(PackedCudaKernel, AgreesWithTheReference) {
  const cases::CaseResult result = check_case(GetParam(), devices().on_packing, devices().on_reference);
  EXPECT_TRUE(result.passed()) << result.trouble;
}

// A GB10 whose instruction is not what we believe: found at the start, and its products are right all the
// same.
TEST(Gb10SelfTest, FindsEveryDefectAndProductsGoTheOtherWay) {
  using emulation::BlockScaledDefect;
  EXPECT_EQ(make_cuda_backend({.device = 1})->device().notice, "");
  devices();  // before any defect
  const std::vector<KernelCase> all = cases::kernel_cases();
  for (const auto defect : {BlockScaledDefect::kColumns, BlockScaledDefect::kRowScale,
                            BlockScaledDefect::kByte, BlockScaledDefect::kNarrow}) {
    emulation::block_scaled_defect = defect;
    const auto backend = make_cuda_backend({.device = 1});
    EXPECT_THAT(backend->device().notice, testing::HasSubstr("16-bit instruction"))
        << static_cast<int>(defect);
    if (defect != BlockScaledDefect::kColumns) continue;
    Device other_way{*backend};
    int checked = 0;
    for (const KernelCase& c : all) {
      if (c.name.rfind("linear/fp8/6x", 0) != 0 && c.name.rfind("linear/fp4/", 0) != 0 &&
          c.name.rfind("experts/clamped", 0) != 0) {
        continue;
      }
      if (slow(c.name)) continue;
      const cases::CaseResult result = check_case(c, other_way, devices().on_reference);
      EXPECT_TRUE(result.passed()) << c.name << ": " << result.trouble;
      ++checked;
    }
    EXPECT_GE(checked, 3);
    // Nor is what it takes then an H200's, also of packed weights: the emulated GB10 has no room for that,
    // and not the instruction.
    const auto packing = make_cuda_backend({.device = 1, .pack_rows_from = 1});
    Device packed{*packing};
    for (const KernelCase& c : all) {
      if (slow(c.name) || c.name.rfind("linear/bf16/", 0) != 0 || contains(c.name, "prompt")) continue;
      const cases::CaseResult result = check_case(c, packed, devices().on_reference);
      EXPECT_TRUE(result.passed()) << c.name << ": " << result.trouble;
      ++checked;
    }
    EXPECT_GE(checked, 9);
    // It is the other way that makes them right.
    const auto fp8 =
        std::ranges::find_if(all, [](const KernelCase& c) { return c.name.rfind("linear/fp8/6x", 0) == 0; });
    const cases::CaseResult wrong = check_case(*fp8, devices().on_gb10, devices().on_reference);
    EXPECT_FALSE(wrong.passed());
  }
  emulation::block_scaled_defect = BlockScaledDefect::kNone;
}

template <class Keep>
std::vector<KernelCase> cases_that(const Keep& keep) {
  std::vector<KernelCase> kept;
  for (const KernelCase& c : cases::kernel_cases()) {
    if (keep(c.name)) kept.push_back(c);
  }
  return kept;
}

std::string test_name(const testing::TestParamInfo<KernelCase>& info) {
  std::string name;
  for (const char c : info.param.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, CudaKernel,
                         testing::ValuesIn(cases_that([](const std::string& n) { return !slow(n); })),
                         test_name);
INSTANTIATE_TEST_SUITE_P(All, SlowCudaKernel,
                         testing::ValuesIn(cases_that([](const std::string& n) { return slow(n); })),
                         test_name);
// The operations with kernels of their own on SM121, or with other shapes; everything else is the same on
// both.
bool on_sm121(const std::string& n) {
  return contains(n, "linear/fp8") || contains(n, "linear/fp4") || contains(n, "experts/") ||
         contains(n, "grouped_linear/tiny") || contains(n, "sparse_attention/tiny") ||
         contains(n, "sparse_attention/every split");
}
INSTANTIATE_TEST_SUITE_P(All, Gb10Kernel, testing::ValuesIn(cases_that([](const std::string& n) {
                           return !slow(n) && on_sm121(n);
                         })),
                         test_name);
INSTANTIATE_TEST_SUITE_P(All, SlowGb10Kernel, testing::ValuesIn(cases_that([](const std::string& n) {
                           return slow(n) && on_sm121(n);
                         })),
                         test_name);
INSTANTIATE_TEST_SUITE_P(All, PackedCudaKernel, testing::ValuesIn(cases_that([](const std::string& n) {
                           if (contains(n, "prompt")) return false;  // packed they are decode's products
                           return !slow(n) && (contains(n, "linear/bf16") || contains(n, "embed/") ||
                                               contains(n, "draft/"));
                         })),
                         test_name);

}  // namespace
}  // namespace spark::engine
