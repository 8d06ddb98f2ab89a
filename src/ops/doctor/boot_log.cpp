#include "ops/doctor/boot_log.h"

#include <algorithm>
#include <set>

#include "common/printable.h"

namespace spark::ops {
namespace {

constexpr size_t kShownLines = 5;
constexpr size_t kShownColumns = 300;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::string lower_text(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// A phrase with nothing that belongs to a word on either side: "disabled" is not in "undisabled".
bool has_phrase(const std::string& line, const std::string& phrase) {
  for (size_t at = line.find(phrase); at != std::string::npos; at = line.find(phrase, at + 1)) {
    const size_t end = at + phrase.size();
    const bool begins = at == 0 || !is_word_character(line[at - 1]) || !is_word_character(phrase.front());
    const bool ends =
        end == line.size() || !is_word_character(line[end]) || !is_word_character(phrase.back());
    if (begins && ends) return true;
  }
  return false;
}

bool matches(const BootLogPattern& pattern, const std::string& line) {
  const bool found = std::any_of(pattern.any.begin(), pattern.any.end(),
                                 [&](const std::string& phrase) { return has_phrase(line, phrase); });
  return found &&
         std::none_of(pattern.allowed.begin(), pattern.allowed.end(),
                      [&](const std::string& phrase) { return line.find(phrase) != std::string::npos; });
}

std::vector<std::string> read_phrases(const JsonReader& reader) {
  std::vector<std::string> phrases;
  for (const JsonReader& item : reader.items()) {
    phrases.push_back(lower_text(item.string()));
    if (phrases.back().empty()) item.fault("is empty: it would match every line"), phrases.pop_back();
  }
  return phrases;
}

}  // namespace

BootLogPolicy read_boot_log_policy(const Json& document, Faults& faults) {
  BootLogPolicy policy;
  const JsonReader root(document, "", faults);
  root.reject_unknown({"schema_version", "description", "patterns"});
  root.field("schema_version").integer(1, 1);
  std::set<std::string> ids;
  for (const JsonReader& item : root.field("patterns").items()) {
    item.reject_unknown({"id", "any", "severity", "because", "fix", "allowed"});
    BootLogPattern pattern;
    pattern.id = item.field("id").string();
    if (pattern.id.empty() || !ids.insert(pattern.id).second)
      item.field("id").fault("must be there, and once only");
    pattern.any = read_phrases(item.field("any"));
    const std::string severity = item.field("severity").optional_string().value_or("error");
    if (severity != "error" && severity != "warning")
      item.field("severity").fault("is \"" + severity + "\"; it must be \"error\" or \"warning\"");
    pattern.severity = severity == "warning" ? Severity::kWarning : Severity::kError;
    pattern.because = item.field("because").string();
    pattern.fix = item.field("fix").string();
    if (item.field("allowed").present()) pattern.allowed = read_phrases(item.field("allowed"));
    policy.patterns.push_back(std::move(pattern));
  }
  return policy;
}

namespace {

// A log may hold anything, and the cut may part a character: what is shown is text, in JSON and on a
// terminal.
std::string shown(std::string_view line) {
  return one_line(line.substr(0, kShownColumns));
}

}  // namespace

Findings judge_boot_log(const BootLogPolicy& policy, std::string_view log, const std::string& file) {
  struct Match {
    size_t first = 0, count = 0;
    std::vector<std::string> lines;
  };
  std::vector<Match> found(policy.patterns.size());
  for (size_t number = 1; !log.empty(); ++number) {
    const std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(line.size() + 1, log.size()));
    const std::string low = lower_text(line);
    for (size_t i = 0; i < policy.patterns.size(); ++i) {
      if (!matches(policy.patterns[i], low)) continue;
      Match& match = found[i];
      if (match.count++ == 0) match.first = number;
      if (match.lines.size() < kShownLines)
        match.lines.push_back(std::to_string(number) + ": " + shown(line));
    }
  }
  Findings findings;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].count == 0) continue;
    const BootLogPattern& pattern = policy.patterns[i];
    findings.push_back(
        {"boot-log." + pattern.id, pattern.severity, file, "line " + std::to_string(found[i].first),
         std::to_string(found[i].count) + (found[i].count == 1 ? " line: " : " lines: ") + pattern.because,
         "no such line", pattern.fix, found[i].lines});
  }
  warnings_first(findings);
  return findings;
}

}  // namespace spark::ops
