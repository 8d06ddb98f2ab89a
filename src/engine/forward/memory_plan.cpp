#include "engine/forward/memory_plan.h"

#include <algorithm>
#include <array>

#include "common/memory.h"
#include "common/table.h"
#include "common/units.h"
#include "engine/forward/scratch.h"
#include "engine/kernels/cuda/plan/scratch_plan.h"
#include "model/layer_plan.h"
#include "model/native_memory.h"
#include "model/tensors.h"
#ifdef SPARK_HAS_CUDA_BACKEND
#include "engine/kernels/cuda/cuda_backend.h"
#endif

namespace spark::engine {
namespace {

// Counts what is asked of it and has nothing to give: addresses that nobody may use.
class MeasuringBackend final : public Backend {
 public:
  uint64_t bytes() const { return bytes_; }

  std::string name() const override { return "measuring"; }
  void* allocate(size_t bytes, const std::string&) override {
    bytes_ += bytes;
    return reinterpret_cast<void*>(uintptr_t{64});
  }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override { refuse(); }
  Weight place(const Weight& host) override { return host; }
  ExpertBank place_experts(std::span<const ExpertWeights>) override { return {}; }
  void run_recorded(uint64_t, const std::function<void()>&) override { refuse(); }
  void quantise(const QuantiseArgs&) override { refuse(); }
  void linear(const LinearArgs&) override { refuse(); }
  void grouped_linear(const GroupedLinearArgs&) override { refuse(); }
  void rms_norm(const RmsNormArgs&) override { refuse(); }
  void embed(const EmbedArgs&) override { refuse(); }
  void mhc_mix(const MhcMixArgs&) override { refuse(); }
  void mhc_collapse(const MhcCollapseArgs&) override { refuse(); }
  void mhc_expand(const MhcExpandArgs&) override { refuse(); }
  void stream_mean(const StreamMeanArgs&) override { refuse(); }
  void gather_rows(const GatherRowsArgs&) override { refuse(); }
  void engram_dequantise(const EngramDequantiseArgs&) override { refuse(); }
  void engram_inject(const EngramInjectArgs&) override { refuse(); }
  void rope_angles(const RopeAnglesArgs&) override { refuse(); }
  void rope(const RopeArgs&) override { refuse(); }
  void window_write(const WindowWriteArgs&) override { refuse(); }
  void pool_pairs(const PoolPairsArgs&) override { refuse(); }
  void entry_write(const EntryWriteArgs&) override { refuse(); }
  void sparse_attention(const SparseAttentionArgs&) override { refuse(); }
  void index_query(const IndexQueryArgs&) override { refuse(); }
  void index_select(const IndexSelectArgs&) override { refuse(); }
  void route(const RouteArgs&) override { refuse(); }
  void experts(const ExpertsArgs&) override { refuse(); }
  void draft(const DraftArgs&) override { refuse(); }
  void select(const SelectArgs&) override { refuse(); }
  void verify_drafts(const VerifyArgs&) override { refuse(); }

 private:
  static void refuse() { SPARK_CHECK(false && "a measuring backend computes nothing"); }
  uint64_t bytes_ = 0;
};

template <typename Allocate>
uint64_t measured(const Allocate& allocate) {
  MeasuringBackend backend;
  allocate(backend);
  return backend.bytes();
}

struct WeightBytes {
  uint64_t allocated = 0;
  uint64_t mapped = 0;
};

WeightBytes weight_bytes(const model::TensorEntry& tensor, const model::RankSplit& split,
                         const std::string& backend) {
  if (backend == "cuda") return {.allocated = static_cast<uint64_t>(model::native_gpu_bytes(tensor, split))};
  const model::Slice slice = model::slice_of(tensor, split, 0);
  const int64_t whole = tensor.shape[slice.axis];
  const auto bytes = static_cast<uint64_t>(tensor.bytes() / whole * slice.extent);
  const bool is_matrix = tensor.shape.size() == 2;
  const bool is_bf16 = tensor.dtype == model::Dtype::kBf16;
  // The CPU backend lays weights out anew, except BF16 ones; the reference uses all of them as they are.
  const bool stays = is_matrix && (backend == "reference" || is_bf16);
  return stays ? WeightBytes{.mapped = bytes} : WeightBytes{.allocated = bytes};
}

void add_weights(const model::ModelConfig& config, const model::RankSplit& split, const std::string& backend,
                 MemoryPlan& plan) {
  std::array<uint64_t, model::kComponents> allocated{};
  for (const model::TensorEntry& tensor : model::tensor_catalogue(config)) {
    if (!model::native_loads(tensor)) continue;
    const WeightBytes bytes = weight_bytes(tensor, split, backend);
    allocated[static_cast<size_t>(tensor.component)] += bytes.allocated;
    plan.mapped += bytes.mapped;
  }
  for (size_t i = 0; i < allocated.size(); ++i) {
    if (allocated[i] == 0) continue;
    plan.items.push_back(
        {"weights: " + std::string(model::name_of(static_cast<model::Component>(i))), allocated[i]});
  }
}

// The arrays that Decoder and Drafter allocate for a step.
uint64_t step_bytes(const model::ModelConfig& config, const model::RankSplit& split,
                    const CacheLimits& limits, CollectiveDtype sums) {
  const int64_t rows = limits.max_step_rows;
  const int64_t slice = std::min<int64_t>(rows, 64);
  const int64_t hidden = config.hidden_size;
  return measured([&](Backend& backend) {
    const auto bytes = [&](int64_t count) { allocate_array<uint8_t>(backend, count); };
    allocate_block_scratch(backend, config, split, rows, sums);
    allocate_index_scratch(backend, config, rows);
    bytes(2 * 9 * 4 * rows);                        // StepArrays, of all rows and of the decoder's
    bytes(3 * rows * config.qk_rope_head_dim * 4);  // angles
    bytes(rows * config.main_proj_input() * 2);
    // What is gathered from the ranks' parts needs room beside them.
    const bool gathers = split.ranks > 1;
    const int64_t logits = 4 * (split.vocabulary + (gathers ? config.vocab_size : 0));
    bytes(slice * (hidden * 2 + logits));
    if (!config.engram_layer_ids.empty()) {
      allocate_engram_scratch(backend, config, split, rows);
      bytes(static_cast<int64_t>(config.engram_layer_ids.size()) * rows * config.engram_width() * 33 / 32);
    }
    if (config.num_nextn_predict_layers == 0) return;
    const int64_t drafts = limits.max_sequences * config.dspark_block_size;
    allocate_block_scratch(backend, config, split, drafts, sums);
    bytes(drafts * (logits + hidden * 2));
    allocate_quantised(backend, rows, config.main_proj_input());
    allocate_quantised(backend, rows, hidden);
    bytes(rows * (split.main_output + (gathers ? 2 : 1) * hidden + 2 * config.head_dim) * 2);
  });
}

// What the CUDA backend's operations leave allocated after steps of all sizes.
uint64_t cuda_scratch_bytes(const model::ModelConfig& config, const model::RankSplit& split,
                            const CacheLimits& limits) {
  cuda::ScratchModel scratch = {
      .rows = limits.max_step_rows,
      .mix_columns = config.stream_width(),
      .experts = {.top_k = config.num_experts_per_tok,
                  .experts = config.n_routed_experts,
                  .hidden = config.hidden_size,
                  .width = split.expert_width,
                  .shared_width = split.expert_width},
      .drafts = {.rank = config.dspark_markov_rank, .vocab = config.vocab_size},
  };
  for (const model::LayerRole& role : model::make_layer_plan(config).layers) {
    if (!role.runs_indexer()) continue;
    scratch.index_entries = std::max(scratch.index_entries, limits.max_context / role.compress_ratio);
    if (role.is_candidate_source) scratch.candidate_block = config.candidate_block_size;
    if (role.uses_candidates) {
      scratch.restricted_entries = config.candidate_topk_blocks * config.candidate_block_size;
    }
  }
  if (config.num_nextn_predict_layers > 0) {
    scratch.drafts.rows = limits.max_sequences * config.dspark_block_size;
    scratch.draft_experts = scratch.experts;
    scratch.draft_experts.top_k = config.dspark_num_experts_per_tok;
    scratch.draft_experts.experts = config.dspark_n_routed_experts;
  }
  return static_cast<uint64_t>(cuda::most_scratch_bytes(scratch));
}

}  // namespace

uint64_t MemoryPlan::total() const {
  uint64_t sum = 0;
  for (const Item& item : items) sum += item.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  Table table({{"memory of a rank", Align::kLeft}, {"bytes", Align::kRight}, {"", Align::kRight}});
  for (const Item& item : items) table.add({item.name, format_count(item.bytes), format_bytes(item.bytes)});
  table.add({"total", format_count(total()), format_bytes(total())});
  if (mapped > 0) {
    table.add({"beside it, mapped from files", format_count(mapped), format_bytes(mapped)});
  }
  return table.text();
}

void MemoryPlan::check(std::optional<uint64_t> available) const {
  if (!available || total() <= *available) return;
  std::vector<Item> largest = items;
  std::stable_sort(largest.begin(), largest.end(),
                   [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  std::string most;
  for (size_t i = 0; i < std::min<size_t>(3, largest.size()); ++i) {
    most += (i == 0 ? "" : ", ") + largest[i].name + " " + format_bytes(largest[i].bytes);
  }
  throw Error("needs " + format_bytes(total()) + " of memory, " + format_bytes(*available) +
                  " are available; most of it: " + most,
              "memory plan",
              "lower --max-model-len, --max-num-seqs, --kv-cache-memory-bytes, --max-num-batched-tokens or "
              "--engram-cache-mib, use more "
              "ranks, or stop what else uses memory");
}

MemoryPlan plan_memory(const model::ModelConfig& config, const LoadOptions& options, int64_t ranks) {
  const model::RankSplit split = model::split_for(config, ranks);
  MemoryPlan plan;
  add_weights(config, split, options.backend, plan);
  plan.items.push_back({"caches of sequences", measured([&](Backend& backend) {
                          const CachePool pool(backend, cache_shape(config, options.limits));
                        })});
  plan.items.push_back(
      {"arrays of a step", step_bytes(config, split, options.limits,
                                      resolved_collective_dtype(options.collective_dtype, options.backend))});
  if (options.backend == "cuda") {
    plan.items.push_back({"scratch of operations", cuda_scratch_bytes(config, split, options.limits)});
  }
  if (!config.engram_layer_ids.empty()) {
    uint64_t table = 0;
    for (const int64_t rows : config.engram_num_embeddings) {
      const auto record = static_cast<uint64_t>(config.engram_head_dim * 33 / 32);
      table += std::min<uint64_t>(options.engram.cache_bytes, static_cast<uint64_t>(rows) * record);
    }
    plan.items.push_back({"cache of Engram rows", table});
  }
  return plan;
}

std::optional<uint64_t> memory_available_to(const std::string& backend) {
#ifdef SPARK_HAS_CUDA_BACKEND
  if (backend == "cuda") {
    if (const auto own = cuda_free_memory()) return own;
  }
#endif
  (void)backend;
  return available_memory();
}

}  // namespace spark::engine
