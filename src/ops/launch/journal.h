// The journal of one `spark cluster` run: a file of JSON lines that only grows, every line on the disk before
// what it announces is begun. Whoever reads it after a kill -9 or a power loss knows every step that may have
// had an effect.
//
//   Journal journal = Journal::create(folder, "20261129T220000Z-start-3f2a", header);
//   journal.append({{"event", "begin"}, {"steps", {"arm node2"}}});
//
//   std::vector<Json> records = read_journal(path);      // a torn last line is no record
//
// One lock per service serialises the commands of this machine; the claim on the head (steps.h) does that
// between machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/descriptor.h"
#include "common/json.h"

namespace spark::ops {

class Journal {
 public:
  static Journal create(const std::string& folder, const std::string& run);
  // Goes on with the journal of an interrupted run; a torn last line is cut off.
  static Journal resume(const std::string& path);

  const std::string& path() const { return path_; }
  // Adds the time, writes one line and waits until it is on the disk. Throws Error.
  void append(Json record);

 private:
  Journal(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Descriptor file_;
};

// Whole records, in order. Throws Error when a line other than the last is damaged.
std::vector<Json> read_journal(const std::string& path);

// Paths of the journals of a folder, oldest first.
std::vector<std::string> journals_in(const std::string& folder);

// Held while a command changes the cluster. nullopt: another command of this machine holds it; `holder` then
// says which. The lock goes with the process, however that ends.
std::optional<Descriptor> lock_launch(const std::string& folder, const std::string& me, std::string& holder);

// The command that holds the lock now; "" when none does.
std::string launch_at_work(const std::string& folder);

// Removes the oldest journals of runs that ended, and leaves this many.
void prune_journals(const std::string& folder, size_t keep);

std::string utc_now();  // 2026-11-29T22:00:00Z
// Names a run; sorts by time: 20261129T220000Z-start-3f2a
std::string new_run_name(const std::string& command);

}  // namespace spark::ops
