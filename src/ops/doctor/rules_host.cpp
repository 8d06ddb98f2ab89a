// Rules about what surrounds the engine on a node: kernel policy, container options, mounts, cache folders.
#include <algorithm>
#include <array>

#include "ops/doctor/rule.h"
#include "ops/site/settings.h"
#include "ops/site/text_forms.h"

namespace spark::ops::rule {
namespace {

constexpr int64_t kNodeMemoryBytes = 128'000'000'000;

struct RequiredOption {
  const char* name;
  const char* value;  // nullptr: any
  const char* because;
};

constexpr RequiredOption kRequiredOptions[] = {
    {"--network", "host", "the fabric's devices and NCCL's bootstrap are the host's"},
    {"--ipc", "host", "ranks and proxies share memory"},
    {"--gpus", nullptr, "the engine needs the GPU"},
    {"--device", "/dev/infiniband:/dev/infiniband:rwm", "RDMA needs the verbs devices"},
    {"--cap-add", "IPC_LOCK", "RDMA registers memory"},
    {"--ulimit", "memlock=-1:-1", "RDMA registers memory"},
    {"--memory", nullptr, "a cgroup limit keeps the host's management alive"},
    {"--memory-swap", nullptr, "equal to --memory: the container must not swap"},
};

struct ForbiddenOption {
  const char* name;
  const char* because;
};

constexpr ForbiddenOption kForbiddenOptions[] = {
    {"-d", "the launch adds it"},
    {"--detach", "the launch adds it"},
    {"--name", "container.name says it"},
    {"--rm", "a failed container must stay for its logs"},
    {"--restart", "a container that restarts itself runs unguarded"},
    {"-e", "environment says it"},
    {"--env", "environment says it"},
    {"-v", "container.mounts says it"},
    {"--volume", "container.mounts says it"},
};

struct Option {
  std::string name;
  std::string value;
  size_t index;
};

// Docker takes "--name=value" and "--name value"; both are read.
std::vector<Option> read_options(const std::vector<std::string>& words) {
  std::vector<Option> options;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    if (word.rfind("--", 0) == 0 && equals != std::string::npos) {
      options.push_back({word.substr(0, equals), word.substr(equals + 1), i});
    } else if (word.rfind('-', 0) == 0 && i + 1 < words.size() && words[i + 1].rfind('-', 0) != 0) {
      options.push_back({word, words[i + 1], i});
      ++i;
    } else {
      options.push_back({word, {}, i});
    }
  }
  return options;
}

std::string option_path(size_t index) {
  return "container.docker_run_args[" + std::to_string(index) + "]";
}

void check_memory(RuleContext& context, const std::vector<Option>& options) {
  std::string memory, swap;
  size_t at = 0, swap_at = 0;
  for (const Option& option : options) {
    if (option.name == "--memory") memory = option.value, at = option.index;
    if (option.name == "--memory-swap") swap = option.value, swap_at = option.index;
  }
  if (!memory.empty()) {
    const auto bytes = docker_size(memory);
    if (!bytes || *bytes == 0 || *bytes >= kNodeMemoryBytes) {
      context.error(option_path(at), "--memory is " + memory, "a limit below the node's 128 GB",
                    "set --memory=112g and --memory-swap=112g");
      return;
    }
  }
  if (!memory.empty() && !swap.empty() && docker_size(swap) != docker_size(memory)) {
    context.error(option_path(swap_at), "--memory-swap is " + swap + ", --memory is " + memory,
                  "equal values: no swap for the container", "set --memory-swap=" + memory);
  }
}

void check_display_device(RuleContext& context, const std::vector<Option>& options) {
  bool card = false, rule_for_cards = false;
  for (const Option& option : options) {
    if (option.name == "--device" && option.value.rfind("/dev/dri/by-path/", 0) == 0) {
      context.error(option_path(option.index), "--device names a PCI path, which Docker splits at its colons",
                    "--mount=type=bind,source=PATH,target=/dev/dri/card0", "use --mount for this device");
      card = true;
    }
    card |= option.name == "--mount" && option.value.find("/dev/dri/") != std::string::npos;
    rule_for_cards |= option.name == "--device-cgroup-rule" && option.value.rfind("c 226:", 0) == 0;
  }
  if (context.variable("SPARK3_DISPLAY_CARVEOUT_WEIGHTS") != "1") return;
  if (!card) {
    context.error(
        "container.docker_run_args", "the display's memory is used for weights, but no card is mounted",
        "--mount of the GPU's card by PCI path",
        "add --mount=type=bind,source=/dev/dri/by-path/pci-000f:01:00.0-card,target=/dev/dri/card0");
  }
  if (!rule_for_cards) {
    context.error("container.docker_run_args",
                  "the display's memory is used for weights, but cards are not allowed",
                  "--device-cgroup-rule=c 226:* rw", "add --device-cgroup-rule=c 226:* rw");
  }
}

bool is_below(const std::string& path, const std::string& folder) {
  return path.rfind(folder, 0) == 0 && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

void kernel_policy(RuleContext& context) {
  const auto& kernel = context.profile.host.kernel;
  if (!kernel || !context.site.policy) return;
  const KernelPolicy& policy = *context.site.policy;
  const std::string& file = context.profile.host.kernel_policy;
  const int64_t page_size = policy.page_size_of(kernel->release);
  if (!kernel->release.empty() && page_size == 0) {
    context.error("host.kernel.release", "is " + kernel->release + ", which " + file + " does not know",
                  policy.candidate + " or " + policy.fallback, "name a kernel of the policy");
  } else if (kernel->page_size != 0 && page_size != 0 && kernel->page_size != page_size) {
    context.error("host.kernel.page_size",
                  "is " + std::to_string(kernel->page_size) + " with the kernel " + kernel->release,
                  std::to_string(page_size), "set host.kernel.page_size to " + std::to_string(page_size));
  }
  if (kernel->memory_saver_required && !policy.memory_saver) {
    context.error_in(file, "memory_saver", "is missing, the profile requires the memory saver",
                     "package, version and source identity of the memory saver",
                     "add memory_saver to " + file);
  }
}

void container_options(RuleContext& context) {
  const std::vector<Option> options = read_options(context.profile.container.docker_run_args);
  for (const RequiredOption& required : kRequiredOptions) {
    const bool found = std::any_of(options.begin(), options.end(), [&](const Option& option) {
      return option.name == required.name && (required.value == nullptr || option.value == required.value);
    });
    if (found) continue;
    const std::string text =
        required.name + (required.value == nullptr ? std::string() : "=" + std::string(required.value));
    context.error("container.docker_run_args", text + " is missing", text + ": " + required.because,
                  "add " + text + (required.value == nullptr ? ", as in config/base/vllm.json" : ""));
  }
  for (const Option& option : options) {
    for (const ForbiddenOption& forbidden : kForbiddenOptions) {
      if (option.name != forbidden.name) continue;
      context.error(option_path(option.index), option.name + " is given",
                    std::string("absent: ") + forbidden.because, "remove " + option.name);
    }
  }
  check_memory(context, options);
  check_display_device(context, options);
  if (!is_host_name(context.profile.container.name)) {
    context.error("container.name", "is \"" + context.profile.container.name + "\"",
                  "letters, digits, dots, - and _, starting with a letter or digit", "rename the container");
  }
  if (context.profile.container.image.empty()) {
    context.error("container.image", "is empty", "an image tag", "name the image");
  }
}

void container_mounts(RuleContext& context) {
  if (context.faulty("container")) return;
  const auto& mounts = context.profile.container.mounts;
  for (size_t i = 0; i < mounts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (mounts[i].destination != mounts[j].destination) continue;
      context.error("container.mounts[" + std::to_string(i) + "]",
                    mounts[i].destination + " is mounted twice", "every folder once",
                    "remove one of the two");
    }
  }
  const std::string& model = context.site.engine.model_path;
  const Mount* model_mount = nullptr;
  size_t at = 0;
  for (size_t i = 0; i < mounts.size(); ++i) {
    if (!model.empty() && is_below(model, mounts[i].destination)) model_mount = &mounts[i], at = i;
  }
  if (model_mount == nullptr) {
    context.error("container.mounts", "nothing is mounted at the model's folder " + model,
                  "a read-only mount of the checkpoint", "add [CHECKPOINT, \"" + model + "\", \"ro\"]");
    return;
  }
  if (model_mount->mode == "rw") {
    context.error("container.mounts[" + std::to_string(at) + "]", "the checkpoint is writable", "mode ro",
                  "set the mode to ro");
  }
  // A snapshot is a folder of links to ../../blobs, which is /blobs as seen from /models.
  if (model_mount->source.find("/snapshots/") == std::string::npos) return;
  const bool blobs =
      std::any_of(mounts.begin(), mounts.end(), [](const Mount& m) { return m.destination == "/blobs"; });
  if (blobs) return;
  context.error("container.mounts", "the checkpoint is a snapshot of links, but /blobs is not mounted",
                "a read-only mount of the blobs folder", "add [\"…/blobs\", \"/blobs\", \"ro\"]");
}

void cache_folders(RuleContext& context) {
  if (context.faulty("container")) return;
  const auto writable = [&](const std::string& path) {
    const auto& mounts = context.profile.container.mounts;
    return std::any_of(mounts.begin(), mounts.end(), [&](const Mount& mount) {
      return mount.mode == "rw" && is_below(path, mount.destination);
    });
  };
  for (const auto& [name, value] : context.profile.environment) {
    const Setting* row = setting_of_variable(name);
    if (row == nullptr) continue;
    const bool folder = row->kind == SettingKind::kPathBelow || std::string_view(row->key) == "@vllm_cache" ||
                        std::string_view(row->key) == "@cost_directory";
    if (!folder || writable(value)) continue;
    context.error("environment." + name, name + " is " + value + ", which is on no writable mount",
                  "a folder below a mount with mode rw", "move it below /cache");
  }
}

}  // namespace spark::ops::rule
