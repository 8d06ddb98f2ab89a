#include "ops/site/profile.h"

#include <cctype>
#include <charconv>

#include "ops/site/json_object.h"

namespace spark::ops {
namespace {

constexpr double kMaxSeconds = 86400;

// Values that Docker and the shell see as text. Booleans are refused: "True" is not what a server reads as a
// number.
std::string read_scalar(const JsonReader& reader) {
  const Json* value = reader.json();
  if (value != nullptr && value->is_number()) return value->dump();
  if (value != nullptr && value->is_boolean()) {
    reader.fault("must be a string, not a boolean", "write \"1\" or \"0\", as the server reads it");
    return {};
  }
  return reader.string();
}

bool is_variable_name(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return false;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  }
  return true;
}

bool has_control(const std::string& text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
  }
  return false;
}

void read_environment(const JsonReader& reader, ClusterProfile& profile) {
  if (!reader.present() && profile.engine_kind == EngineKind::kNative) return;
  for (const auto& [name, value] : reader.members()) {
    std::string text = read_scalar(value);
    if (!is_variable_name(name)) {
      value.fault("is not a variable name", "letters, digits and _ only, not starting with a digit");
    } else if (has_control(text)) {
      value.fault("holds a control character", "remove it");
    } else {
      profile.environment[name] = std::move(text);
    }
  }
}

// The folders that other paths are written relative to.
struct Places {
  std::string home;
  std::string deployment;
  std::string expand(const std::string& text) const { return expand_places(text, home, deployment); }
};

Mount read_mount(const JsonReader& reader, const Places& places) {
  const std::vector<JsonReader> parts = reader.items();
  if (parts.size() != 3) {
    if (reader.json()->is_array()) {
      reader.fault("has " + std::to_string(parts.size()) + " elements", "write [source, destination, mode]");
    }
    return {};
  }
  Mount mount = {places.expand(read_word(parts[0])), read_word(parts[1]), read_word(parts[2])};
  for (size_t i = 0; i < 2; ++i) {
    const std::string& path = i == 0 ? mount.source : mount.destination;
    if (path.find(':') != std::string::npos) {
      parts[i].fault("holds a colon, which separates the parts of a mount", "use a path without a colon");
    } else if (parts[i].json()->is_string() && (path.empty() || path[0] != '/') &&
               !(i == 0 && path.rfind("{", 0) == 0)) {
      parts[i].fault("is \"" + path + "\"; it must be an absolute path");
    }
  }
  if (parts[2].json()->is_string() && mount.mode != "ro" && mount.mode != "rw") {
    parts[2].fault("is \"" + mount.mode + "\"; it must be \"ro\" or \"rw\"");
  }
  return mount;
}

ContainerSpec read_container(const JsonReader& reader, const Places& places) {
  ContainerSpec container;
  if (!require_object(reader)) return container;
  reader.reject_unknown({"name", "image", "expected_labels", "docker_run_args", "mounts"});
  container.name = read_word(reader.field("name"));
  container.image = read_word(reader.field("image"));
  for (const auto& [label, value] : reader.field("expected_labels").members()) {
    container.expected_labels.emplace_back(label, value.string());
  }
  for (const JsonReader& item : reader.field("docker_run_args").items()) {
    container.docker_run_args.push_back(read_word(item));
  }
  for (const JsonReader& item : reader.field("mounts").items())
    container.mounts.push_back(read_mount(item, places));
  return container;
}

NativeSpec read_native(const JsonReader& engine, const Places& places) {
  NativeSpec native;
  native.service = read_word(engine.field("service"));
  native.program = places.expand(read_word(engine.field("program")));
  native.memory_max_gib = engine.field("memory_max_gib").integer(1, 4096, 1);
  return native;
}

KernelRequirement read_kernel(const JsonReader& reader) {
  KernelRequirement kernel;
  if (!require_object(reader)) return kernel;
  reader.reject_unknown({"release", "page_size", "memory_saver_required"});
  kernel.release = reader.field("release").optional_string().value_or("");
  if (const JsonReader page = reader.field("page_size"); page.present()) {
    kernel.page_size = page.integer(1, 1 << 20);
    if (kernel.page_size != 0 && kernel.page_size != 4096 && kernel.page_size != 65536) {
      page.fault("is " + std::to_string(kernel.page_size) + "; it must be 4096 or 65536");
      kernel.page_size = 0;
    }
  }
  kernel.memory_saver_required = reader.field("memory_saver_required").optional_boolean().value_or(false);
  return kernel;
}

HostSpec read_host(const JsonReader& reader) {
  HostSpec host;
  if (!require_object(reader)) return host;
  reader.reject_unknown({"home", "memguard_gib", "memguard_interval_seconds", "startup_memguard_gib",
                         "startup_memguard_interval_seconds", "startup_memguard_wait_seconds", "kernel",
                         "kernel_policy", "nvme_coalescing", "hardware", "supervisor"});
  host.home = read_word(reader.field("home"));
  if (reader.field("home").present() && (host.home.empty() || host.home[0] != '/')) {
    reader.field("home").fault("is \"" + host.home + "\"; it must be an absolute path");
    host.home.clear();  // what is written relative to it is not wrong as well
  }
  const auto positive = [&](const char* key) {
    const JsonReader value = reader.field(key);
    const double seconds = value.number(0, kMaxSeconds, 1);
    if (seconds == 0) value.fault("is 0; it must be above 0");
    return seconds;
  };
  host.memguard_gib = reader.field("memguard_gib").integer(1, 4096, 1);
  host.memguard_interval_seconds = positive("memguard_interval_seconds");
  host.startup_memguard_gib = reader.field("startup_memguard_gib").integer(1, 4096, 1);
  host.startup_memguard_interval_seconds = positive("startup_memguard_interval_seconds");
  host.startup_memguard_wait_seconds = reader.field("startup_memguard_wait_seconds").integer(1, 86400, 1);
  if (reader.field("kernel").present()) host.kernel = read_kernel(reader.field("kernel"));
  host.kernel_policy = reader.field("kernel_policy").optional_string().value_or(host.kernel_policy);
  if (const JsonReader hardware = reader.field("hardware"); hardware.present()) {
    host.hardware = hardware.string("spark");
    if (host.hardware != "spark" && host.hardware != "generic") {
      hardware.fault("is \"" + host.hardware + "\"; it must be \"spark\" or \"generic\"");
    }
  }
  if (const JsonReader supervisor = reader.field("supervisor"); supervisor.present()) {
    host.supervisor = supervisor.string("systemd");
    if (host.supervisor != "systemd" && host.supervisor != "process") {
      supervisor.fault("is \"" + host.supervisor + "\"; it must be \"systemd\" or \"process\"");
    }
  }
  if (const JsonReader nvme = reader.field("nvme_coalescing"); nvme.present()) {
    host.nvme_coalescing = nvme.string("ignore");
    if (host.nvme_coalescing != "on" && host.nvme_coalescing != "off" && host.nvme_coalescing != "ignore") {
      nvme.fault("is \"" + host.nvme_coalescing + "\"; it must be \"on\", \"off\" or \"ignore\"");
    }
  }
  return host;
}

int64_t read_port(const JsonReader& reader) {
  if (reader.present() && reader.json()->is_string()) {
    const std::string text = reader.string();
    int64_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535) return port;
    reader.fault("is \"" + text + "\"; it must be a port between 1 and 65535");
    return 0;
  }
  return reader.integer(1, 65535);
}

DeploymentSpec read_deployment(const JsonReader& reader, const std::string& home) {
  DeploymentSpec deployment;
  if (!require_object(reader)) return deployment;
  reader.reject_unknown(
      {"launch_enabled", "repository", "branch", "path", "ready_url", "ready_timeout_seconds"});
  const auto filled = [&](const char* key) {
    std::string text = read_word(reader.field(key));
    if (text.empty() && reader.field(key).present() && reader.field(key).json()->is_string()) {
      reader.field(key).fault("is empty");
    }
    return text;
  };
  deployment.launch_enabled = reader.field("launch_enabled").boolean();
  deployment.repository = filled("repository");
  if (reader.field("branch").present()) deployment.branch = filled("branch");
  deployment.path = expand_places(filled("path"), home);
  deployment.ready_url = filled("ready_url");
  deployment.ready_timeout_seconds = reader.field("ready_timeout_seconds").integer(1, 7 * 86400, 1);
  return deployment;
}

void read_fabric(const JsonReader& reader, ClusterProfile& profile) {
  if (reader.present() && require_object(reader)) {
    reader.reject_unknown({"transport", "mesh_paths"});
    profile.transport_name = reader.field("transport").optional_string().value_or(kDefaultTransport);
    profile.mesh_paths = reader.field("mesh_paths").optional_integer().value_or(2);
  }
  profile.transport = find_transport(profile.transport_name);
}

void read_engine(const JsonReader& reader, ClusterProfile& profile) {
  if (!reader.present()) return;
  const std::string kind = reader.field("kind").optional_string().value_or("vllm");
  if (kind == "native") profile.engine_kind = EngineKind::kNative;
  if (const JsonReader secrets = reader.field("secret_environment_file"); secrets.present()) {
    profile.secret_environment_file = read_word(secrets);
  }
  if (kind != "native" && kind != "vllm") {
    reader.field("kind").fault("is \"" + kind + "\"; it must be \"vllm\" or \"native\"");
  }
}

}  // namespace

std::string expand_places(const std::string& text, const std::string& home, const std::string& deployment) {
  std::string result = text;
  const auto replace_all = [&](std::string_view mark, const std::string& value) {
    if (value.empty()) return;
    for (size_t at = 0; (at = result.find(mark, at)) != std::string::npos; at += value.size()) {
      result.replace(at, mark.size(), value);
    }
  };
  replace_all("{deployment}", deployment);
  replace_all("{home}", home);
  return result;
}

std::string ClusterProfile::environment_value(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

ClusterProfile read_profile(const Json& resolved, Faults& faults) {
  ClusterProfile profile;
  const JsonReader root(resolved, "", faults);
  if (!resolved.is_object()) {
    root.fault("must be an object");
    return profile;
  }
  root.reject_unknown({"schema_version", "description", "promoted_baseline", "benchmark_reference",
                       "nodes_config", "upstreams_config", "kernel_backend", "fabric", "container", "host",
                       "environment", "serve_args", "engine", "distributed", "deployment", "tuning_origin"});
  root.field("schema_version").integer(1, 1, 1);
  root.field("description").optional_string();
  profile.promoted_baseline = root.field("promoted_baseline").string();
  profile.benchmark_reference = root.field("benchmark_reference").optional_string();
  profile.nodes_config = root.field("nodes_config").optional_string().value_or(profile.nodes_config);
  profile.upstreams_config =
      root.field("upstreams_config").optional_string().value_or(profile.upstreams_config);
  read_fabric(root.field("fabric"), profile);
  read_engine(root.field("engine"), profile);
  const bool native = profile.engine_kind == EngineKind::kNative;
  profile.kernel_backend =
      root.field("kernel_backend").optional_string().value_or(native ? "native" : kDefaultKernelFamily);
  profile.host = read_host(root.field("host"));
  profile.deployment = read_deployment(root.field("deployment"), profile.host.home);
  const Places places = {profile.host.home, profile.deployment.path};
  if (profile.engine_kind == EngineKind::kNative) profile.native = read_native(root.field("engine"), places);
  if (profile.engine_kind == EngineKind::kVllm || root.field("container").present())
    profile.container = read_container(root.field("container"), places);
  read_environment(root.field("environment"), profile);
  for (const JsonReader& item : root.field("serve_args").items()) {
    const std::string word = read_word(item);
    profile.serve_args.push_back(profile.engine_kind == EngineKind::kNative ? places.expand(word) : word);
  }
  const JsonReader distributed = root.field("distributed");
  if (require_object(distributed)) {
    distributed.reject_unknown({"master_addr", "master_port"});
    profile.distributed.master_addr = read_word(distributed.field("master_addr"));
    profile.distributed.master_port = read_port(distributed.field("master_port"));
  }
  if (const JsonReader origin = root.field("tuning_origin"); origin.present()) {
    require_object(origin);
    profile.tuning_origin = *origin.json();
  }
  return profile;
}

}  // namespace spark::ops
