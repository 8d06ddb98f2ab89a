#include "common/json.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace spark {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Only msgpack and its like have binary values; JSON text cannot spell one.
Json huge_integer(const std::string& digits) {
  return Json::binary(Json::binary_t::container_type(digits.begin(), digits.end()));
}

// Builds the value, and rejects what nlohmann's own builder accepts but a strict reader must not: repeated
// keys and unbounded nesting. That one also looks for every key among those before it, so that an object of
// 60,000 members took a minute; here a set of the names does it.
class StrictBuilder {
 public:
  StrictBuilder(Json& result, const JsonLimits& limits) : result_(result), limits_(limits) {}

  bool null() { return put(nullptr) != nullptr; }
  bool boolean(bool value) { return put(value) != nullptr; }
  bool number_integer(int64_t value) { return put(value) != nullptr; }
  bool number_unsigned(uint64_t value) { return put(value) != nullptr; }
  bool number_float(double value, const std::string& spelling) {
    const bool huge = limits_.exact_integers && spelling.find_first_of(".eE") == std::string::npos;
    return put(huge ? huge_integer(spelling) : Json(value)) != nullptr;
  }
  bool string(std::string& value) {
    count_allocated();
    return put(std::move(value)) != nullptr;
  }
  bool binary(Json::binary_t& value) { return put(std::move(value)) != nullptr; }

  bool start_object(size_t) {
    open(Json::object());
    names_.emplace_back();
    return true;
  }
  bool end_object() {
    names_.pop_back();
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) {
    open(Json::array());
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool key(std::string& name) {
    if (!names_.back().insert(name).second) throw Error("key \"" + name + "\" stands twice in one object");
    if (names_.back().size() > limits_.max_members) {
      throw Error("has an object of more than " + std::to_string(limits_.max_members) + " members");
    }
    auto& object = open_.back()->get_ref<Json::object_t&>();
    object.emplace_back(name, Json());
    place_ = &object.back().second;
    return true;
  }
  template <typename Exception>
  bool parse_error(size_t byte, const std::string& token, const Exception& exception) {
    stopped_at_ = byte;
    stopped_by_ = token;
    throw exception;
  }

  // Where and by what the parser was stopped, which not all of its exceptions carry.
  size_t stopped_at() const { return stopped_at_; }
  const std::string& stopped_by() const { return stopped_by_; }

 private:
  void count_allocated() {
    if (++allocated_ <= limits_.max_allocated_values) return;
    throw Error("has more than " + std::to_string(limits_.max_allocated_values) +
                " strings, lists and objects");
  }
  Json* put(Json value) {
    if (++values_ > limits_.max_values)
      throw Error("has more than " + std::to_string(limits_.max_values) + " values");
    if (open_.empty()) {
      result_ = std::move(value);
      return &result_;
    }
    if (!open_.back()->is_array()) {
      *place_ = std::move(value);
      return place_;
    }
    auto& array = open_.back()->get_ref<Json::array_t&>();
    array.push_back(std::move(value));
    return &array.back();
  }
  void open(Json container) {
    if (open_.size() == limits_.max_depth) {
      throw Error("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    count_allocated();
    open_.push_back(put(std::move(container)));
  }

  Json& result_;
  JsonLimits limits_;
  std::vector<Json*> open_;                   // arrays and objects around the next value
  std::vector<std::set<std::string>> names_;  // of the objects among them
  Json* place_ = nullptr;                     // of the value after a key
  size_t values_ = 0;
  size_t allocated_ = 0;
  size_t stopped_at_ = 0;
  std::string stopped_by_;
};

std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

// The parser quotes what it read last, which may be any bytes; an error must be printable and valid UTF-8.
std::string printable(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
  }
  return result;
}

constexpr const char* kMarkHint = "save the text as UTF-8 without a byte order mark";

// The library would skip a mark of UTF-8, and complain about the bytes of the others.
void refuse_byte_order_mark(std::string_view text, const std::string& source) {
  if (text.starts_with(kByteOrderMark)) throw Error("begins with a byte order mark", source, kMarkHint);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw Error("is UTF-16 text; JSON is UTF-8", source, kMarkHint);
  }
}

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::binary:
      return "an integer beyond 64 bits";
    default:
      return "a number";
  }
}

std::string child(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw Error(
        "is " + std::to_string(text.size()) + " bytes long; the limit is " + std::to_string(limits.max_bytes),
        source);
  }
  refuse_byte_order_mark(text, source);
  // The library takes a NUL for the end of the text and would accept anything after it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error("is not valid JSON at " + line_and_column(text, nul + 1) + ": a NUL character", source);
  }
  Json root;
  StrictBuilder builder(root, limits);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::parse_error& error) {
    if (error.byte > 0 && text.substr(std::min(error.byte - 1, text.size())).starts_with(kByteOrderMark)) {
      throw Error("is not valid JSON at " + line_and_column(text, error.byte) + ": a byte order mark", source,
                  kMarkHint);
    }
    std::string message = error.what();
    const size_t cut = message.find("parse error");
    if (cut != std::string::npos) message = message.substr(cut);
    // The library's own place, counted otherwise, would stand beside ours.
    if (const size_t place = message.find(": ");
        message.starts_with("parse error") && place != std::string::npos)
      message = message.substr(place + 2);
    throw Error("is not valid JSON at " + line_and_column(text, error.byte) + ": " + printable(message),
                source);
  } catch (const Json::out_of_range&) {
    constexpr size_t kLongest = 40;
    const std::string number = printable(builder.stopped_by());
    throw JsonRangeError("has a number that no double holds at " +
                             line_and_column(text, builder.stopped_at()) + ": " + number.substr(0, kLongest) +
                             (number.size() > kLongest ? "..." : ""),
                         source);
  } catch (const Error& error) {
    throw Error(error.what(), source);
  }
  return root;
}

bool is_huge_integer(const Json& value) {
  return value.is_binary();
}

std::string huge_integer_digits(const Json& value) {
  const Json::binary_t& digits = value.get_binary();
  return {digits.begin(), digits.end()};
}

bool has_huge_integer(const Json& value) {
  return is_huge_integer(value) ||
         (value.is_structured() && std::any_of(value.begin(), value.end(), has_huge_integer));
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestTypo = 200;
  if (word.size() > kLongestTypo) return {};
  std::optional<std::string> best;
  // A transposition costs two edits; a wholly different short word must not be suggested.
  size_t best_distance = std::min(std::max<size_t>(2, word.size() / 3) + 1, word.size());
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substitute = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

void JsonReader::fault(std::string what, std::string hint) const {
  faults_->push_back({path_, std::move(what), std::move(hint)});
}

bool JsonReader::expect(bool matches, const char* kind) const {
  if (value_ == nullptr) {
    fault("is missing");
    return false;
  }
  if (!matches) fault(std::string("must be ") + kind + ", not " + kind_of(*value_));
  return matches;
}

JsonReader JsonReader::field(std::string_view key) const {
  if (value_ != nullptr && value_->is_object()) {
    const auto found = value_->find(std::string(key));
    if (found != value_->end()) return {*found, child(path_, key), *faults_};
  }
  return {child(path_, key), *faults_};
}

JsonReader JsonReader::item(size_t index) const {
  const std::string path = path_ + "[" + std::to_string(index) + "]";
  if (value_ != nullptr && value_->is_array() && index < value_->size())
    return {(*value_)[index], path, *faults_};
  return {path, *faults_};
}

std::vector<JsonReader> JsonReader::items() const {
  std::vector<JsonReader> result;
  if (!expect(value_ != nullptr && value_->is_array(), "an array")) return result;
  for (size_t i = 0; i < value_->size(); ++i) result.push_back(item(i));
  return result;
}

std::vector<std::pair<std::string, JsonReader>> JsonReader::members() const {
  std::vector<std::pair<std::string, JsonReader>> result;
  if (!expect(value_ != nullptr && value_->is_object(), "an object")) return result;
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    result.emplace_back(it.key(), JsonReader(it.value(), child(path_, it.key()), *faults_));
  }
  return result;
}

std::string JsonReader::string(std::string fallback) const {
  return expect(value_ != nullptr && value_->is_string(), "a string") ? value_->get<std::string>()
                                                                      : std::move(fallback);
}

int64_t JsonReader::integer(int64_t low, int64_t high, int64_t fallback) const {
  if (!expect(value_ != nullptr && value_->is_number_integer(), "an integer")) return fallback;
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t result = too_large ? std::numeric_limits<int64_t>::max() : value_->get<int64_t>();
  if (!too_large && result >= low && result <= high) return result;
  std::string bounds = "between " + std::to_string(low) + " and " + std::to_string(high);
  if (high == std::numeric_limits<int64_t>::max()) {
    bounds = too_large ? "at most " + std::to_string(high) : "at least " + std::to_string(low);
  }
  fault("is " + value_->dump() + "; it must be " + bounds);
  return fallback;
}

double JsonReader::number(double low, double high, double fallback) const {
  if (!expect(value_ != nullptr && value_->is_number(), "a number")) return fallback;
  const double result = value_->get<double>();
  if (!std::isfinite(result) || result < low || result > high) {
    fault("is " + value_->dump() + "; it must be between " + Json(low).dump() + " and " + Json(high).dump());
    return fallback;
  }
  return result;
}

bool JsonReader::boolean(bool fallback) const {
  return expect(value_ != nullptr && value_->is_boolean(), "true or false") ? value_->get<bool>() : fallback;
}

std::optional<std::string> JsonReader::optional_string() const {
  return present() ? std::optional(string()) : std::nullopt;
}
std::optional<int64_t> JsonReader::optional_integer(int64_t low, int64_t high) const {
  return present() ? std::optional(integer(low, high)) : std::nullopt;
}
std::optional<double> JsonReader::optional_number(double low, double high) const {
  return present() ? std::optional(number(low, high)) : std::nullopt;
}
std::optional<bool> JsonReader::optional_boolean() const {
  return present() ? std::optional(boolean()) : std::nullopt;
}

void JsonReader::reject_unknown(const std::vector<std::string>& known) const {
  if (value_ == nullptr || !value_->is_object()) return;
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    if (std::find(known.begin(), known.end(), it.key()) != known.end()) continue;
    const auto guess = faults_->full() ? std::nullopt : nearest(it.key(), known);  // costs more than counting
    faults_->push_back({child(path_, it.key()), "is not a known key",
                        guess ? "did you mean \"" + *guess + "\"?" : std::string()});
  }
}

}  // namespace spark
