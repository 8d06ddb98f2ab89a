// Live rules about Docker, the service's container or unit, its image and its ports (specification 3.2.5).
#include <algorithm>

#include "common/url_secrets.h"
#include "ops/doctor/live_context.h"
#include "ops/site/api_key.h"
#include "ops/site/node_environment.h"
#include "ops/site/text_forms.h"

namespace spark::ops::live {
namespace {

constexpr const char* kQualifiedNccl = "2.30.7";

// The words that differ, as a person reads a diff: "- removed" and "+ added", in order.
std::vector<std::string> word_diff(const std::vector<std::string>& expected,
                                   const std::vector<std::string>& seen) {
  const size_t n = expected.size(), m = seen.size();
  std::vector<std::vector<size_t>> common(n + 1, std::vector<size_t>(m + 1, 0));
  for (size_t i = n; i-- > 0;) {
    for (size_t j = m; j-- > 0;) {
      common[i][j] =
          expected[i] == seen[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::vector<std::string> lines;
  size_t i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && expected[i] == seen[j]) {
      ++i, ++j;
    } else if (j == m || (i < n && common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back("- " + shell_quote(without_url_secrets(expected[i++])));
    } else {
      lines.push_back("+ " + shell_quote(without_url_secrets(seen[j++])));
    }
  }
  return lines;
}

std::vector<std::string> expected_command(const LiveContext& context, const LiveNode& node) {
  std::vector<std::string> words = context.profile.serve_args;
  const std::vector<std::string> rank = rank_arguments(context.profile, node.node);
  words.insert(words.end(), rank.begin(), rank.end());
  return words;
}

const ContainerFacts* container_of(const LiveNode& node) {
  return node.facts.docker.container ? &*node.facts.docker.container : nullptr;
}

constexpr const char* kRestart = "spark cluster start --replace --apply starts it from the profile";
constexpr size_t kMaxCommandWords = 4000;

}  // namespace

void docker_engine(LiveContext& context, const LiveNode& node) {
  if (node.facts.docker.answers) return;
  const std::string why = node.facts.why("docker-info");
  const bool permission = why.find("permission denied") != std::string::npos;
  context.error(node.name(), "Docker does not answer: docker info " + why,
                "a running engine that the login may use",
                permission ? "sudo usermod -aG docker " + node.facts.identity.user + ", then log in again"
                           : "sudo systemctl enable --now docker; journalctl -u docker");
}

void docker_storage(LiveContext& context, const LiveNode& node) {
  const DockerFacts& docker = node.facts.docker;
  if (!docker.answers) return;
  if (docker.storage_driver != "overlay2" && docker.storage_driver != "overlayfs") {
    context.warn(
        node.name(), "Docker's storage driver is " + docker.storage_driver,
        "overlay2 (or overlayfs of containerd)",
        "set \"storage-driver\": \"overlay2\" in /etc/docker/daemon.json; images have to be loaded again");
  }
  for (const DiskFacts& disk : node.facts.disks) {
    if (disk.filesystem == "tmpfs" && docker.root_folder.rfind(disk.mounted_on + "/", 0) == 0 &&
        disk.mounted_on != "/")
      context.error(node.name(), "Docker keeps its data in " + docker.root_folder + ", which is memory",
                    "a folder on the disk", "set \"data-root\" in /etc/docker/daemon.json");
  }
}

void docker_runtime(LiveContext& context, const LiveNode& node) {
  const DockerFacts& docker = node.facts.docker;
  if (!docker.answers || docker.runtimes.contains("nvidia")) return;
  // With CDI the engine needs no runtime of this name; --gpus still does.
  context.error(node.name(), "Docker has no NVIDIA runtime", "runtime nvidia: --gpus=all needs it",
                "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker");
}

void service_container(LiveContext& context, const LiveNode& node) {
  if (context.options.expect_stopped || !node.facts.docker.answers) return;
  const auto& exists = node.facts.docker.container_exists;
  if (!exists) return context.unknown(node, "the container " + context.profile.container.name, "container");
  if (*exists) return;
  context.error(node.name(), "there is no container " + context.profile.container.name,
                "the profile's service",
                "spark cluster start --apply; before the first start: doctor --live --expect-stopped");
}

void service_running(LiveContext& context, const LiveNode& node) {
  if (context.options.expect_stopped) return;
  if (context.as_process()) {
    const auto& process = node.facts.service.process;
    if (!process) return context.unknown(node, "the service's state", "service-process");
    if (process->running) return;
    context.error(node.name(),
                  "the rank's process " + (process->recorded ? std::to_string(process->pid) + " has ended"
                                                             : std::string("is not there")),
                  "a running process",
                  process->recorded ? "spark cluster logs; then spark cluster start --replace --apply"
                                    : "spark cluster start --apply");
    return;
  }
  if (!context.in_container()) {
    if (!node.facts.host.units) return context.unknown(node, "the service's state", "units");
    if (context.serving(node)) return;
    const Unit* unit = node.unit(context.profile.service_name() + ".service");
    const bool exists = unit != nullptr && unit->exists();
    context.error(node.name(),
                  context.profile.service_name() + ".service is " + (exists ? unit->active : "not installed"),
                  "active", exists ? "spark cluster start --replace --apply" : "spark cluster start --apply");
    return;
  }
  const ContainerFacts* container = container_of(node);
  if (container == nullptr || container->running) return;
  context.error(node.name(),
                "the container " + context.profile.container.name + " is stopped (exit code " +
                    std::to_string(container->exit_code) +
                    (container->oom_killed ? ", killed for memory)" : ")"),
                "running",
                "docker logs --tail 50 " + context.profile.container.name + " on " + node.name() +
                    "; then spark cluster start --replace --apply");
}

void service_image(LiveContext& context, const LiveNode& node) {
  const DockerFacts& docker = node.facts.docker;
  if (const ContainerFacts* container = container_of(node)) {
    if (container->image != context.profile.container.image)
      context.error(node.name(), "the container runs the image " + container->image,
                    context.profile.container.image, kRestart);
    else if (docker.image && !container->image_id.empty() && container->image_id != docker.image->id)
      context.error(
          node.name(),
          "the container runs the image " + container->image_id + ", the tag now names " + docker.image->id,
          "the image that the tag names", kRestart);
  }
  if (docker.answers && docker.image_exists == false) {
    context.error(node.name(), "the image " + context.profile.container.image + " does not exist",
                  "the profile's image",
                  "docker save " + context.profile.container.image + " | ssh " + node.node.ssh_target() +
                      " docker load");
  }
}

void service_command(LiveContext& context, const LiveNode& node) {
  const ContainerFacts* container = container_of(node);
  if (container == nullptr) return;
  const std::vector<std::string> expected = expected_command(context, node);
  if (container->command == expected) return;
  std::vector<std::string> diff;
  if (container->command.size() <= kMaxCommandWords) diff = word_diff(expected, container->command);
  context.error(
      node.name(),
      "the container's command is not the profile's (" + std::to_string(diff.size()) + " words differ)",
      "the command that `spark render " + node.name() + "` prints", kRestart, diff);
}

void service_environment(LiveContext& context, const LiveNode& node) {
  const ContainerFacts* container = container_of(node);
  if (container == nullptr) return;
  const auto expected = node_environment(context.profile, context.site.nodes, node.node);
  const auto& image = node.facts.docker.container_image;
  std::vector<std::string> wrong;
  for (const auto& [name, variable] : expected) {
    const auto found = container->environment.find(name);
    if (found == container->environment.end())
      wrong.push_back(name + " is missing; expected " + without_url_secrets(variable.value));
    else if (found->second != variable.value && found->second != "<redacted>")
      wrong.push_back(name + " is " + without_url_secrets(found->second) + "; expected " +
                      without_url_secrets(variable.value));
  }
  const bool secrets = !context.profile.secret_environment_file.empty();
  for (const auto& [name, value] : container->environment) {
    if (expected.contains(name)) continue;
    const bool known = image && image->environment.contains(name);
    if (known && image->environment.at(name) == value) continue;
    if (known)
      wrong.push_back(name + " differs from the image's own value");
    else if (image && !(secrets && value == "<redacted>"))
      wrong.push_back(name + " is set, but neither by profile nor image");
  }
  if (!image) context.unknown(node, "the environment of the container's image", "container-image");
  if (wrong.empty()) return;
  context.error(node.name(),
                std::to_string(wrong.size()) + " variables of the container are not the profile's",
                "the profile's environment", kRestart, wrong);
}

void service_mounts(LiveContext& context, const LiveNode& node) {
  const ContainerFacts* container = container_of(node);
  if (container == nullptr) return;
  std::vector<std::string> wrong;
  std::set<std::string> expected;
  for (const Mount& mount : context.profile.container.mounts) {
    expected.insert(mount.destination);
    const auto found = container->binds.find(mount.destination);
    if (found == container->binds.end()) {
      wrong.push_back(mount.destination + " is not mounted");
    } else if (found->second.first != mount.source || found->second.second != mount.mode) {
      wrong.push_back(mount.destination + " is " + found->second.first + " (" + found->second.second +
                      "); expected " + mount.source + " (" + mount.mode + ")");
    }
  }
  for (const auto& [destination, bind] : container->binds) {
    if (!expected.contains(destination))
      wrong.push_back(destination + " is mounted from " + bind.first + ", but not by the profile");
  }
  if (wrong.empty()) return;
  context.error(node.name(), std::to_string(wrong.size()) + " mounts of the container are not the profile's",
                "the profile's mounts", kRestart, wrong);
}

void service_limits(LiveContext& context, const LiveNode& node) {
  const ContainerFacts* container = container_of(node);
  if (container == nullptr) return;
  std::vector<std::string> wrong;
  if (container->network_mode != "host")
    wrong.push_back("network mode is " + container->network_mode + "; expected host");
  if (container->ipc_mode != "host")
    wrong.push_back("IPC mode is " + container->ipc_mode + "; expected host");
  if (container->restart_policy != "no" && !container->restart_policy.empty())
    wrong.push_back("restart policy is " + container->restart_policy +
                    ": it would start again without a guard");
  for (const std::string& word : context.profile.container.docker_run_args) {
    if (word.rfind("--memory=", 0) != 0) continue;
    const auto bytes = docker_size(word.substr(9));
    if (bytes && container->memory_bytes != *bytes)
      wrong.push_back("memory limit is " + std::to_string(container->memory_bytes) + " bytes; expected " +
                      word.substr(9));
  }
  if (wrong.empty()) return;
  context.error(node.name(), "the container was started with other options", "the profile's options",
                kRestart, wrong);
}

void service_labels(LiveContext& context, const LiveNode& node) {
  const DockerFacts& docker = node.facts.docker;
  if (!docker.answers || docker.image_exists == false) return;
  if (!docker.image) return context.unknown(node, "the labels of the profile's image", "image");
  std::vector<std::string> wrong;
  for (const auto& [label, value] : context.profile.container.expected_labels) {
    const auto found = docker.image->labels.find(label);
    if (found != docker.image->labels.end() && found->second == value) continue;
    wrong.push_back(label + " is " + (found == docker.image->labels.end() ? "absent" : found->second) +
                    "; expected " + value);
  }
  if (wrong.empty()) return;
  context.error(
      node.name(), "labels of " + context.profile.container.image + " are not the profile's",
      "the image that was promoted",
      "copy the promoted image to the node: docker save ... | ssh " + node.node.ssh_target() + " docker load",
      wrong);
}

void service_image_id(LiveContext& context) {
  std::map<std::string, std::string> nodes_by_id;
  for (const LiveNode& node : context.nodes()) {
    if (!node.facts.docker.image) continue;
    std::string& nodes = nodes_by_id[node.facts.docker.image->id];
    nodes += (nodes.empty() ? "" : ", ") + node.name();
  }
  if (nodes_by_id.size() < 2) return;
  std::string evidence = context.profile.container.image + " is not one image: ";
  bool first = true;
  for (const auto& [id, nodes] : nodes_by_id) {
    evidence += (first ? "" : "; ") + id.substr(0, 19) + " on " + nodes;
    first = false;
  }
  context.error("all nodes", evidence, "one image ID on all ranks",
                "build once, then docker save ... | ssh NODE docker load");
}

void service_guard(LiveContext& context, const LiveNode& node) {
  if (!context.serving(node) || node.facts.service.guarded()) return;
  const std::string name =
      context.profile.service_name() + "-memguard" + (context.as_process() ? "" : ".service");
  const Unit* guard = node.unit(name);
  // A guard of another build has no status where this one looks; systemd knows it all the same.
  if (guard != nullptr && guard->active == "active") return;
  const auto& status = node.facts.service.guard;
  if (!status && !node.facts.host.units) return context.unknown(node, "the memory guard", "guard");
  std::string state = guard == nullptr || !guard->exists() ? "not there" : guard->active;
  if (status && status->contains("state"))
    state = (node.facts.service.guard_alive ? "" : "gone; its last state was ") + status->at("state");
  context.error(node.name(), "the service runs, but its memory guard " + name + " is " + state,
                "a guard that watches: without it the model can starve the host",
                "stop the service, or arm the guard at once");
}

void service_guard_program(LiveContext& context, const LiveNode& node) {
  const auto& failures = node.facts.failures;
  // Without a checkout there is none either; deployment.commit says that.
  if (!failures.contains("guard-program") || node.facts.deployment.commit.empty()) return;
  const std::string& checkout = context.profile.deployment.path;
  context.error(node.name(),
                "the memory guard cannot run: " + checkout + "/bin/spark-guard " +
                    (node.facts.why("guard-program") == "is not installed" ? "is not built"
                                                                           : node.facts.why("guard-program")),
                "a guard: no service is started without one",
                "on the node: " + shell_quote(checkout + "/script/build") + " release spark-guard");
}

void service_ports(LiveContext& context, const LiveNode& node) {
  if (!node.node.head || context.serving(node)) return;
  const auto& listeners = node.facts.network.listeners;
  if (!listeners) return context.unknown(node, "the ports in use", "listeners");
  const std::pair<std::string, int64_t> ports[] = {{"rendezvous", context.profile.distributed.master_port},
                                                   {"API", context.site.engine.port.value_or(0)}};
  for (const auto& [what, port] : ports) {
    for (const Listener& listener : *listeners) {
      if (listener.port != port || port == 0) continue;
      context.error(node.name(),
                    "nothing serves, but the " + what + " port " + std::to_string(port) + " is held by " +
                        (listener.process.empty() ? "another process" : listener.process),
                    "a free port", "sudo ss -ltnp 'sport = :" + std::to_string(port) + "'");
      break;
    }
  }
}

void service_mount_sources(LiveContext& context, const LiveNode& node) {
  const auto& known = node.facts.deployment.mounts;
  const auto check = [&](const std::string& source, bool writable) {
    const auto found = known.find(source);
    if (found == known.end()) return;
    if (found->second == "-") {
      context.error(node.name(), source + " does not exist", "a folder that can be mounted",
                    writable ? "mkdir -p " + shell_quote(source)
                             : "see docs/first-site.md: the model is downloaded on every node");
    } else if (writable ? found->second.find('w') == std::string::npos
                        : found->second.find('r') == std::string::npos) {
      context.error(
          node.name(),
          source + " is not " + (writable ? "writable" : "readable") + " for " + node.facts.identity.user,
          writable ? "writable" : "readable", "correct owner and mode of " + source);
    }
  };
  for (const Mount& mount : context.profile.container.mounts) check(mount.source, mount.mode == "rw");
  if (context.in_container()) return;
  const std::string& program = context.profile.native.program;
  const auto found = known.find(program);
  if (found == known.end() || found->second.find('r') != std::string::npos) return;
  context.error(node.name(), program + " does not exist", "the engine's program",
                "script/build on the node, or copy the program there");
}

void service_secrets(LiveContext& context, const LiveNode& node) {
  const auto& known = node.facts.deployment.mounts;
  const std::pair<const char*, std::string> files[] = {
      {"engine.secret_environment_file", context.profile.secret_environment_file},
      {"engine.api_key_file", api_key_file(context.profile)}};
  for (const auto& [setting, file] : files) {
    const auto found = known.find(file);
    if (found == known.end() || found->second.find('r') != std::string::npos) continue;
    const std::string& user = node.facts.identity.user;
    const bool absent = found->second == "-";
    context.error(
        node.name(),
        file + (absent ? " does not exist" : " is not readable for " + user) + ", which " + setting +
            " names",
        "a file that " + user + " can read: the service starts with it, and spark asks the API with it",
        absent ? "put it there, owner " + user + ", mode 0600"
               : "sudo chown " + user + " " + shell_quote(file) + "; chmod 600 " + shell_quote(file));
  }
}

void service_nccl(LiveContext& context, const LiveNode& node) {
  const KernelFacts& kernel = node.facts.kernel;
  std::string version, where;
  if (context.in_container()) {
    const auto& image = node.facts.docker.image;
    if (!image) return;
    const auto found = image->environment.find("NCCL_VERSION");
    if (found == image->environment.end()) return;  // the label of its tree is judged by service.labels
    version = found->second, where = "of the image";
  } else if (kernel.packages) {
    const auto found = kernel.packages->find("libnccl2");
    if (found == kernel.packages->end()) return;
    version = found->second, where = "on the node";
  }
  if (version.empty() || !older_version(version, kQualifiedNccl)) return;
  context.error(
      node.name(), "NCCL " + where + " is " + version,
      std::string(kQualifiedNccl) + " with the AArch64 send-path fence: without it the proxy thread hangs",
      "use an image with NCCL " + std::string(kQualifiedNccl) + " rebuilt for SM121");
}

void service_foreign(LiveContext& context, const LiveNode& node) {
  const std::string& name = context.profile.container.name;
  std::string others;
  for (const auto& container : node.facts.docker.running) {
    if (container.name != name)
      others += (others.empty() ? "" : ", ") + container.name + " (" + container.image + ")";
  }
  if (others.empty()) return;
  context.warn(node.name(), "other containers run: " + others, "only the service: they share its memory",
               "docker stop them, or ask their owner");
}

void deployment_clean(LiveContext& context, const LiveNode& node) {
  const auto& changes = node.facts.deployment.changes;
  if (!changes) return;  // no checkout: deployment.commit says it
  const std::string root = expand_places(context.profile.deployment.path, context.profile.host.home,
                                         context.profile.deployment.path) +
                           "/";
  const auto expected = [&](const std::string& path) {
    const auto& mounts = context.profile.container.mounts;
    return std::any_of(mounts.begin(), mounts.end(), [&](const Mount& mount) {
      return mount.mode == "rw" && (root + path).rfind(mount.source + "/", 0) == 0;
    });
  };
  std::vector<std::string> edited;
  for (const std::string& line : *changes) {
    if (line.size() > 3 && !expected(line.substr(3))) edited.push_back(line);
  }
  if (edited.empty()) return;
  const size_t count = edited.size();
  edited.resize(std::min<size_t>(count, 12));
  context.warn(
      node.name(), "its checkout has " + std::to_string(count) + " files that differ from the commit",
      "a clean checkout, apart from writable mounts: edits on a node are inputs that nobody declared",
      "git -C " + context.profile.deployment.path + " status; commit and sync, or take them back", edited);
}

void deployment_commit(LiveContext& context) {
  std::map<std::string, std::string> nodes_by_commit;
  for (const LiveNode& node : context.nodes()) {
    const DeploymentFacts& deployment = node.facts.deployment;
    if (deployment.commit.empty()) {
      if (!node.facts.failures.contains("checkout")) {
        context.unknown(node, "the checkout's commit", "checkout");
        continue;
      }
      context.error(node.name(), "has no checkout at " + context.profile.deployment.path,
                    "a clean checkout of the deployment repository: without it nothing is started",
                    "on the node: " + clone_command(context.profile.deployment));
      continue;
    }
    std::string& nodes = nodes_by_commit[deployment.commit];
    nodes += (nodes.empty() ? "" : ", ") + node.name();
  }
  const std::string& here = context.options.revision;
  if (nodes_by_commit.size() == 1 && !here.empty() && nodes_by_commit.begin()->first != here)
    context.warn("all nodes",
                 "the checkouts are at " + nodes_by_commit.begin()->first.substr(0, 12) +
                     ", this repository is at " + here.substr(0, 12),
                 "one commit: a start refuses another", "git push, then spark cluster sync --apply");
  if (nodes_by_commit.size() < 2) return;
  std::string evidence = "checkouts differ: ";
  bool first = true;
  for (const auto& [commit, nodes] : nodes_by_commit) {
    evidence += (first ? "" : "; ") + commit.substr(0, 12) + " on " + nodes;
    first = false;
  }
  context.warn("all nodes", evidence, "one commit", "spark cluster sync --apply");
}

}  // namespace spark::ops::live
