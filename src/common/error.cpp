#include "common/error.h"

#include <cstdio>
#include <cstdlib>

#include "common/printable.h"

namespace spark {

std::string Error::describe() const {
  std::string text = where_.empty() ? std::string(what()) : where_ + ": " + what();
  text = fit_lines(text, "  ");
  if (!hint_.empty()) text += "\n  to fix: " + fit_lines(hint_, "  ");
  return text;
}

void Faults::push_back(Fault fault) {
  if (++count_ <= limit_) {
    lines_.push_back(std::move(fault));
  } else {
    write_last_line();
  }
}

void Faults::leave_rest() {
  rest_left_ = true;
  if (more() > 0) write_last_line();
}

void Faults::write_last_line() {
  lines_.resize(limit_);
  lines_.push_back(
      {"", "... and " + std::string(rest_left_ ? "at least " : "") + std::to_string(more()) + " more", ""});
}

void throw_if_any(const Faults& faults, const std::string& subject, const std::string& hint) {
  if (faults.empty()) return;
  std::string text = std::to_string(faults.size()) + (faults.size() == 1 ? " fault" : " faults");
  for (const Fault& fault : faults) {
    text += "\n  " + (fault.where.empty() ? std::string() : fault.where + ": ") + fault.what;
    if (!fault.hint.empty()) text += " (" + fault.hint + ")";
  }
  throw Error(text, subject, hint);
}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "internal error: %s does not hold (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace spark
