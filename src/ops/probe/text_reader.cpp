#include "ops/probe/text_reader.h"

#include <charconv>
#include <cmath>

#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr size_t kMaxFaults = 20;

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string> lines_of(std::string_view text) {
  if (text.empty()) return {};
  return split(text, '\n');
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  size_t begin = 0;
  while ((begin = text.find_first_not_of(kBlanks, begin)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

std::optional<double> decimal(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::string FactReader::text(const std::string& path) const {
  const std::string* content = dump_.file(path);
  return content == nullptr ? std::string() : trimmed(content->substr(0, content->find('\n')));
}

std::optional<int64_t> FactReader::number(const std::string& path) const {
  const std::string value = text(path);
  if (value.empty()) return {};
  const auto parsed = whole_number(value);
  if (!parsed) fault(path, "is \"" + value.substr(0, 60) + "\", not a whole number");
  return parsed;
}

const CommandAnswer* FactReader::answer(const std::string& command) const {
  const CommandAnswer* found = dump_.command(command);
  if (found == nullptr) return nullptr;
  if (found->ok()) return found;
  facts_.failures[command] = found->failure();
  return nullptr;
}

Json FactReader::json(const std::string& command) const {
  const CommandAnswer* found = answer(command);
  if (found == nullptr) return {};
  try {
    return parse_json(found->output, command, {.max_depth = 32, .max_members = 5000});
  } catch (const Error& error) {
    fault(command, std::string("is no JSON: ") + error.what());
    return {};
  }
}

void FactReader::fault(const std::string& where, const std::string& what) const {
  if (faults_.size() < kMaxFaults) faults_.push_back({where, what, {}});
}

}  // namespace spark::ops::probe
