#include "ops/launch/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <thread>

#include "common/file.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxJournalBytes = size_t{64} << 20;

[[noreturn]] void journal_fault(const std::string& what, const std::string& path) {
  throw Error(what + ": " + std::strerror(errno), path, "a run without a journal could not be taken back");
}

void sync_folder(const std::string& folder) {
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.open() || ::fsync(file.get()) != 0) journal_fault("cannot be synced", folder);
}

// The part of a journal that ends with a line's end.
std::string_view whole_lines(std::string_view text) {
  const size_t end = text.rfind('\n');
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

std::string formatted_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

}  // namespace

std::string utc_now() {
  return formatted_now("%Y-%m-%dT%H:%M:%SZ");
}

std::string new_run_name(const std::string& command) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string name = formatted_now("%Y%m%dT%H%M%SZ") + "-" + command + "-";
  for (int i = 0; i < 4; ++i) name += kDigits[random() % 16];
  return name;
}

Journal Journal::create(const std::string& folder, const std::string& run) {
  fs::create_directories(folder);
  std::string path = folder + "/" + run + ".jsonl";
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!file.open()) journal_fault("cannot be created", path);
  sync_folder(folder);
  return Journal(std::move(path), std::move(file));
}

Journal Journal::resume(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.open()) journal_fault("cannot be opened", path);
  const size_t good = whole_lines(read_file(path, kMaxJournalBytes)).size();
  if (::ftruncate(file.get(), static_cast<off_t>(good)) != 0) journal_fault("cannot be cut", path);
  return Journal(path, std::move(file));
}

void Journal::append(Json record) {
  record["time"] = utc_now();
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(file_.get(), line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) journal_fault("cannot be written", path_);
    done += static_cast<size_t>(count);
  }
  if (::fdatasync(file_.get()) != 0) journal_fault("cannot be synced", path_);
}

std::vector<Json> read_journal(const std::string& path) {
  const std::string text = read_file(path, kMaxJournalBytes);
  std::vector<Json> records;
  std::string_view rest = whole_lines(text);
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    Json record = Json::parse(line, nullptr, false);
    if (record.is_object()) {
      records.push_back(std::move(record));
    } else if (!rest.empty()) {
      throw Error("line " + std::to_string(records.size() + 1) + " is damaged", path,
                  "`spark status` shows what runs; remove the file once the nodes are as they should be");
    }
  }
  return records;
}

std::vector<std::string> journals_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    if (entry.path().extension() == ".jsonl") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void prune_journals(const std::string& folder, size_t keep) {
  std::vector<std::string> paths = journals_in(folder);
  for (size_t i = 0; i + keep < paths.size(); ++i) {
    const std::string text = read_file(paths[i], kMaxJournalBytes);
    const size_t last = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
    const bool ended =
        text.find("\"event\":\"end\"", last == std::string::npos ? 0 : last) != std::string::npos;
    std::error_code kept;
    if (ended) fs::remove(paths[i], kept);
  }
}

std::string launch_at_work(const std::string& folder) {
  const std::string path = folder + "/lock";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open() || ::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return {};
  std::string holder = read_file(path);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder.empty() ? "another command" : holder;
}

std::optional<Descriptor> lock_launch(const std::string& folder, const std::string& me, std::string& holder) {
  fs::create_directories(folder);
  const std::string path = folder + "/lock";
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.open()) throw Error(std::string("cannot be opened: ") + std::strerror(errno), path);
  // `spark status` may be looking at it for a moment.
  int tries = 0;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (++tries < 20) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    holder = read_file(path);
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    return {};
  }
  const std::string text = me + "\n";
  if (::ftruncate(file.get(), 0) != 0 ||
      ::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw Error(std::string("cannot be written: ") + std::strerror(errno), path);
  return file;
}

}  // namespace spark::ops
