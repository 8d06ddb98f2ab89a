#include "ops/plan/request.h"

#include <algorithm>

#include "ops/site/engine_render.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr int64_t kBasePage = 4096;
constexpr int64_t kDefaultBlock = 256;
constexpr int64_t kNativeStepRows = 512;
constexpr int64_t kNativeSequences = 8;

// What spark-engine does with the arguments, where the profile leaves them out with its defaults.
void read_native(const Site& site, PlanRequest& request) {
  constexpr int64_t kEngramCacheMib = 256;
  const ServerArguments arguments(site.profile.serve_args);
  const EngineSettings& engine = site.engine;
  request.kv_bytes = engine.kv_cache_memory_bytes.value_or(0);
  request.prefix_caching = !arguments.has("--no-enable-prefix-caching");
  const auto mib = arguments.value("--engram-cache-mib");
  request.engram_cache_bytes = (mib ? whole_number(*mib).value_or(0) : kEngramCacheMib) << 20;
  const bool drafts =
      request.model.num_nextn_predict_layers > 0 && !(engine.speculative && engine.speculative->empty());
  request.drafts = drafts ? std::min(engine.draft_tokens.value_or(request.model.dspark_block_size),
                                     request.model.dspark_block_size)
                          : 0;
}

int64_t needed(const std::optional<int64_t>& value, const char* where, Faults& faults) {
  if (value) return *value;
  faults.push_back({where, "is not stated", "a plan needs it: set it in the profile"});
  return 0;
}

std::vector<int64_t> captured_sizes(const Site& site) {
  const ServerArguments arguments(site.profile.serve_args);
  if (const auto text = arguments.value("--compilation-config")) {
    try {
      const Json config = parse_json(*text, "--compilation-config");
      if (config.is_object() && config.contains("cudagraph_capture_sizes")) {
        std::vector<int64_t> sizes;
        for (const Json& size : config["cudagraph_capture_sizes"]) {
          if (size.is_number_integer()) sizes.push_back(size.get<int64_t>());
        }
        return sizes;
      }
    } catch (const Error&) {
      // The doctor reports a configuration that is not JSON; without sizes the ladder below holds.
    }
  }
  const int64_t largest = site.engine.max_cudagraph_capture_size.value_or(0);
  return capture_ladder(std::min<int64_t>(largest, 4096));
}

void read_host(const ClusterProfile& profile, PlanRequest& request) {
  request.guard_gib = profile.host.memguard_gib;
  request.startup_guard_gib = profile.host.startup_memguard_gib;
  if (!profile.host.kernel) return;
  request.page_size = profile.host.kernel->page_size == 0 ? kBasePage : profile.host.kernel->page_size;
  request.memory_saver = profile.host.kernel->memory_saver_required;
}

}  // namespace

const RankWeights::Entry& RankWeights::entry(int64_t ranks) const {
  const auto found = known_->find(ranks);
  if (found != known_->end()) return found->second;
  const model::RankSplit split = model::split_for(config_, ranks);
  const std::vector<model::TensorEntry> tensors = model::tensor_catalogue(config_);
  Entry entry = {model::rank_memory(tensors, split), model::native_gpu_weights(tensors, split)};
  return known_->emplace(ranks, std::move(entry)).first->second;
}

PlanRequest plan_request(const Site& site, const model::ModelConfig& model, Faults& faults) {
  const ClusterProfile& profile = site.profile;
  const EngineSettings& engine = site.engine;
  PlanRequest request;
  request.profile = site.request.profile;
  request.engine = profile.engine_kind;
  request.model = model;
  request.transport = profile.transport;
  const bool native = request.engine == EngineKind::kNative;
  const auto map_nodes = static_cast<int64_t>(site.nodes.nodes.size());
  if (engine.nnodes) {
    request.ranks = *engine.nnodes;
  } else if (engine.tensor_parallel_size) {
    request.ranks = *engine.tensor_parallel_size;
  } else if (native && site.resolved.contains("engine") && site.resolved["engine"].contains("nodes") &&
             site.resolved["engine"]["nodes"].is_number_integer()) {
    request.ranks = site.resolved["engine"]["nodes"].get<int64_t>();
  } else {
    request.ranks = map_nodes;
  }
  if (request.ranks < 1 || request.ranks > model::kMaxRanks) {
    faults.push_back(
        {"engine.nodes", std::to_string(request.ranks) + " ranks", "one to eight, one per node"});
  }
  request.weights = RankWeights(model);
  if (site.nodes_loaded && map_nodes == request.ranks) {
    for (int64_t rank = 0; rank < map_nodes; ++rank) {
      const Node* node = site.nodes.with_rank(rank);
      request.nodes.push_back(node == nullptr ? "rank " + std::to_string(rank) : node->name);
    }
  }
  read_host(profile, request);
  request.max_model_len = needed(engine.max_model_len, "engine.max_model_len", faults);
  if (native) {
    request.max_num_seqs = engine.max_num_seqs.value_or(kNativeSequences);
    request.max_num_batched_tokens = engine.max_num_batched_tokens.value_or(kNativeStepRows);
    request.service_memory_max_gib = profile.native.memory_max_gib;
    read_native(site, request);
    return request;
  }
  request.max_num_seqs = needed(engine.max_num_seqs, "engine.max_num_seqs", faults);
  request.max_num_batched_tokens =
      needed(engine.max_num_batched_tokens, "engine.max_num_batched_tokens", faults);
  request.kv_bytes = needed(engine.kv_cache_memory_bytes, "engine.kv_cache_memory_bytes", faults);
  request.block_size = engine.block_size.value_or(kDefaultBlock);
  request.captured_sizes = captured_sizes(site);
  request.drafts = engine.draft_tokens.value_or(0);
  request.adaptive = engine.speculative && engine.speculative->is_object() &&
                     engine.speculative->value("enable_adaptive_verification", Json(false)) == Json(true);
  request.carveout_weights = profile.environment_value("SPARK3_DISPLAY_CARVEOUT_WEIGHTS") == "1";
  request.packed_head = profile.environment_value("VLLM_DS41_PACKED_BF16_LM_HEAD") == "1";
  return request;
}

}  // namespace spark::ops
