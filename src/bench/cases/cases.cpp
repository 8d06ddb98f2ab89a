#include "bench/cases/cases.h"

#include <algorithm>
#include <sstream>

#include "common/error.h"
#include "common/hash.h"
#include "common/json.h"

namespace spark::bench {

const std::vector<Case>& all_cases() {
  static const std::vector<Case> kCases = {
      {.name = "prose",
       .title = "technical prose",
       .prompt = "Write a careful explanation, in flowing paragraphs without lists, of how a language model "
                 "server uses "
                 "a small draft model to produce several tokens per step. Say why the answers keep exactly "
                 "the same "
                 "distribution, what decides how many drafts are accepted, what a rejected draft costs, and "
                 "how the gain "
                 "changes when many users are served at once compared with a single one."},
      {.name = "code",
       .title = "Python source",
       .prompt = "Implement a least-recently-used cache in Python using nothing outside the standard "
                 "library. Give it type "
                 "hints, constant-time get and put, a check that the capacity is positive, and a short "
                 "program at the end "
                 "that shows an entry being evicted. Close with one paragraph about its time and memory "
                 "complexity."},
      {.name = "prose-fixed",
       .title = "technical prose, thinking off, exactly 256 tokens",
       .prompt = "Write a continuous essay of roughly nine hundred words about how cities have brought in "
                 "fresh water, from "
                 "early wells and aqueducts to modern treatment plants. Use paragraphs only: no headings and "
                 "no lists.",
       .thinking = false,
       .fixed_length = true},
      {.name = "code-fixed",
       .title = "Python source, thinking off, exactly 256 tokens",
       .prompt = "Write a complete Python module that evaluates arithmetic expressions with parentheses, "
                 "variables and unary "
                 "minus: a tokenizer, a recursive-descent parser, an evaluator, and a full set of unit "
                 "tests. Print the "
                 "source only.",
       .thinking = false,
       .fixed_length = true},
  };
  return kCases;
}

std::vector<Case> select_cases(const std::string& names) {
  std::vector<std::string> known;
  for (const Case& item : all_cases()) known.push_back(item.name);
  std::vector<Case> result;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      const auto guess = nearest(name, known);
      std::string all;
      for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
      throw Error("\"" + name + "\" is no benchmark case", "--cases",
                  guess ? "did you mean \"" + *guess + "\"?" : "known cases: " + all);
    }
    const Case& chosen = all_cases()[static_cast<size_t>(found - known.begin())];
    const bool repeated =
        std::any_of(result.begin(), result.end(), [&](const Case& c) { return c.name == chosen.name; });
    if (!repeated) result.push_back(chosen);
  }
  if (result.empty()) throw Error("names no case", "--cases");
  return result;
}

std::string prompt_set_id() {
  std::string all;
  for (const Case& item : all_cases()) {
    all += item.name + '\0' + item.prompt + '\0' + std::to_string(item.max_tokens) + '\0';
  }
  return sha256_hex(all).substr(0, 16);
}

}  // namespace spark::bench
