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
      : std::runtime_error(what_is_wrong), where_(std::move(where)), hint_(std::move(hint)) {}

  const std::string& where() const { return where_; }
  const std::string& hint() const { return hint_; }

  // "where: what" and, on a second line, the hint; fit for a terminal, whatever they quote (printable.h).
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

// The faults of an input: the first of them, and how many there are. More than a person reads need no memory:
// a list of a million wrong numbers must not become a message of a million lines.
//
//   Faults faults;                                  // lists a hundred
//   faults.push_back({"nodes[2].mtu", "is missing", ""});
//   for (const Fault& fault : faults) print(fault); // the last one may be {"", "... and 12 more", ""}
class Faults {
 public:
  Faults() = default;
  explicit Faults(size_t listed) : limit_(listed) {}

  void push_back(Fault fault);
  // What follows was not looked at: "... and at least 3 more".
  void leave_rest();

  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }          // all, listed or not
  bool full() const { return count_ >= limit_; }  // what comes now is only counted
  size_t more() const { return count_ > limit_ ? count_ - limit_ : 0; }
  const Fault& front() const { return lines_.front(); }
  const Fault& operator[](size_t index) const { return lines_.at(index); }  // of those listed

  // What to show: the faults listed, then a line for the others.
  auto begin() { return lines_.begin(); }
  auto end() { return lines_.end(); }
  auto begin() const { return lines_.begin(); }
  auto end() const { return lines_.end(); }

 private:
  void write_last_line();

  size_t limit_ = 100;
  size_t count_ = 0;
  bool rest_left_ = false;
  std::vector<Fault> lines_;
};

// Throws one Error that lists the faults; does nothing when there is none.
void throw_if_any(const Faults& faults, const std::string& subject, const std::string& hint = {});

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace spark

// A broken invariant is a bug in this program, never bad input: print where and abort.
#define SPARK_CHECK(condition)                                               \
  do {                                                                       \
    if (!(condition)) ::spark::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
