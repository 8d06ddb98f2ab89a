// The one exception type, and the check for programming errors.
//
//   throw spark::Error("shard has 12 bytes, its header needs 20", path, "download the file again");
//
// `what` says what is wrong, `where` names the file, flag, JSON path or node, `hint` says what to do next.
// Commands catch Error once, print it with `describe()`, and exit non-zero.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace spark {

class Error : public std::runtime_error {
 public:
  explicit Error(std::string what_is_wrong, std::string where = {}, std::string hint = {})
      : std::runtime_error(std::move(what_is_wrong)), where_(std::move(where)), hint_(std::move(hint)) {}

  const std::string& where() const { return where_; }
  const std::string& hint() const { return hint_; }

  // "where: what" and, on a second line, the hint.
  std::string describe() const;

 private:
  std::string where_;
  std::string hint_;
};

// One thing that is wrong with an input. Validators collect all of them before they fail.
struct Fault {
  std::string where;  // a path such as "nodes[2].mtu", a tensor name, a flag
  std::string what;
  std::string hint;
};

// Throws one Error that lists the faults (a hundred at most, and how many more); does nothing when there is
// none.
void throw_if_any(const std::vector<Fault>& faults, const std::string& subject, const std::string& hint = {});

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace spark

// A broken invariant is a bug in this program, never bad input: print where and abort.
#define SPARK_CHECK(condition)                                               \
  do {                                                                       \
    if (!(condition)) ::spark::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
