#include "kernel_cases/cases.h"

#include <cstdlib>
#include <exception>
#include <ostream>

namespace spark::engine::cases {

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  add_linear_cases(cases);
  add_stream_cases(cases);
  add_cache_cases(cases);
  add_attention_cases(cases);
  add_index_cases(cases);
  add_expert_cases(cases);
  add_select_cases(cases);
  return cases;
}

int random_seeds() {
  const char* value = std::getenv("SPARK_LONG_TESTS");
  return value != nullptr && std::string(value) == "1" ? 24 : 2;
}

void add_random_cases(std::vector<KernelCase>& cases, const std::string& name,
                      const std::function<Problem(Random&)>& make) {
  uint64_t salt = 0;
  for (const char c : name) salt = salt * 131 + static_cast<unsigned char>(c);
  for (int seed = 0; seed < random_seeds(); ++seed) {
    cases.push_back({name + "/random/seed " + std::to_string(seed), [make, salt, seed] {
                       Random random(salt + static_cast<uint64_t>(seed));
                       return make(random);
                     }});
  }
}

CaseResult check_case(const KernelCase& kernel_case, Device& candidate, Device& reference) {
  CaseResult result{kernel_case.name, {}};
  try {
    const Problem problem = kernel_case.make();
    const Results expected = reference.run(problem, whole(problem), 0xA5);
    const auto mask = specified(problem, expected, reference.run(problem, whole(problem), 0xFF));
    const Results actual = candidate.run(problem, whole(problem), 0xFF);
    result.trouble = compare(problem, expected, mask, actual);
    if (!problem.splittable || problem.rows < 2) return result;
    for (const std::vector<int32_t>& pieces : {one_by_one(problem), random_pieces(problem, 7)}) {
      const std::string trouble = compare_bits(problem, actual, mask, candidate.run(problem, pieces, 0xFF));
      if (!trouble.empty())
        result.trouble += "in " + std::to_string(pieces.size()) + " pieces of the batch: " + trouble;
    }
  } catch (const std::exception& error) {
    result.trouble += std::string("threw: ") + error.what() + "\n";
  }
  return result;
}

int run_kernel_cases(Backend& candidate, Backend& reference, const std::string& filter, std::ostream& out) {
  Device candidate_device(candidate);
  Device reference_device(reference);
  int run = 0;
  int failed = 0;
  for (const KernelCase& kernel_case : kernel_cases()) {
    if (kernel_case.name.find(filter) == std::string::npos) continue;
    ++run;
    const CaseResult result = check_case(kernel_case, candidate_device, reference_device);
    if (result.passed()) continue;
    ++failed;
    out << "FAILED " << result.name << "\n" << result.trouble;
  }
  out << run - failed << " of " << run << " kernel cases pass on " << candidate.name() << "\n";
  return failed;
}

}  // namespace spark::engine::cases
