#include "ops/plan/memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/cost.h"
#include "model/split.h"
#include "ops/plan/calibration.h"

namespace spark::ops {
namespace {

constexpr int64_t kHugePage = 65536;

double as_real(int64_t value) {
  return static_cast<double>(value);
}

int64_t whole_pages(int64_t bytes, int64_t page) {
  return (bytes + page - 1) / page;
}

bool is_native(const PlanRequest& request) {
  return request.engine == EngineKind::kNative;
}

model::NativeCacheBytes native_cache(const PlanRequest& request) {
  return model::native_cache_bytes(request.model, {.sequences = request.max_num_seqs,
                                                   .context = request.max_model_len,
                                                   .step_rows = request.max_num_batched_tokens,
                                                   .budget_bytes = request.kv_bytes,
                                                   .prefix_caching = request.prefix_caching});
}

// Bytes of a block of tokens in all compressed caches.
double native_block_bytes(const PlanRequest& request) {
  return as_real(model::kNativeBlockTokens) * model::cache_cost(request.model).growth_per_token;
}

class MemoryPlanner {
 public:
  explicit MemoryPlanner(const PlanRequest& request)
      : request_(request), split_(model::split_for(request.model, request.ranks)) {}

  NodeMemory run() {
    memory_.node = calibration().node_bytes.value;
    add_weights();
    add_caches();
    add_runtime();
    add_pages();
    return std::move(memory_);
  }

 private:
  void add(const std::string& name, double bytes, bool exact) {
    memory_.parts.push_back({name, bytes, bytes, exact});
  }

  void add_native_weights() {
    for (const model::ComponentWeight& part : request_.weights.native(request_.ranks)) {
      add("weights: " + std::string(model::name_of(part.component)), as_real(part.bytes), true);
      mapped_ += as_real(part.bytes);
    }
  }

  void add_weights() {
    if (is_native(request_)) return add_native_weights();
    const model::RankMemory weights = request_.weights.of(request_.ranks);
    // rank_memory has the whole Markov head, as the native engine needs it; vLLM cuts it like the output
    // head.
    const double uncut = markov_bytes_elsewhere(request_);
    const double attention = as_real(weights.attention_split + weights.attention_replicated);
    // rank_memory counts the head packed; without packing a third more of it.
    const double head = as_real(split_.vocabulary * request_.model.hidden_size) * 2;
    const bool packed = request_.packed_head;
    const double ends = as_real(weights.embedding_and_head) + (packed ? 0 : head / 4);
    const double others =
        as_real(weights.total - weights.routed_experts - weights.attention_split -
                weights.attention_replicated - weights.drafter - weights.vision - weights.embedding_and_head);
    add("weights: routed experts", as_real(weights.routed_experts), true);
    add("weights: attention", attention, true);
    add("weights: shared experts, routers, streams, Engram projections", others, true);
    if (weights.drafter > 0) add("weights: drafter", as_real(weights.drafter) - uncut, true);
    if (weights.vision > 0) add("weights: vision tower", as_real(weights.vision), true);
    add(packed ? "weights: embedding, packed head" : "weights: embedding, head", ends, true);
    if (request_.carveout_weights) add("of these in the display reserve", -ends, true);
    mapped_ +=
        as_real(weights.total) - uncut + (packed ? 0 : head / 4) - (request_.carveout_weights ? ends : 0);
  }

  void add_caches() {
    const double bytes = cache_capacity(request_).bytes;
    add(is_native(request_) ? "KV caches (exact)" : "KV cache", bytes, true);
    mapped_ += bytes;
    if (!is_native(request_)) return;
    const int64_t engram = model::native_engram_cache_bytes(request_.model, request_.engram_cache_bytes);
    if (engram > 0) add("cache of Engram rows", as_real(engram), true);
  }

  void add_runtime() {
    const Calibration& c = calibration();
    const double workspace =
        is_native(request_)
            ? as_real(model::native_step_bytes(request_.model, split_, request_.max_num_batched_tokens,
                                               request_.max_num_seqs))
            : as_real(request_.max_num_batched_tokens) * c.workspace_bytes_per_row.value;
    const int64_t captured =
        std::accumulate(request_.captured_sizes.begin(), request_.captured_sizes.end(), int64_t{0});
    const double graphs = as_real(captured) * c.graph_bytes_per_row.value;
    if (graphs > 0) add("CUDA graphs", graphs, false);
    add("activation workspace", workspace, false);
    mapped_ += graphs + workspace;
    if (is_native(request_)) {
      const double scratch = as_real(model::native_scratch_bytes(request_.model, split_,
                                                                 {.rows = request_.max_num_batched_tokens,
                                                                  .sequences = request_.max_num_seqs,
                                                                  .context = request_.max_model_len}));
      add("scratch of operations", scratch, false);
      mapped_ += scratch;
      add("system, driver, CUDA context", c.native_system_bytes.value, false);
      return;
    }
    memory_.parts.push_back({"API server", c.api_server_bytes.value, 0, false});
    add("system, driver, CUDA, Python, NCCL", c.system_bytes.value, false);
  }

  void add_pages() {
    const Calibration& c = calibration();
    add("page descriptors", memory_.node / as_real(request_.page_size) * c.page_descriptor_bytes.value, true);
    const bool whole = request_.page_size == kHugePage && !request_.memory_saver;
    const double table = whole ? as_real(request_.page_size) : c.leaf_table_bytes.value;
    add(whole ? "GPU page tables (a whole page each: no memory saver)" : "GPU page tables",
        mapped_ / c.leaf_table_covers_bytes.value * table, false);
  }

  const PlanRequest& request_;
  model::RankSplit split_;
  NodeMemory memory_;
  double mapped_ = 0;
};

}  // namespace

double NodeMemory::used(bool head) const {
  double sum = 0;
  for (const MemoryPart& part : parts) sum += head ? part.head : part.worker;
  return sum;
}

NodeMemory node_memory(const PlanRequest& request) {
  return MemoryPlanner(request).run();
}

double UniformPages::bytes_per_token(int64_t block_size) const {
  return as_real(pages_per_block * page_bytes) / as_real(block_size);
}

UniformPages uniform_pages(const PlanRequest& request) {
  const model::ModelConfig& c = request.model;
  const model::CacheCost cost = model::cache_cost(c);
  const auto ratio_of = [&](int64_t layer) { return c.compress_ratios[static_cast<size_t>(layer)]; };
  int64_t largest = 1;
  for (const int64_t layer : c.kv_source_layer_ids) largest = std::max(largest, ratio_of(layer));
  UniformPages pages;
  pages.page_bytes = std::max<int64_t>(1, request.block_size / largest) * cost.main_record;
  for (const int64_t layer : c.kv_source_layer_ids) {
    const int64_t entries = std::max<int64_t>(1, request.block_size / ratio_of(layer));
    pages.pages_per_block += whole_pages(entries * cost.main_record, pages.page_bytes) +
                             whole_pages(entries * cost.index_record, pages.page_bytes);
  }
  // Window pages hold a power of two of records; the window and the step's rows may straddle one border more.
  int64_t records = 1;
  while (2 * records * cost.window_record <= pages.page_bytes) records *= 2;
  const int64_t rows = c.sliding_window - 1 + request.drafts + 1;
  pages.window_pages = c.all_layers() * (whole_pages(rows, records) + 1);
  pages.request_pages =
      pages.window_pages +
      pages.pages_per_block *
          whole_pages(request.max_model_len + request.max_num_batched_tokens, request.block_size);
  return pages;
}

int64_t least_native_cache_bytes(const PlanRequest& request) {
  PlanRequest bare = request;
  bare.kv_bytes = 0;
  bare.prefix_caching = false;
  const model::NativeCacheBytes bytes = native_cache(bare);
  return bytes.total() - bytes.global + std::llround(native_block_bytes(request));
}

double markov_bytes_elsewhere(const PlanRequest& request) {
  const model::ModelConfig& c = request.model;
  if (is_native(request) || c.num_nextn_predict_layers == 0) return 0;
  constexpr int64_t kBf16Bytes = 2;
  const int64_t here = model::split_for(c, request.ranks).vocabulary;
  return as_real((c.vocab_size - here) * c.dspark_markov_rank * kBf16Bytes);
}

CacheCapacity cache_capacity(const PlanRequest& request) {
  CacheCapacity capacity;
  capacity.growth_per_token = model::cache_cost(request.model).growth_per_token;
  if (is_native(request)) {
    const model::NativeCacheBytes bytes = native_cache(request);
    capacity.accounting = "native blocks (exact)";
    capacity.bytes = as_real(bytes.total());
    capacity.tokens = request.max_num_seqs * request.max_model_len;
    capacity.windows = as_real(request.max_num_seqs);
    const double block = native_block_bytes(request);
    if (request.kv_bytes > 0 && block > 0) {  // sequences share what there is
      capacity.tokens = std::llround(as_real(bytes.global) / block) * model::kNativeBlockTokens;
      capacity.windows = as_real(capacity.tokens) / as_real(request.max_model_len);
    }
    capacity.bytes_per_token = capacity.bytes / as_real(std::max<int64_t>(1, capacity.tokens));
    return capacity;
  }
  const UniformPages pages = uniform_pages(request);
  capacity.accounting = "vLLM uniform pages (calibrated)";
  capacity.bytes = as_real(request.kv_bytes);
  capacity.windows = as_real(request.kv_bytes / pages.page_bytes) / as_real(pages.request_pages);
  capacity.tokens = static_cast<int64_t>(capacity.windows * as_real(request.max_model_len));
  capacity.bytes_per_token = as_real(pages.request_pages * pages.page_bytes) / as_real(request.max_model_len);
  return capacity;
}

}  // namespace spark::ops
