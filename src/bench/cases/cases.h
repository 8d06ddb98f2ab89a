// What a benchmark asks: prompts, budgets, modes. The prompts are frozen: a change of wording changes
// prompt_set_id(), and figures of different prompt sets are never compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spark::bench {

struct Case {
  std::string name;
  std::string title;  // a few words for a person
  std::string prompt;
  std::optional<bool> thinking = std::nullopt;  // nullopt: the server's default
  int32_t max_tokens = 256;
  bool fixed_length = false;  // min_tokens = max_tokens and ignore_eos: every sample has the same work
  double temperature = 0;
  int64_t seed = 42;
};

const std::vector<Case>& all_cases();

// Comma-separated names; throws Error naming the nearest known case.
std::vector<Case> select_cases(const std::string& names);

// First 16 hex digits of the SHA-256 over every case's name, prompt and budget.
std::string prompt_set_id();

}  // namespace spark::bench
