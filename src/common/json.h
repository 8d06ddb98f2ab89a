// JSON as this project reads and writes it: order-preserving values, strict parsing, access that names the
// path of every fault.
//
//   Json document = parse_json(read_file(path), path);          // throws Error with line and column
//   Faults faults;
//   JsonReader root(document, "", faults);
//   int64_t mtu = root.field("mtu").integer(576, 9216);         // a fault is recorded, a default returned
//   std::string name = root.field("name").string();
//   root.reject_unknown({"mtu", "name"});                       // names the nearest known key
//   throw_if_any(faults, path);
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace spark {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_depth = 64;
  size_t max_bytes = size_t{64} << 20;
  // Of one object. Members keep their order and finding one looks at all of them, so whoever parses what
  // strangers send sets this.
  size_t max_members = std::numeric_limits<size_t>::max();
  // In all: values of any kind, and those that take memory of their own beside their place in a list
  // (strings, lists, objects: about two hundred bytes each, even when empty). `[[],[],...` of a few megabytes
  // is a gigabyte otherwise.
  size_t max_values = std::numeric_limits<size_t>::max();
  size_t max_allocated_values = std::numeric_limits<size_t>::max();
  // Integers that 64 bits cannot hold keep their digits (see `is_huge_integer`); otherwise they become
  // doubles, as most readers make them.
  bool exact_integers = false;
};

// A number that JSON allows and nothing here can hold, such as 1e999.
class JsonRangeError : public Error {
 public:
  using Error::Error;
};

// Strict RFC 8259: no comments, no duplicate keys, valid UTF-8, nothing before and after the value (a byte
// order mark neither), bounded depth. `source` names the text in errors (a file, "request body").
Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

// An integer of more than 64 bits out of `parse_json` with `exact_integers`. It is no number to Json, which
// has none so large; dump() does not know it either.
bool is_huge_integer(const Json& value);
std::string huge_integer_digits(const Json& value);
bool has_huge_integer(const Json& value);  // itself, or anywhere within

// The candidate closest to `word` by edit distance, if any is close enough to be a likely typing error.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

// A view of one value and its path. Reading a value of the wrong kind or range records a fault and returns
// the fallback, so one pass finds every fault. A missing value is a fault unless read through an `optional_*`
// call.
class JsonReader {
 public:
  JsonReader(const Json& value, std::string path, Faults& faults)
      : value_(&value), path_(std::move(path)), faults_(&faults) {}

  bool present() const { return value_ != nullptr; }
  const std::string& path() const { return path_; }
  const Json* json() const { return value_; }
  Faults& faults() const { return *faults_; }

  JsonReader field(
      std::string_view key) const;        // of an object; absent keys give a reader that is not present()
  JsonReader item(size_t index) const;    // of an array
  std::vector<JsonReader> items() const;  // all of an array; a fault when it is none
  // `use` for each of them, until more faults are found than are listed: for long lists that strangers send.
  template <typename Use>
  void each(Use use) const {
    if (!expect(value_ != nullptr && value_->is_array(), "an array")) return;
    for (size_t i = 0; i < value_->size(); ++i) {
      if (faults_->more() > 0) return faults_->leave_rest();
      use(item(i));
    }
  }
  std::vector<std::pair<std::string, JsonReader>> members() const;  // all of an object, in file order

  std::string string(std::string fallback = {}) const;
  int64_t integer(int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max(), int64_t fallback = 0) const;
  double number(double low = -1e300, double high = 1e300, double fallback = 0) const;
  bool boolean(bool fallback = false) const;

  std::optional<std::string> optional_string() const;
  std::optional<int64_t> optional_integer(int64_t low = std::numeric_limits<int64_t>::min(),
                                          int64_t high = std::numeric_limits<int64_t>::max()) const;
  std::optional<double> optional_number(double low = -1e300, double high = 1e300) const;
  std::optional<bool> optional_boolean() const;

  void reject_unknown(const std::vector<std::string>& known) const;
  void fault(std::string what, std::string hint = {}) const;

 private:
  JsonReader(std::string path, Faults& faults) : value_(nullptr), path_(std::move(path)), faults_(&faults) {}
  bool expect(bool matches, const char* kind) const;

  const Json* value_;
  std::string path_;
  Faults* faults_;
};

}  // namespace spark
