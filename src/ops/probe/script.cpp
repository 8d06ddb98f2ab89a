#include "ops/probe/script.h"

#include <algorithm>
#include <random>

#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"
#include "ops/probe/script_text.h"
#include "ops/site/api_key.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

// Packages whose presence or version some rule asks about, beside those of the kernel policy.
constexpr const char* kPackages[] = {"nvidia-spark-grub-kho", "nvidia-drm-options-modeset0", "libnccl2"};

constexpr const char* kUnits[] = {"display-manager.service",
                                  "dgx-fan-control.service",
                                  "nv-cpu-governor.service",
                                  "docker.service",
                                  "nvidia-nvme-interrupt-coalescing.service",
                                  "plymouth-quit-wait.service",
                                  "lldpd.service",
                                  "ssh.service",
                                  "tailscaled.service",
                                  "spark-management-health.timer"};

// What content cannot contain by accident, nor on purpose.
std::string random_mark() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device device;
  std::string mark = "~";
  for (int i = 0; i < 16; ++i) mark += kDigits[device() % 16];
  return mark + "~";
}

std::string assignment(const char* name, const std::string& value) {
  return std::string(name) + "=" + shell_quote(value) + "\n";
}

// A function of the script that runs its arguments with these words behind them; without words it runs
// nothing, unless the question makes sense all the same.
std::string with_words(const char* name, const std::vector<std::string>& words, bool ask_without = false) {
  std::string list;
  for (const std::string& word : words) {
    if (!word.empty()) list += " " + shell_quote(word);
  }
  return std::string(name) + (list.empty() && !ask_without ? "() { :; }\n" : "() { \"$@\"" + list + "; }\n");
}

std::string paths_group(const std::vector<ProbePeer>& peers) {
  std::string routes, pings;
  for (const ProbePeer& peer : peers) {
    if (peer.address.empty() || peer.netdev.empty()) continue;
    routes += "  run " + shell_quote("route-" + peer.device) + " ip -j route get " +
              shell_quote(peer.address) + "\n";
    const std::string ping = "ping_path " + shell_quote(peer.device) + " " + shell_quote(peer.netdev) + " " +
                             shell_quote(peer.address);
    pings += " " + shell_quote(ping);
  }
  if (routes.empty()) return "group_paths() { :; }\n";
  return "group_paths() {\n" + routes + "  chain" + pings + "\n}\n";
}

const Mount* model_mount(const Site& site) {
  for (const Mount& mount : site.profile.container.mounts) {
    if (mount.destination == site.engine.model_path) return &mount;
  }
  return nullptr;
}

std::string without_brace_names(const std::string& path) {
  return path.find('{') == std::string::npos ? path : std::string();
}

void add_peers(const Site& site, const Node& node, ProbeRequest& request) {
  for (const PeerDevices& peer : node.peers) {
    for (size_t stripe = 0; stripe < peer.devices.size(); ++stripe) {
      const std::string& device = peer.devices[stripe];
      std::string subnet;
      for (const DeviceSubnet& entry : node.subnets) {
        if (entry.device == device) subnet = entry.cidr;
      }
      const PortPath* path = path_of_device(device);
      if (subnet.empty() || path == nullptr || site.nodes.with_rank(peer.rank) == nullptr) continue;
      request.peers.push_back({device, path->netdev, node_address(subnet, peer.rank)});
    }
  }
}

}  // namespace

const std::vector<std::string>& idle_units() {
  static const std::vector<std::string> kIdle = {
      "bluetooth.service",   "cups.service",          "cups.socket",
      "cups.path",           "cups-browsed.service",  "snapd.service",
      "snapd.socket",        "snapd.seeded.service",  "snapd.snap-repair.timer",
      "fwupd-refresh.timer", "dgx-dashboard.service", "dgx-dashboard-admin.service"};
  return kIdle;
}

ProbeRequest probe_request(const Site& site, const Node& node) {
  const ClusterProfile& profile = site.profile;
  ProbeRequest request;
  request.service = profile.service_name();
  request.checkout =
      without_brace_names(expand_places(profile.deployment.path, profile.host.home, profile.deployment.path));
  if (!request.checkout.empty()) request.guard_program = request.checkout + "/bin/spark-guard";
  request.runtime = profile.in_container()                 ? "container"
                    : profile.host.supervisor == "systemd" ? "unit"
                                                           : "process";
  if (profile.in_container()) {
    request.container = profile.container.name;
    request.image = profile.container.image;
    if (const Mount* mount = model_mount(site)) request.model_folder = without_brace_names(mount->source);
    for (const Mount& mount : profile.container.mounts) {
      const std::string source = without_brace_names(mount.source);
      if (!source.empty()) request.mount_sources.push_back(source);
    }
  } else {
    request.model_folder = without_brace_names(site.engine.model_path);
    request.mount_sources = {request.model_folder, without_brace_names(profile.native.program)};
  }
  for (const std::string& file : {profile.secret_environment_file, api_key_file(profile)}) {
    if (!file.empty()) request.files.push_back(without_brace_names(file));
  }
  if (site.policy) {
    request.candidate = site.policy->candidate;
    request.fallback = site.policy->fallback;
    request.fan_certificate = site.policy->fan_signing_certificate;
    for (const auto& [package, version] : site.policy->packages) request.packages.push_back(package);
  }
  add_peers(site, node, request);
  return request;
}

std::string probe_script(const ProbeRequest& request) {
  std::vector<std::string> packages = request.packages;
  packages.insert(packages.end(), std::begin(kPackages), std::end(kPackages));
  std::vector<std::string> units(std::begin(kUnits), std::end(kUnits));
  units.insert(units.end(), idle_units().begin(), idle_units().end());
  units.emplace_back("spark3-kernel-memory.service");
  if (!request.service.empty()) {
    units.push_back(request.service + ".service");
    units.push_back(request.service + "-memguard.service");
  }
  std::vector<std::string> paths = request.mount_sources;
  paths.insert(paths.end(), request.files.begin(), request.files.end());
  std::vector<std::string> disks = {"/", "/boot", "/dev/shm", "/var/lib/docker"};
  disks.insert(disks.end(), request.mount_sources.begin(), request.mount_sources.end());
  return assignment("root", request.root) + assignment("service", request.service) +
         assignment("runtime", request.runtime) + assignment("container", request.container) +
         assignment("mark", random_mark()) + assignment("image", request.image) +
         assignment("model_folder", request.model_folder) + assignment("checkout", request.checkout) +
         assignment("guard_program", request.guard_program) + assignment("candidate", request.candidate) +
         assignment("fan_certificate", request.fan_certificate) +
         assignment("limit", std::to_string(request.limit_s)) +
         assignment("fragmentation", request.fragmentation ? "1" : "0") +
         with_words("with_releases", {request.candidate, request.fallback}, true) +
         with_words("with_packages", packages) + with_words("with_units", units) +
         with_words("with_disks", disks) + with_words("with_mounts", paths) +
         with_words("with_policy_files", request.policy_files) + paths_group(request.peers) +
         kProbeScriptBody;
}

}  // namespace spark::ops
