#include "common/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace spark {
namespace {

// More than a person reads; a list of a million wrong numbers must not become a message of a million lines.
constexpr size_t kFaultsListed = 100;

}  // namespace

std::string Error::describe() const {
  std::string text = where_.empty() ? std::string(what()) : where_ + ": " + what();
  if (!hint_.empty()) text += "\n  to fix: " + hint_;
  return text;
}

void throw_if_any(const std::vector<Fault>& faults, const std::string& subject, const std::string& hint) {
  if (faults.empty()) return;
  std::string text = std::to_string(faults.size()) + (faults.size() == 1 ? " fault" : " faults");
  for (size_t i = 0; i < std::min(faults.size(), kFaultsListed); ++i) {
    const Fault& fault = faults[i];
    text += "\n  " + (fault.where.empty() ? std::string() : fault.where + ": ") + fault.what;
    if (!fault.hint.empty()) text += " (" + fault.hint + ")";
  }
  if (faults.size() > kFaultsListed) {
    text += "\n  ... and " + std::to_string(faults.size() - kFaultsListed) + " more";
  }
  throw Error(text, subject, hint);
}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "internal error: %s does not hold (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace spark
