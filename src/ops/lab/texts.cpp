#include "ops/lab/texts.h"

#include <algorithm>

#include "common/json.h"
#include "ops/lab/node_root.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

// A heredoc whose end cannot stand in a key or configuration.
std::string write_text(const std::string& path, const std::string& content, const std::string& mode) {
  return "cat >" + path + " <<'SPARK_LAB_END'\n" + content + (content.ends_with('\n') ? "" : "\n") +
         "SPARK_LAB_END\nchmod " + mode + " " + path + "\n";
}

// A word of a ProxyCommand: a shell reads it, after ssh has read its percent signs.
std::string proxy_word(const std::string& word) {
  std::string text;
  for (const char c : shell_quote(word)) text += c == '%' ? "%%" : std::string(1, c);
  return text;
}

}  // namespace

std::string link_batch(const LabPlan& plan, pid_t network, const std::vector<pid_t>& nodes) {
  std::string text;
  const auto process = [&nodes](int64_t rank) { return std::to_string(nodes.at(static_cast<size_t>(rank))); };
  const auto mac = [&plan](int64_t rank, const std::string& name) {
    const std::vector<LabInterface>& ports = plan.nodes.at(static_cast<size_t>(rank)).interfaces;
    return std::find_if(ports.begin(), ports.end(), [&name](const auto& port) { return port.name == name; })
        ->mac;
  };
  for (const LabLink& link : plan.links) {
    const std::string mtu = std::to_string(plan.nodes.front().interfaces.front().mtu);
    text += "link add name " + link.interface_a + " address " + mac(link.rank_a, link.interface_a) + " mtu " +
            mtu + " netns " + process(link.rank_a) + " type veth peer name " + link.interface_b +
            " address " + mac(link.rank_b, link.interface_b) + " mtu " + mtu + " netns " +
            process(link.rank_b) + "\n";
  }
  for (const LabNode& node : plan.nodes) {
    text += "link add name " + std::string(kLabManagementInterface) + " netns " + process(node.rank) +
            " type veth peer name " + node.name + " netns " + std::to_string(network) + "\n";
  }
  return text;
}

std::string network_batch(const LabPlan& plan) {
  std::string text = "link set lo up\nlink add name management type bridge forward_delay 0\n";
  for (const LabNode& node : plan.nodes)
    text += "link set " + node.name + " master management\nlink set " + node.name + " up\n";
  return text + "addr add " + kLabOperatorAddress + "/24 dev management\nlink set management up\n";
}

std::string node_batch(const LabNode& node) {
  std::string text = "link set lo up\naddr add " + node.management_ip + "/24 dev " + kLabManagementInterface +
                     "\nlink set " + kLabManagementInterface + " up\n";
  // No IPv6 on the fabric: it would change the order of the GID table.
  for (const LabInterface& interface : node.interfaces) {
    text += "link set " + interface.name + " addrgenmode none\naddr add " + interface.address + " dev " +
            interface.name + "\nlink set " + interface.name + " up\n";
  }
  return text;
}

std::string host_alias(const LabPlan& plan, const std::string& node) {
  return node + "." + plan.id + ".spark-lab";
}

std::string ssh_configuration(const LabPlan& plan) {
  const LabOptions& options = plan.options;
  std::string text = "# Written by `spark lab up`. ssh -F " + plan.path("ssh_config") + " node1\n";
  for (const LabNode& node : plan.nodes) {
    text += "Host " + node.name + "\n  HostName " + host_alias(plan, node.name) + "\n  User " + kLabUser +
            "\n  IdentityFile " + plan.path("keys/" + node.name + "_user") + "\n  ProxyCommand " +
            proxy_word(options.spark_program) + " lab connect --dir " + proxy_word(options.directory) + " " +
            node.name + "\n";
  }
  return text + "Host *\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\n  UserKnownHostsFile " +
         plan.path("known_hosts") + "\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n";
}

std::string known_hosts(const LabPlan& plan, const std::map<std::string, std::string>& public_keys) {
  std::string text;
  for (const auto& [node, key] : public_keys) text += host_alias(plan, node) + " " + key;
  return text;
}

std::string server_configuration() {
  return "Port 22\n"
         "HostKey /etc/ssh/host_key\n"
         "AuthorizedKeysFile /etc/ssh/authorized_keys\n"
         "PermitRootLogin prohibit-password\n"
         "PasswordAuthentication no\n"
         "KbdInteractiveAuthentication no\n"
         "UsePAM no\n"
         "UseDNS no\n"
         "MaxSessions 64\n"
         "PidFile /run/sshd.pid\n"
         "Subsystem sftp internal-sftp\n";
}

std::string start_ssh_script(const NodeKeys& keys) {
  return "set -eu\n" + write_text("/etc/ssh/host_key", keys.host_private, "600") +
         write_text("/etc/ssh/host_key.pub", keys.host_public, "644") +
         write_text("/etc/ssh/authorized_keys", keys.user_public, "600") +
         write_text("/etc/ssh/sshd_config", server_configuration(), "644") +
         // A locked account is refused even with a key.
         "sed -i 's/^root:[^:]*:/root:*:/' /etc/shadow\n"
         "mkdir -p /run/sshd\n"
         "/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log\n";
}

std::string checkout_script(const std::string& deployment) {
  const std::string path = shell_quote(deployment);
  return std::string("set -eu\n[ -d ") + kLabShared +
         "/origin.git ] || exit 0\ncommand -v git >/dev/null || exit 0\n" + "git clone -q file://" +
         kLabShared + "/origin.git " + path + "\ncd " + path +
         "\nmkdir -p bin build/release/apps\n"
         "for p in spark spark-engine spark-guard; do\n"
         "  [ -e " +
         kLabShared +
         "/bin/$p ] || continue\n"
         "  ln -sf " +
         kLabShared +
         "/bin/$p build/release/apps/$p\n"
         "  ln -sf " +
         kLabShared +
         "/bin/$p bin/$p\n"
         "done\n";
}

std::string start_docker_script(const LabPlan& plan, const std::string& node) {
  return "command -v dockerd >/dev/null || { echo 'no dockerd on this machine: install docker.io'; exit 1; "
         "}\n"
         "mkdir -p /run/spark-lab; echo '{}' >/run/spark-lab/docker.json\n"
         // The engine's children would keep this script's output open, and the lock of fault_scripts.h.
         "setsid dockerd --config-file /run/spark-lab/docker.json --data-root /var/lib/docker"
         " --exec-root /run/docker -H unix:///run/docker.sock --pidfile /run/docker.pid --bridge=none"
         " --iptables=false --ip6tables=false --exec-opt native.cgroupdriver=cgroupfs --shutdown-timeout 1"
         " --cgroup-parent /" +
         plan.cgroup() + "/" + node +
         "/docker"
         " >>/var/log/dockerd.log 2>&1 </dev/null 9>&- &\n"
         "d=$!; i=0\n"
         "until v=$(docker -H unix:///run/docker.sock version -f '{{.Server.Version}}' 2>/dev/null); do\n"
         "  i=$((i+1))\n"
         "  if [ $i -gt 300 ] || ! kill -0 $d 2>/dev/null; then\n"
         "    grep -v level=info /var/log/dockerd.log | tail -n 3; exit 1\n"
         "  fi\n"
         "  sleep 0.05\n"
         "done\n"
         "echo \"$v\"\n";
}

std::string load_image_script() {
  return std::string("set -eu\ndocker -H unix:///run/docker.sock load -q -i ") + kLabShared +
         "/image.tar >/dev/null\n";
}

std::string lab_profile(const LabPlan& plan) {
  const bool ring = plan.options.nodes == 4;
  const int64_t gib = int64_t{1} << 30;
  const Json profile = {
      {"schema_version", 1},
      {"extends",
       {"config/base/native.json", ring ? "config/base/shape-tp4.json" : "config/base/shape-tp3.json"}},
      {"description", "The lab: " + std::to_string(plan.options.nodes) + " virtual nodes on one machine"},
      {"nodes_config", "config/nodes.json"},
      {"host", {{"kernel", nullptr}, {"startup_memguard_wait_seconds", 20}}},
      {"engine",
       {{"nodes", plan.options.nodes},
        {"service", "dsv41-lab"},
        {"model_path", std::string(kLabShared) + "/checkpoint"},
        {"memory_max_gib", std::max<int64_t>(1, plan.options.memory_bytes / gib)},
        {"backend", "cpu"},
        {"max_model_len", 4096},
        {"max_num_seqs", 4},
        {"heartbeat_timeout_s", 15},  // where a busy machine's kernel once ran no thread of a node for 5 s
        {"max_num_batched_tokens", 512}}},
      {"container",
       {{"name", "dsv41-lab"},
        {"image", kLabImage},
        {"expected_labels", Json::object()},
        {"docker_run_args", {"--network=host", "--ipc=host"}},
        {"mounts", Json::array({{std::string(kLabShared) + "/checkpoint",
                                 std::string(kLabShared) + "/checkpoint", "ro"}})}}},
      // Nothing speaks RDMA here, and over TCP a node reaches only its neighbours on the fabric's subnets.
      {"environment", {{"UCX_NET_DEVICES", kLabManagementInterface}}},
      {"deployment", {{"ready_timeout_seconds", 120}}}};
  return profile.dump(2) + "\n";
}

std::string lab_process_profile() {
  const Json profile = {{"schema_version", 1},
                        {"extends", kLabProfile},
                        {"description", "The lab without containers: every rank is a process"},
                        {"container", nullptr}};
  return profile.dump(2) + "\n";
}

std::string lab_site_file() {
  const Json site = {{"schema_version", 1},
                     {"description", "The lab's site"},
                     {"host", {{"home", kLabHome}, {"hardware", "generic"}, {"supervisor", "process"}}},
                     {"deployment", {{"repository", std::string("file://") + kLabShared + "/origin.git"}}}};
  return site.dump(2) + "\n";
}

}  // namespace spark::ops
