#include "ops/probe/dump.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "common/new_folder.h"
#include "common/printable.h"

namespace spark::ops {
namespace {

constexpr std::string_view kFirstLine = "spark-probe 1";
constexpr size_t kMaxSections = 1000;
constexpr size_t kMaxFiles = 20'000;
constexpr size_t kMaxFaults = 20;

bool is_file_section(std::string_view name) {
  return name == "files" || name == "files-root" || name == "gids" || name == "modprobe";
}

bool is_section_name(std::string_view name) {
  return !name.empty() && name.size() <= 80 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

class DumpReader {
 public:
  DumpReader(ProbeDump& dump, Faults& faults) : dump_(dump), faults_(faults) {}

  void read(std::string_view text) {
    if (!find_start(text)) return;
    while (!text.empty() && !dump_.complete) {
      const std::string_view line = next_line(text);
      if (line.empty()) {
        fault(name_.empty() ? "answer" : name_, "has an empty line where a section's line was expected");
      } else if (line[0] == '@') {
        close();
        open(std::string(line.substr(1)));
      } else if (line == "#end") {
        close();
        dump_.complete = true;
      } else if (line[0] == '|' && !name_.empty()) {
        lines_.push_back(line.substr(1));
      } else if (line[0] == '!' && !name_.empty()) {
        error_ += (error_.empty() ? "" : "\n") + std::string(line.substr(1));
      } else {
        fault(name_.empty() ? "answer" : name_,
              "has the line \"" + std::string(line.substr(0, 60)) + "\", which is of no known form");
      }
    }
    if (dump_.complete) return;
    if (!name_.empty()) fault(name_, "is cut off");
    fault("answer", "ends before its last line, so what should follow is unknown");
  }

 private:
  bool find_start(std::string_view& text) {
    while (!text.empty()) {
      if (next_line(text) == kFirstLine) return true;
    }
    fault("answer", "has no line \"" + std::string(kFirstLine) + "\": the script did not run");
    return false;
  }

  void open(std::string name) {
    if (!is_section_name(name)) {
      fault("answer", "has a section with the name \"" + name.substr(0, 60) + "\"");
      name = "unnamed";
    }
    name_ = std::move(name);
    lines_.clear();
    error_.clear();
  }

  void close() {
    if (name_.empty()) return;
    const std::string name = std::move(name_);
    name_.clear();
    if (name == "unnamed") return;
    if (++sections_ > kMaxSections) return fault("answer", "has too many sections");
    // The status stands last, behind one line end that the script adds.
    int status = 0;
    const std::string_view last = lines_.empty() ? std::string_view() : lines_.back();
    const auto [end, code] = std::from_chars(last.data(), last.data() + last.size(), status);
    const bool whole = lines_.size() >= 2 && code == std::errc() && end == last.data() + last.size() &&
                       status >= 0 && status < 256;
    if (!whole) return fault(name, "has no exit status at its end");
    lines_.pop_back();
    while (!lines_.empty() && lines_.back().empty()) lines_.pop_back();
    if (is_file_section(name)) return keep_files(name, status);
    CommandAnswer answer;
    answer.status = status;
    for (size_t i = 0; i < lines_.size(); ++i) answer.output += (i == 0 ? "" : "\n") + std::string(lines_[i]);
    answer.error = error_;
    if (!dump_.commands.emplace(name, std::move(answer)).second) fault(name, "stands twice");
  }

  void keep_files(const std::string& name, int status) {
    if (status == kCommandTimedOut) fault(name, "took longer than its limit; its files are unknown");
    for (const std::string_view line : lines_) {
      const size_t colon = line.find(':');
      if (colon == 0 || colon == std::string_view::npos) {
        fault(name, "has the line \"" + std::string(line.substr(0, 60)) + "\", which names no file");
        continue;
      }
      const std::string path = "/" + std::string(line.substr(0, colon));
      if (dump_.files.size() >= kMaxFiles && !dump_.files.contains(path))
        return fault(name, "has too many files");
      std::string& content = dump_.files[path];
      const bool first = seen_.insert_or_assign(path, true).second;
      content += (first ? "" : "\n") + std::string(line.substr(colon + 1));
    }
  }

  void fault(const std::string& where, const std::string& what) {
    if (faults_.size() < kMaxFaults) faults_.push_back({where, what, {}});
  }

  ProbeDump& dump_;
  Faults& faults_;
  std::string name_;
  std::vector<std::string_view> lines_;
  std::string error_;
  std::map<std::string, bool> seen_;
  size_t sections_ = 0;
};

std::string section_text(const std::string& name, const CommandAnswer& answer) {
  std::string text = "@" + name + "\n";
  std::string_view rest = answer.output;
  while (!rest.empty()) text += "|" + std::string(next_line(rest)) + "\n";
  text += "|\n|" + std::to_string(answer.status) + "\n";
  rest = answer.error;
  while (!rest.empty()) text += "!" + std::string(next_line(rest)) + "\n";
  return text;
}

bool stays_below(const std::string& path) {
  if (path.size() < 2 || path[0] != '/' || path.find('\0') != std::string::npos) return false;
  for (const auto& part : std::filesystem::path(path.substr(1))) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return path.rfind("/.commands", 0) != 0;
}

}  // namespace

std::string CommandAnswer::failure() const {
  if (status == 0) return {};
  if (status == kCommandMissing) return "is not installed";
  if (status == kCommandTimedOut || status == 137) return "took longer than its limit";
  const std::string reason = error.empty() ? "exit status " + std::to_string(status) : error;
  return "failed: " + reason.substr(0, reason.find('\n'));
}

const std::string* ProbeDump::file(const std::string& path) const {
  const auto found = files.find(path);
  return found == files.end() ? nullptr : &found->second;
}

const CommandAnswer* ProbeDump::command(const std::string& name) const {
  const auto found = commands.find(name);
  return found == commands.end() ? nullptr : &found->second;
}

ProbeDump parse_dump(std::string_view answer, Faults& faults) {
  ProbeDump dump;
  if (answer.size() > kMaxDumpBytes) {
    faults.push_back({"answer", "is larger than " + std::to_string(kMaxDumpBytes >> 20) + " MiB", {}});
    return dump;
  }
  const std::string text = clean_text(answer);
  DumpReader(dump, faults).read(text);
  return dump;
}

std::string format_dump(const ProbeDump& dump) {
  std::string text = std::string(kFirstLine) + "\n@files\n";
  for (const auto& [path, content] : dump.files) {
    std::string_view rest = content;
    do text += "|" + path.substr(1) + ":" + std::string(next_line(rest)) + "\n";
    while (!rest.empty());
  }
  text += "|\n|0\n";
  for (const auto& [name, answer] : dump.commands) text += section_text(name, answer);
  return text + (dump.complete ? "#end\n" : "");
}

void record_dump(const ProbeDump& dump, const std::string& folder) {
  Faults faults;
  for (const auto& [path, content] : dump.files) {
    if (!stays_below(path)) faults.push_back({path, "is no path that can be recorded", {}});
  }
  throw_if_any(faults, "the node's answer");
  NewFolder tree(folder);
  for (const auto& [path, content] : dump.files) tree.write(path.substr(1), content + "\n");
  for (const auto& [name, answer] : dump.commands) {
    const std::string place = ".commands/" + name;
    tree.write(place, answer.output + "\n");
    if (answer.status != 0) tree.write(place + ".status", std::to_string(answer.status) + "\n");
    if (!answer.error.empty()) tree.write(place + ".error", answer.error + "\n");
  }
  tree.commit();
}

}  // namespace spark::ops
