#include "ops/lab/cgroups.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "common/child_process.h"
#include "common/error.h"
#include "common/file.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

// Files of cgroupfs take one write each; no temporary file beside them.
bool write_control(const std::string& path, const std::string& value) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.open() && ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
}

std::string read_or_empty(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return {};
  }
}

bool has_word(const std::string& text, const std::string& word) {
  std::istringstream words(text);
  for (std::string candidate; words >> candidate;) {
    if (candidate == word) return true;
  }
  return false;
}

std::vector<std::string> prefixes(const std::string& group) {
  std::vector<std::string> result;
  for (size_t at = group.find('/'); at != std::string::npos; at = group.find('/', at + 1))
    result.push_back(group.substr(0, at));
  result.push_back(group);
  return result;
}

// Children first; cgroups are removed by rmdir only.
std::vector<fs::path> tree_of(const fs::path& root) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) return folders;
  for (fs::recursive_directory_iterator it(root, ignored), end; it != end; it.increment(ignored)) {
    if (it->is_directory(ignored)) folders.push_back(it->path());
  }
  std::sort(folders.begin(), folders.end(),
            [](const auto& a, const auto& b) { return a.native() > b.native(); });
  folders.push_back(root);
  return folders;
}

void kill_members(const fs::path& group) {
  std::istringstream members(read_or_empty(group / "cgroup.procs"));
  for (pid_t pid; members >> pid;) {
    if (pid > 1) ::kill(pid, SIGKILL);
  }
}

}  // namespace

Cgroups Cgroups::find() {
  Cgroups result;
  std::istringstream mounts(read_file("/proc/self/mounts"));
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string source, target, type, options;
    fields >> source >> target >> type >> options;
    if (type != "cgroup" && type != "cgroup2") continue;
    if (::access(target.c_str(), W_OK) != 0) continue;
    if (type == "cgroup2") {
      if (!result.v2_.empty()) continue;
      result.v2_ = target;
      result.v2_memory_ = has_word(read_or_empty(target + "/cgroup.controllers"), "memory");
      if (result.v2_memory_) result.memory_ = target;
      continue;
    }
    result.hierarchies_.push_back(target);
    std::replace(options.begin(), options.end(), ',', ' ');
    if (has_word(options, "memory")) result.memory_ = target;
  }
  return result;
}

void Cgroups::create(const std::string& group) const {
  for (const std::string& part : prefixes(group)) {
    for (const std::string& root : hierarchies_) ::mkdir((root + "/" + part).c_str(), 0755);
    if (v2_.empty()) continue;
    // Every level must hand its controllers down before the level below can use them.
    const std::string parent =
        v2_ + "/" + part.substr(0, part.rfind('/') == std::string::npos ? 0 : part.rfind('/'));
    for (const char* controller : {"+memory", "+pids", "+cpu", "+cpuset", "+io", "+hugetlb"})
      write_control(parent + "/cgroup.subtree_control", controller);
    if (::mkdir((v2_ + "/" + part).c_str(), 0755) != 0 && errno != EEXIST)
      throw Error(std::string("cannot create the cgroup: ") + std::strerror(errno), v2_ + "/" + part);
  }
}

std::vector<std::string> Cgroups::process_files(const std::string& group) const {
  std::vector<std::string> files;
  std::vector<std::string> roots = hierarchies_;
  if (!v2_.empty()) roots.push_back(v2_);
  for (const std::string& root : roots) {
    const std::string path = root + "/" + group + "/cgroup.procs";
    // A cpuset of v1 takes nobody before its processors are set: the lab leaves that hierarchy alone.
    const std::string cpus = root + "/" + group + "/cpuset.cpus";
    if (root != v2_ && fs::exists(cpus) && read_or_empty(cpus).size() <= 1) continue;
    if (fs::exists(path)) files.push_back(path);
  }
  return files;
}

void Cgroups::enter(const std::string& group, pid_t pid) const {
  for (const std::string& file : process_files(group)) {
    if (!write_control(file, std::to_string(pid)))
      throw Error("cannot enter the cgroup: " + std::string(std::strerror(errno)), file);
  }
}

void Cgroups::limit_memory(const std::string& group, int64_t bytes) const {
  if (!has_memory()) return;
  const std::string file = memory_ + "/" + group + (v2_memory_ ? "/memory.max" : "/memory.limit_in_bytes");
  if (!write_control(file, std::to_string(bytes)))
    throw Error("cannot limit the memory of the node: " + std::string(std::strerror(errno)), file);
}

void Cgroups::prefer(const std::string& group) const {
  // Twenty times the standard value of each version.
  for (const std::string& root : hierarchies_) write_control(root + "/" + group + "/cpu.shares", "20480");
  if (!v2_.empty()) write_control(v2_ + "/" + group + "/cpu.weight", "2000");
}

std::optional<Cgroups::MemoryFiles> Cgroups::memory_files(const std::string& group) const {
  if (!has_memory()) return std::nullopt;
  const std::string folder = memory_ + "/" + group;
  if (v2_memory_) return MemoryFiles{folder + "/memory.current", folder + "/memory.stat", "inactive_file"};
  return MemoryFiles{folder + "/memory.usage_in_bytes", folder + "/memory.stat", "total_inactive_file"};
}

void Cgroups::freeze(const std::string& group, bool frozen_now) const {
  const std::string file = v2_ + "/" + group + "/cgroup.freeze";
  if (!has_v2()) throw Error("freezing a node needs cgroup v2 (also beside v1)", "lab", "");
  if (!write_control(file, frozen_now ? "1" : "0"))
    throw Error("cannot be written: " + std::string(std::strerror(errno)), file);
}

bool Cgroups::frozen(const std::string& group) const {
  return has_v2() && read_or_empty(v2_ + "/" + group + "/cgroup.freeze").starts_with("1");
}

bool Cgroups::kill_and_remove(const std::string& group) const {
  std::vector<std::string> roots = hierarchies_;
  if (!v2_.empty()) {
    roots.push_back(v2_);
    write_control(v2_ + "/" + group + "/cgroup.kill", "1");
    write_control(v2_ + "/" + group + "/cgroup.freeze", "0");
  }
  bool clean = true;
  for (int attempt = 0; attempt < 200; ++attempt) {
    clean = true;
    for (const std::string& root : roots) {
      for (const fs::path& folder : tree_of(root + "/" + group)) {
        if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) continue;
        clean = false;
        kill_members(folder);
      }
    }
    if (clean) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return clean;
}

}  // namespace spark::ops
