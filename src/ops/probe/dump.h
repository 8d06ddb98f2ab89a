// A node's answer to the probe script, taken apart but not yet understood.
//
//   Faults faults;
//   ProbeDump dump = parse_dump(answer, faults);             // never throws; each fault names its section
//   if (const std::string* text = dump.file("/proc/cmdline")) ...
//   const CommandAnswer* gpu = dump.command("gpu");          // null: the question was not asked
//
// The answer comes from another machine: it may be cut off, have text of a login script in front, repeat
// itself, hold anything but UTF-8. What is not understood is a fault; what is understood is kept.
//
// Form, line by line: "spark-probe 1", then sections: "@NAME", lines that start with "|" of which the last is
// the exit status and the one before an added empty line, then lines of standard error that start with "!".
// "#end" closes the answer. In the sections "files", "files-root", "gids" and "modprobe" every line is
// "path:line of that file".
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"

namespace spark::ops {

inline constexpr size_t kMaxDumpBytes = size_t{8} << 20;
inline constexpr int kCommandTimedOut = 124;
inline constexpr int kCommandMissing = 127;

struct CommandAnswer {
  int status = 0;
  std::string output;  // without the last line end
  std::string error;   // first lines of standard error

  bool ok() const { return status == 0; }
  // Why there is no answer: "is not installed", "took longer than its limit", "failed: ...".
  std::string failure() const;
};

struct ProbeDump {
  std::map<std::string, std::string> files;  // absolute path -> content without the last line end
  std::map<std::string, CommandAnswer> commands;
  bool complete = false;  // "#end" was there

  const std::string* file(const std::string& path) const;
  const CommandAnswer* command(const std::string& name) const;
};

ProbeDump parse_dump(std::string_view answer, Faults& faults);

// The same in the form that parse_dump reads; files are put into the section "files".
std::string format_dump(const ProbeDump& dump);

// Writes the dump as a tree that `spark probe --root DIR` reads: files at their places, command outputs in
// DIR/.commands. DIR must not exist or be empty. Paths that would leave DIR are refused (Error).
void record_dump(const ProbeDump& dump, const std::string& folder);

}  // namespace spark::ops
