#include "ops/lab/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"
#include "ops/fabric/addresses.h"
#include "ops/lab/state.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarker = ".spark-lab";
constexpr const char* kEntries[] = {"keys", "site",       "shared",      "nodes",
                                    "work", "ssh_config", "known_hosts", kLabStateFile};
constexpr double kSettleSeconds = 5;

void run_checked(const std::vector<std::string>& words, const std::string& directory = {}) {
  const ProcessResult result = run_process(words, {.directory = directory, .timeout_s = 60});
  if (result.exit_code != 0) throw Error(words.front() + " failed: " + result.error, directory);
}

void make_key(const std::string& path, const std::string& comment) {
  run_checked({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path});
}

void copy_profiles(const fs::path& from, const fs::path& to) {
  const auto options = fs::copy_options::recursive;
  fs::copy(from / "config", to / "config", options);
  for (const char* folder : {"manifests"}) {
    if (fs::exists(from / folder)) fs::copy(from / folder, to / folder, options);
  }
  if (fs::exists(from / "upstreams.lock.json"))
    fs::copy(from / "upstreams.lock.json", to / "upstreams.lock.json");
  fs::create_directory(to / "docs");
  if (fs::exists(from / "docs/watch-list.md"))
    fs::copy(from / "docs/watch-list.md", to / "docs/watch-list.md");
  // What belongs to the other site stays there.
  std::vector<fs::path> foreign = {to / "config/site.json", to / "config/nodes.json"};
  for (const auto& entry : fs::recursive_directory_iterator(to / "config")) {
    if (entry.path().string().ends_with(".local.json")) foreign.push_back(entry.path());
  }
  for (const fs::path& path : foreign) fs::remove(path);
}

void make_repository(const fs::path& site, const fs::path& origin) {
  run_checked({"git", "-c", "init.defaultBranch=main", "init", "-q", "."}, site);
  run_checked({"git", "add", "-A"}, site);
  run_checked({"git", "-c", "user.name=spark lab", "-c", "user.email=lab@localhost", "-c",
               "commit.gpgsign=false", "commit", "-q", "-m", "The lab's site"},
              site);
  run_checked({"git", "clone", "-q", "--bare", site, origin});
  run_checked({"git", "remote", "add", "origin", origin}, site);
  run_checked({"git", "fetch", "-q", "origin"}, site);
  // A plain `git push` publishes what is changed in the site.
  run_checked({"git", "branch", "-q", "--set-upstream-to=origin/main", "main"}, site);
}

bool is_file(int fd, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

// A command killed in the middle of a write leaves the unfinished file.
bool is_lab_entry(const std::string& name) {
  return std::any_of(std::begin(kEntries), std::end(kEntries),
                     [&](const char* entry) { return name == entry || is_unfinished_write(name, entry); });
}

// Programs of a killed command (git, ssh-keygen) may write for a moment longer.
void remove_tree(const fs::path& path) {
  std::error_code fault;
  for (const double end = monotonic_s() + kSettleSeconds;;) {
    fs::remove_all(path, fault);
    if (!fault) return;
    const bool moved =
        fault == std::errc::directory_not_empty || fault == std::errc::no_such_file_or_directory;
    if (!moved || monotonic_s() > end) throw Error("cannot be removed: " + fault.message(), path);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

Descriptor lock_lab(const std::string& directory, double timeout_s, LabLock lock) {
  const std::string path = directory + "/" + kMarker;
  for (const double end = monotonic_s() + timeout_s;;) {
    if (lock == LabLock::kClaim) claim_directory(directory);
    Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | (lock == LabLock::kClaim ? O_CREAT : 0), 0600));
    const int cause = errno;
    const bool removed = !file.open() && cause == ENOENT;
    if (removed && lock == LabLock::kExisting) throw no_lab(directory);
    if (!file.open() && !removed) {
      throw Error(std::string("cannot be opened: ") + std::strerror(cause), path,
                  cause == EACCES ? "a lab is root's: sudo spark lab ..." : "");
    }
    // Whoever held the lock may have removed the lab, and somebody made another one.
    if (file.open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && is_file(file.get(), path)) return file;
    if (monotonic_s() > end)
      throw Error("another command is changing this lab", directory, "wait for it to end, then try again");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void mark_lab(int marker, const std::string& id) {
  if (::ftruncate(marker, 0) != 0 ||
      ::pwrite(marker, id.data(), id.size(), 0) != static_cast<ssize_t>(id.size()))
    throw Error(std::string("cannot be written: ") + std::strerror(errno), kMarker);
}

std::string marked_id(const std::string& directory) {
  std::string id;
  try {
    id = read_file(directory + "/" + kMarker, 64);
  } catch (const Error&) {
    return {};
  }
  const bool is_id =
      id.size() == kLabIdDigits && id.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_id ? id : std::string();
}

void claim_directory(const std::string& directory) {
  std::error_code fault;
  fs::create_directories(directory, fault);
  if (fault) throw Error("cannot be created: " + fault.message(), directory);
  const bool foreign = !fs::exists(directory + "/" + kMarker, fault) && !fs::is_empty(directory, fault);
  if (fault == std::errc::no_such_file_or_directory) return;  // another command has just removed it
  if (fault) throw Error("cannot be read: " + fault.message(), directory);
  if (foreign) {
    throw Error("holds files that no lab wrote", directory,
                "name a new or empty directory: what is in a lab's directory is removed with the lab");
  }
  fs::permissions(directory, fs::perms::owner_all, fault);
}

void remove_lab_files(const std::string& directory) {
  std::vector<fs::path> ours;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (is_lab_entry(file.path().filename().string())) ours.push_back(file.path());
  }
  for (const fs::path& path : ours) remove_tree(path);
}

std::vector<NodeKeys> write_keys(const LabPlan& plan) {
  fs::create_directory(plan.path("keys"));
  std::vector<std::thread> makers;
  std::map<std::string, std::string> public_keys;
  for (const LabNode& node : plan.nodes) {
    make_key(plan.path("keys/" + node.name + "_host"), "host key of " + node.name);
    make_key(plan.path("keys/" + node.name + "_user"), "operator at " + node.name);
  }
  std::vector<NodeKeys> keys;
  for (const LabNode& node : plan.nodes) {
    const std::string base = plan.path("keys/" + node.name);
    keys.push_back({read_file(base + "_host"), read_file(base + "_host.pub"), read_file(base + "_user.pub")});
    public_keys[node.name] = keys.back().host_public;
  }
  write_file_atomic(plan.path("known_hosts"), known_hosts(plan, public_keys));
  write_file_atomic(plan.path("ssh_config"), ssh_configuration(plan));
  return keys;
}

bool write_site(const LabPlan& plan) {
  const fs::path from = plan.options.repository;
  if (!fs::exists(from / "config/base/native.json")) return false;
  const fs::path site = plan.path("site");
  fs::create_directory(site);
  copy_profiles(from, site);
  write_file_atomic(site / "config/nodes.json", node_map_text(plan.map));
  write_file_atomic(site / "config/site.json", lab_site_file());
  write_file_atomic(site / kLabProfile, lab_profile(plan));
  write_file_atomic(site / kLabProcessProfile, lab_process_profile());
  write_file_atomic(site / ".gitignore", "/bin/\n/build/\n/results/\n");
  make_repository(site, plan.path("shared/origin.git"));
  return true;
}

void share_programs(const LabPlan& plan) {
  fs::create_directories(plan.path("shared/bin"));
  const LabOptions& options = plan.options;
  for (const std::string& program : {options.spark_program, options.engine_program, options.guard_program}) {
    if (program.empty() || !fs::exists(program)) continue;
    fs::copy_file(program, plan.path("shared/bin/" + fs::path(program).filename().string()));
  }
}

}  // namespace spark::ops
