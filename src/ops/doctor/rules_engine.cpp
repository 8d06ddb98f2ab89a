// Rules about the engine's settings: world sizes, drafter, kernels, memory, the API.
#include <algorithm>
#include <array>

#include "ops/doctor/rule.h"
#include "ops/site/settings.h"
#include "ops/site/text_forms.h"

namespace spark::ops::rule {
namespace {

constexpr int64_t kThreeNodeBatchLimit = 4096;
constexpr int64_t kNodeMemoryGib = 119;  // 128 GB

std::string at_argument(const std::string& name) {
  return "serve_args." + name;
}

std::string given(const RuleContext& context, const std::string& name) {
  if (!context.arguments().has(name)) return name + " is missing";
  return name + " is " + context.arguments().value(name).value_or("without a value");
}

void require_argument(RuleContext& context, const std::string& name, const std::string& value,
                      const std::string& because) {
  if (context.arguments().value(name) == value) return;
  context.error(at_argument(name), given(context, name), value + because, "set " + name + " to " + value);
}

// Edits between two names; a swap of neighbours is one edit.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

// A known name that `name` is most likely a misspelling of. Strict: servers have many legitimate variables
// that the table does not list.
const char* meant(std::string_view name, const std::vector<const char*>& known) {
  for (const char* candidate : known) {
    const std::string_view text = candidate;
    const size_t allowed = text.size() >= 16 ? 2 : 1;
    const size_t gap = text.size() > name.size() ? text.size() - name.size() : name.size() - text.size();
    if (name.size() >= 6 && gap <= allowed && name != text && edits(name, text) <= allowed) return candidate;
  }
  return nullptr;
}

bool is_loopback(const std::string& host) {
  return host.rfind("127.", 0) == 0 || host == "localhost" || host == "::1" || host == "[::1]";
}

}  // namespace

std::optional<int64_t> other_size(const Site& site) {
  const auto& size = site.engine.nnodes;
  const bool consistent = size && size == site.engine.tensor_parallel_size;
  const auto count = static_cast<int64_t>(site.nodes.nodes.size());
  return consistent && count > 0 && *size != count ? size : std::nullopt;
}

void world_size(RuleContext& context) {
  const std::string count = std::to_string(context.nodes.nodes.size());
  if (const auto wanted = other_size(context.site)) {
    // The whole profile is for another cluster: no single setting is wrong.
    const bool vllm = context.is_vllm();
    const std::string fix =
        count == "4" ? std::string("choose a profile for four nodes: --cluster-config config/") +
                           (vllm ? "cluster" : "native") + "-tp4.json"
        : count == "3" ? std::string("choose a profile for three nodes: --cluster-config config/") +
                             (vllm ? "cluster" : "native") + "-64k.json"
                       : std::string("use a node map of three or four nodes");
    context.error(at_argument("--nnodes"),
                  "the profile is for " + std::to_string(*wanted) + " nodes, " + context.site.nodes_file +
                      " has " + count,
                  "profile and node map of one size",
                  fix + ", or --nodes-config with a map of " + std::to_string(*wanted) + " nodes");
    return;
  }
  for (const char* name : {"--tensor-parallel-size", "--nnodes"}) {
    require_argument(context, name, count, ", the number of nodes in the map");
  }
}

void drafter(RuleContext& context) {
  if (!context.site.engine.speculative || context.site.engine.speculative->empty()) return;
  const auto size = context.site.engine.draft_tensor_parallel_size;
  const auto count = static_cast<int64_t>(context.nodes.nodes.size());
  if (size == count) return;
  context.error("serve_args.--speculative-config",
                "draft_tensor_parallel_size is " + (size ? std::to_string(*size) : std::string("missing")),
                std::to_string(count) + ": a drafter on fewer ranks needs memory that the head lacks",
                "set draft_tensor_parallel_size to " + std::to_string(count));
}

void kernel_backend(RuleContext& context) {
  const std::string& name = context.profile.kernel_backend;
  const KernelFamily* family = find_kernel_family(name);
  if (family == nullptr) {
    context.error("kernel_backend", "is \"" + name + "\"", "b12x or tilelang",
                  "set kernel_backend to the family that the image serves");
    return;
  }
  const std::string because = std::string(", as kernel_backend is ") + name;
  require_argument(context, "--attention-backend", family->attention_backend, because);
  require_argument(context, "--linear-backend", family->name, because);
  require_argument(context, "--moe-backend", family->name, because);
  if (context.site.engine.speculative && !context.site.engine.speculative->empty()) {
    const Json& config = *context.site.engine.speculative;
    const Json backend = config.contains("attention_backend") ? config["attention_backend"] : Json();
    if (backend != family->attention_backend) {
      context.error("serve_args.--speculative-config",
                    "the drafter's attention_backend is " + (backend.is_null() ? "missing" : backend.dump()),
                    family->attention_backend + because,
                    std::string("set attention_backend to ") + family->attention_backend);
    }
  }
  const bool tilelang = name == "tilelang";
  const std::string variable = context.variable("VLLM_DS41_KERNEL_BACKEND");
  if (tilelang ? variable != name : context.set("VLLM_DS41_KERNEL_BACKEND") && variable != name) {
    context.error("environment.VLLM_DS41_KERNEL_BACKEND",
                  "VLLM_DS41_KERNEL_BACKEND is " + (variable.empty() ? "not set" : variable), name + because,
                  "set VLLM_DS41_KERNEL_BACKEND to " + name);
  }
  if (!tilelang) return;
  const std::string cache = context.variable("TILELANG_CACHE_DIR");
  if (cache.rfind("/cache/", 0) != 0 || cache.size() < 8 || cache.find("/..") != std::string::npos) {
    context.error("environment.TILELANG_CACHE_DIR",
                  "TILELANG_CACHE_DIR is " + (cache.empty() ? "not set" : cache), "a folder below /cache",
                  "set TILELANG_CACHE_DIR to /cache/kkref/jit/tilelang");
  }
}

void activation_clamp(RuleContext& context) {
  static constexpr const char* kName = "B12X_W4A8_TINY_DECODE";
  if (!context.set(kName) || context.variable(kName) == "0") return;
  context.error(std::string("environment.") + kName, std::string(kName) + " is " + context.variable(kName),
                "0", std::string("set ") + kName + " to 0");
}

void api_exposure(RuleContext& context) {
  for (const auto& [where, present] :
       {std::pair("serve_args.--api-key", context.arguments().has("--api-key")),
        std::pair("environment.VLLM_API_KEY", context.set("VLLM_API_KEY"))}) {
    if (!present) continue;
    context.error(
        where, "the API key stands in the configuration", "a key that is only on the nodes",
        "change the key, put it into a file on the nodes and name it in engine.secret_environment_file");
    return;
  }
  const std::string& host = context.site.engine.host;
  if (is_loopback(host) || !context.profile.secret_environment_file.empty() ||
      context.arguments().has("--api-key-file")) {
    return;
  }
  const std::string variable = context.is_vllm() ? "VLLM_API_KEY" : "SPARK_API_KEY";
  context.warn(at_argument("--host"),
               "the API listens on " + (host.empty() ? "all interfaces" : host) + " without a key",
               "a key, or a loopback address",
               "in config/site.json set engine.secret_environment_file to a file on the nodes that sets " +
                   variable + ", or engine.host to 127.0.0.1");
}

void spelling(RuleContext& context) {
  if (context.is_vllm()) {
    std::vector<const char*> variables;
    for (const Setting& row : vllm_variables()) variables.push_back(row.name);
    for (const KnownName& other : other_variables()) variables.push_back(other.name);
    for (const auto& entry : context.profile.environment) {
      const std::string& name = entry.first;  // clang 14 captures no structured bindings
      const bool known =
          std::any_of(variables.begin(), variables.end(), [&](const char* v) { return name == v; });
      const char* guess = known ? nullptr : meant(name, variables);
      if (guess == nullptr) continue;
      context.warn("environment." + name, name + " is not a variable that the server is known to read", guess,
                   "rename it to " + std::string(guess));
    }
  }
  std::vector<const char*> names;
  for (const auto& rows : {vllm_arguments(), native_arguments()}) {
    for (const Setting& row : rows) {
      if (row.name[0] != '\0') names.push_back(row.name);
    }
  }
  for (const KnownName& other : other_arguments()) names.push_back(other.name);
  for (const ServerArgument& argument : context.arguments().all()) {
    const bool known =
        setting_of_argument(argument.name) != nullptr ||
        std::any_of(names.begin(), names.end(), [&](const char* n) { return argument.name == n; });
    const char* guess = known || argument.name.empty() ? nullptr : meant(argument.name, names);
    if (guess == nullptr) continue;
    context.warn(at_argument(argument.name),
                 argument.name + " is not an argument that the server is known to take", guess,
                 "rename it to " + std::string(guess));
  }
}

void repeated_arguments(RuleContext& context) {
  std::vector<std::string> names;
  bool first = true;
  for (const ServerArgument& argument : context.arguments().all()) {
    if (argument.name.empty() && !first) {
      context.error("serve_args[" + std::to_string(argument.index) + "]",
                    "the word \"" + argument.value.value_or("") + "\" belongs to no argument",
                    "one positional argument, the model", "remove it, or put its argument before it");
    }
    first = false;
    if (argument.name.empty()) continue;
    if (std::find(names.begin(), names.end(), argument.name) != names.end()) {
      context.error(at_argument(argument.name), argument.name + " is given twice", "every argument once",
                    "remove one of the two");
    }
    names.push_back(argument.name);
  }
  for (const char* per_node : {"--node-rank", "--master-addr", "--master-port", "--headless"}) {
    if (!context.arguments().has(per_node)) continue;
    context.error(at_argument(per_node), std::string(per_node) + " stands in the profile",
                  "absent: it is added for every rank", std::string("remove ") + per_node);
  }
}

void unsafe_memory(RuleContext& context) {
  const EngineSettings& engine = context.site.engine;
  if (context.is_vllm() && context.nodes.nodes.size() == 3 &&
      engine.max_num_batched_tokens.value_or(0) > kThreeNodeBatchLimit) {
    context.error(
        at_argument("--max-num-batched-tokens"),
        "is " + std::to_string(*engine.max_num_batched_tokens) + " on three nodes",
        "at most " + std::to_string(kThreeNodeBatchLimit) + ": more crosses the head's startup guard",
        "set --max-num-batched-tokens to " + std::to_string(kThreeNodeBatchLimit));
  }
  if (context.set("B12X_AUTOTUNE") && context.variable("B12X_AUTOTUNE") != "0") {
    context.error("environment.B12X_AUTOTUNE", "B12X_AUTOTUNE is " + context.variable("B12X_AUTOTUNE"),
                  "0: its race takes half of the free memory, which GPU and host share",
                  "set B12X_AUTOTUNE to 0");
  }
  if (context.is_vllm() && !engine.kv_cache_memory_bytes) {
    context.error(at_argument("--kv-cache-memory-bytes"), "is not set",
                  "an explicit size: profiling would take memory that the host needs",
                  "set engine.kv_cache_memory_bytes");
  }
  if (context.is_vllm() && engine.max_parallel_prefills.value_or(1) > 1) {
    context.warn(at_argument("--max-parallel-prefills"),
                 "is " + std::to_string(*engine.max_parallel_prefills),
                 "1: with eight, four prompts of 64K tokens waited 67 instead of 41 s on average",
                 "set --max-parallel-prefills to 1");
  }
  const auto& kernel = context.profile.host.kernel;
  if (kernel && kernel->page_size == 65536 && !kernel->memory_saver_required && context.is_vllm()) {
    context.error("host.kernel.memory_saver_required", "is false with 64 KiB pages",
                  "true: unpacked page tables waste whole pages, and the profile does not fit",
                  "set host.kernel.memory_saver_required to true");
  }
}

void graph_size(RuleContext& context) {
  const EngineSettings& engine = context.site.engine;
  if (!engine.max_cudagraph_capture_size || !engine.max_num_seqs) return;
  const int64_t wanted = *engine.max_num_seqs * (1 + engine.draft_tokens.value_or(0));
  if (*engine.max_cudagraph_capture_size == wanted) return;
  context.warn(
      at_argument("--max-cudagraph-capture-size"),
      "is " + std::to_string(*engine.max_cudagraph_capture_size) + ", " +
          std::to_string(*engine.max_num_seqs) + " sequences with " +
          std::to_string(engine.draft_tokens.value_or(0)) + " drafts need " + std::to_string(wanted),
      std::to_string(wanted) + ": larger batches run without a graph, larger graphs waste memory",
      "set --max-cudagraph-capture-size to " + std::to_string(wanted) + " and end the ladder of sizes there");
}

void native_unit(RuleContext& context) {
  const NativeSpec& native = context.profile.native;
  if (!is_host_name(native.service)) {
    context.error("engine.service", "is \"" + native.service + "\"", "letters, digits, dots, - and _",
                  "name the unit, such as dsv41-native");
  }
  if (native.program.empty() || native.program[0] != '/') {
    context.error("engine.program", "is \"" + native.program + "\"", "an absolute path on the nodes",
                  "write {deployment}/build/release/apps/spark-engine");
  }
  if (native.memory_max_gib >= kNodeMemoryGib) {
    context.error("engine.memory_max_gib", "is " + std::to_string(native.memory_max_gib),
                  "less than the node's " + std::to_string(kNodeMemoryGib) + " GiB", "set it to 112");
  }
  static constexpr std::array<const char*, 3> kBackends = {"cpu", "cuda", "reference"};
  const std::string backend = context.arguments().value("--backend").value_or("");
  if (backend.empty() || std::find(kBackends.begin(), kBackends.end(), backend) != kBackends.end()) return;
  context.error(at_argument("--backend"), "is " + backend, "cpu, cuda or reference",
                "set engine.backend to cuda");
}

}  // namespace spark::ops::rule
