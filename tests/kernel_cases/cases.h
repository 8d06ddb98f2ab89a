// The cases that every backend must pass: each operation over shapes of the tiny and the real model and
// awkward ones, edge values, ties, padding rows.
//
//   for (const KernelCase& c : kernel_cases()) {
//     CaseResult r = check_case(c, candidate, reference);   // agreement, poison, guards, batch invariance
//   }
// or, as a whole program's work (a GPU backend does not need a test framework):
//   int failed = run_kernel_cases(*make_my_backend(), *make_reference_backend(), "", std::cout);
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "kernel_cases/problem.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {

struct KernelCase {
  std::string name;  // operation/what
  std::function<Problem()> make;
};

// Among them `random_seeds()` cases of each family with shapes and contents drawn from a seed ("/random/").
std::vector<KernelCase> kernel_cases();

// 2, or 24 with SPARK_LONG_TESTS=1 in the environment.
int random_seeds();
// Adds "name/seed N" for each of them; the case is made from a generator of its own.
void add_random_cases(std::vector<KernelCase>& cases, const std::string& name,
                      const std::function<Problem(Random&)>& make);

struct CaseResult {
  std::string name;
  std::string trouble;  // empty: passed
  bool passed() const { return trouble.empty(); }
};

// Compares with the reference (whole batch), then the candidate with itself: one row at a time and in random
// pieces must give the same bits.
CaseResult check_case(const KernelCase& kernel_case, Device& candidate, Device& reference);

// Runs the cases whose name contains `filter` and prints a line for each failure and a summary; returns the
// number of failures.
int run_kernel_cases(Backend& candidate, Backend& reference, const std::string& filter, std::ostream& out);

// The cases of one family each.
void add_linear_cases(std::vector<KernelCase>& cases);
void add_stream_cases(std::vector<KernelCase>& cases);
void add_cache_cases(std::vector<KernelCase>& cases);
void add_attention_cases(std::vector<KernelCase>& cases);
void add_index_cases(std::vector<KernelCase>& cases);
void add_expert_cases(std::vector<KernelCase>& cases);
void add_select_cases(std::vector<KernelCase>& cases);

}  // namespace spark::engine::cases
