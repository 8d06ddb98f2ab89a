#include "ops/lab/node_root.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "common/child_process.h"
#include "common/error.h"
#include "common/file.h"
#include "ops/lab/rdma_view.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

void do_mount(const std::string& source, const std::string& target, const char* type, unsigned long flags,
              const std::string& options = {}) {
  if (::mount(source.c_str(), target.c_str(), type, flags, options.c_str()) != 0) {
    throw Error("cannot mount " + source + (type != nullptr ? std::string(" (") + type + ")" : "") + ": " +
                    std::strerror(errno),
                target);
  }
}

void memory_filesystem(const std::string& target, const std::string& options) {
  fs::create_directories(target);
  do_mount("tmpfs", target, "tmpfs", MS_NOSUID, options);
}

void make_device(const std::string& root, const char* name, unsigned major_number, unsigned minor_number) {
  const std::string path = root + "/dev/" + name;
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(major_number, minor_number)) != 0)
    throw Error(std::string("cannot make the device: ") + std::strerror(errno), path);
  ::chmod(path.c_str(), 0666);
}

void build_devices(const std::string& root) {
  do_mount("tmpfs", root + "/dev", "tmpfs", MS_NOSUID, "mode=0755,size=1m");
  make_device(root, "null", 1, 3);
  make_device(root, "zero", 1, 5);
  make_device(root, "full", 1, 7);
  make_device(root, "random", 1, 8);
  make_device(root, "urandom", 1, 9);
  make_device(root, "tty", 5, 0);
  for (const char* folder : {"pts", "shm", "mqueue"}) fs::create_directory(root + "/dev/" + folder);
  do_mount("devpts", root + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
           "newinstance,ptmxmode=0666,mode=0620");
  do_mount("tmpfs", root + "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "");
  do_mount("mqueue", root + "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, "");
  fs::create_symlink("pts/ptmx", root + "/dev/ptmx");
  fs::create_symlink("/proc/self/fd", root + "/dev/fd");
  for (int i = 0; i < 3; ++i) {
    constexpr const char* kNames[] = {"stdin", "stdout", "stderr"};
    fs::create_symlink("/proc/self/fd/" + std::to_string(i), root + "/dev/" + kNames[i]);
  }
}

// The overlay shows this machine's root filesystem only. Where /usr and the like are filesystems of their
// own they are shown as well, read-only.
void show_separate_filesystems(const std::string& root) {
  struct stat top = {};
  ::stat("/", &top);
  for (const char* name : {"usr", "bin", "sbin", "lib", "lib64", "opt"}) {
    struct stat entry = {};
    const std::string path = std::string("/") + name;
    if (::lstat(path.c_str(), &entry) != 0 || !S_ISDIR(entry.st_mode) || entry.st_dev == top.st_dev) continue;
    do_mount(path, root + path, nullptr, MS_BIND | MS_REC);
    do_mount("", root + path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY);
  }
}

// Copy on write over sysfs, so that a folder can be added to it. The interfaces' folder is sysfs itself: an
// overlay keeps handles of what it has shown, and those are stale when an interface gets another's name.
void show_rdma(const LabNode& node, const std::string& store) {
  const std::string net = store + "/class-net";
  for (const char* part : {"/class-upper", "/class-work", "/class-net"}) fs::create_directory(store + part);
  do_mount("/sys/class/net", net, nullptr, MS_BIND);
  do_mount("overlay", "/sys/class", "overlay", 0,
           "lowerdir=/sys/class,upperdir=" + store + "/class-upper,workdir=" + store + "/class-work");
  do_mount(net, "/sys/class/net", nullptr, MS_MOVE);
  fs::remove(net);
  write_rdma_view("/sys/class/infiniband", rdma_view(node, {}));
}

void write_name_files(const LabPlan& plan, const LabNode& node) {
  std::string hosts =
      "127.0.0.1 localhost\n::1 localhost\n" + std::string(kLabOperatorAddress) + " operator\n";
  for (const LabNode& other : plan.nodes) hosts += other.management_ip + " " + other.name + "\n";
  write_file_atomic("/etc/hosts", hosts);
  write_file_atomic("/etc/hostname", node.name + "\n");
  if (::sethostname(node.name.data(), node.name.size()) != 0)
    throw Error(std::string("cannot set the host name: ") + std::strerror(errno), node.name);
}

int64_t counter(const std::string& path) {
  const std::string text = read_file(path);
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t counter_of_field(const std::string& path, const std::string& field) {
  std::istringstream lines(read_file(path));
  int64_t value = 0;
  for (std::string name; lines >> name >> value;) {
    if (name == field) return value;
  }
  return 0;
}

// In place, so that the bind mount over /proc/meminfo keeps showing it; lines have fixed widths, so a reader
// sees whole numbers at any moment.
void overwrite(const std::string& path, const std::string& text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0444));
  if (!file.open() || ::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw Error(std::string("cannot be written: ") + std::strerror(errno), path);
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0)
    throw Error(std::string("cannot be cut: ") + std::strerror(errno), path);
}

std::function<void()> show_memory(const LabPlan& plan, const LabNode& node, const Cgroups& cgroups) {
  const auto files = cgroups.memory_files(plan.cgroup() + "/" + node.name);
  if (!files) return {};
  const std::string machine = read_file("/proc/meminfo");
  const int64_t total = plan.options.memory_bytes;
  const auto refresh = [files, machine, total] {
    const int64_t used = counter(files->usage) - counter_of_field(files->stat, files->inactive_field);
    overwrite("/run/spark-lab/meminfo", node_meminfo(machine, total, used));
  };
  fs::create_directories("/run/spark-lab");
  refresh();
  do_mount("/run/spark-lab/meminfo", "/proc/meminfo", nullptr, MS_BIND);
  return [refresh] {
    try {
      refresh();
    } catch (const Error&) {
      // A full disk or a vanishing cgroup: the last text stays.
    }
  };
}

void change_root(const std::string& root) {
  if (::chdir(root.c_str()) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0)
    throw Error(std::string("cannot change the root: ") + std::strerror(errno), root);
  // The old root now lies over the new one at the same place; taking it off leaves the new one.
  if (::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0)
    throw Error(std::string("cannot leave the old root: ") + std::strerror(errno), root);
}

}  // namespace

std::string node_meminfo(const std::string& machine, int64_t total, int64_t used) {
  used = std::clamp<int64_t>(used, 0, total);
  const auto line = [](const std::string& name, int64_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "%-16s%12lld kB\n", (name + ":").c_str(),
                  static_cast<long long>(bytes / 1024));
    return std::string(text);
  };
  std::istringstream lines(machine);
  std::string result;
  for (std::string text; std::getline(lines, text);) {
    const std::string name = text.substr(0, text.find(':'));
    if (name == "MemTotal")
      result += line(name, total);
    else if (name == "MemFree" || name == "MemAvailable")
      result += line(name, total - used);
    else if (name == "SwapTotal" || name == "SwapFree" || name == "SwapCached")
      result += line(name, 0);
    else
      result += text + "\n";
  }
  return result;
}

std::function<void()> build_node_root(const LabPlan& plan, const LabNode& node, const Cgroups& cgroups) {
  do_mount("", "/", nullptr, MS_REC | MS_PRIVATE);
  const std::string place = plan.path("nodes/" + node.name + "/root");
  memory_filesystem(place, "mode=0755,size=" + std::to_string(plan.options.disk_bytes));
  const std::string root = place + "/root";
  for (const char* part : {"/upper", "/work", "/root", "/docker", "/home"})
    fs::create_directory(place + part);
  do_mount("overlay", root, "overlay", 0,
           "lowerdir=/,upperdir=" + place + "/upper,workdir=" + place + "/work");
  show_separate_filesystems(root);
  do_mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  do_mount("sysfs", root + "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  if (fs::is_directory("/sys/fs/cgroup"))
    do_mount("/sys/fs/cgroup", root + "/sys/fs/cgroup", nullptr, MS_BIND | MS_REC);
  build_devices(root);
  memory_filesystem(root + "/run", "mode=0755");
  memory_filesystem(root + "/tmp", "mode=1777");
  memory_filesystem(root + "/etc/ssh", "mode=0755,size=1m");
  // /root and /home are on the node's disk, so that a full disk is full there too.
  fs::permissions(place + "/home", fs::perms(0700));
  for (const char* folder : {"/root", "/home"}) {
    const std::string inside = place + "/home" + folder;
    fs::create_directory(inside);
    fs::permissions(inside, fs::perms(folder == std::string("/root") ? 0700 : 0755));
    fs::create_directories(root + folder);
    do_mount(inside, root + folder, nullptr, MS_BIND);
  }
  for (const char* folder : {"/var/lib/docker", kLabShared}) fs::create_directories(root + folder);
  do_mount(place + "/docker", root + "/var/lib/docker", nullptr, MS_BIND);
  do_mount(plan.path("shared"), root + kLabShared, nullptr, MS_BIND);
  do_mount("", root + kLabShared, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY);
  // A way to the place of the node's disk for what is mounted after the change of root.
  fs::create_directories(root + "/run/spark-lab/disk");
  do_mount(place, root + "/run/spark-lab/disk", nullptr, MS_BIND);
  change_root(root);
  show_rdma(node, "/run/spark-lab/disk");
  write_name_files(plan, node);
  return show_memory(plan, node, cgroups);
}

}  // namespace spark::ops
