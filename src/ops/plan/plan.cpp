#include "ops/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/units.h"

namespace spark::ops {
namespace {

constexpr double kGibibyte = 1024.0 * 1024 * 1024;
// Measurements stop when less than this is left above the steady guard.
constexpr int64_t kMarginGib = 1;
// Settings change by at most their whole; a machine to buy and cable is the last resort.
constexpr double kAnotherMachine = 10;
constexpr int64_t kKvStep = int64_t{1} << 26;
constexpr int64_t kContextStep = 4096;
constexpr int64_t kMinContext = 4096;
constexpr int64_t kRowsStep = 256;

std::string gib(double bytes) {
  return format_fixed(bytes / kGibibyte, 2) + " GiB";
}

std::string plain(int64_t value) {
  return format_count(static_cast<uint64_t>(std::max<int64_t>(0, value)));
}

bool native_engine(const PlanRequest& request) {
  return request.engine == EngineKind::kNative;
}

double needed_available(const PlanRequest& request) {
  return static_cast<double>(std::max(request.guard_gib + kMarginGib, request.startup_guard_gib)) * kGibibyte;
}

bool fits(const PlanRequest& request) {
  return reasons_against(request).empty();
}

// The largest value of a setting, from `high` down in steps, with which the request fits.
using Setter = std::function<void(PlanRequest&, int64_t)>;
std::optional<int64_t> largest_that_fits(const PlanRequest& request, const Setter& set, int64_t low,
                                         int64_t high, int64_t step) {
  const auto good = [&](int64_t value) {
    PlanRequest changed = request;
    set(changed, value);
    return fits(changed);
  };
  int64_t below = (low + step - 1) / step, above = high / step;
  if (above < below || !good(below * step)) return {};
  while (below < above) {
    const int64_t middle = (below + above + 1) / 2;
    if (good(middle * step)) {
      below = middle;
    } else {
      above = middle - 1;
    }
  }
  return below * step;
}

class ChangeFinder {
 public:
  explicit ChangeFinder(const PlanRequest& request) : request_(request) {}

  std::vector<Change> run() {
    saver();
    cache();
    context();
    sequences();
    chunk();
    node();
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.size < b.size; });
    return std::move(changes_);
  }

 private:
  void add(const char* setting, int64_t from, int64_t to, std::string effect) {
    const double size =
        std::abs(1 - static_cast<double>(to) / static_cast<double>(std::max<int64_t>(1, from)));
    changes_.push_back({setting, std::to_string(from), std::to_string(to), size, std::move(effect)});
  }

  void lower(const char* setting, int64_t from, const Setter& set, int64_t low, int64_t step,
             const char* effect) {
    const auto value = largest_that_fits(request_, set, low, from - 1, step);
    if (value) add(setting, from, *value, effect);
  }

  void saver() {
    if (request_.page_size == 4096 || request_.memory_saver) return;
    PlanRequest changed = request_;
    changed.memory_saver = true;
    if (!fits(changed)) return;
    changes_.push_back({"host.kernel.memory_saver_required", "false", "true", 0,
                        "page tables are packed; the memory saver must be installed"});
  }

  // Sequences then share what there is; what nobody needs at the same time is not missed.
  void native_cache(const Setter& set) {
    const auto now = static_cast<int64_t>(cache_capacity(request_).bytes);
    const int64_t least = least_native_cache_bytes(request_);
    const auto value = largest_that_fits(request_, set, least, now - 1, kKvStep);
    if (!value) return;
    PlanRequest changed = request_;
    changed.kv_bytes = *value;
    const CacheCapacity capacity = cache_capacity(changed);
    add("engine.kv_cache_memory_bytes", now, *value,
        "sequences share " + plain(capacity.tokens) +
            " tokens of cache; the youngest is paused when it is full");
  }

  void cache() {
    const Setter set = [](PlanRequest& request, int64_t value) { request.kv_bytes = value; };
    if (native_engine(request_)) return native_cache(set);
    const UniformPages pages = uniform_pages(request_);
    const int64_t window = pages.request_pages * pages.page_bytes;
    const auto lower_value = largest_that_fits(request_, set, window, request_.kv_bytes - 1, kKvStep);
    if (lower_value) {
      PlanRequest changed = request_;
      changed.kv_bytes = *lower_value;
      const CacheCapacity capacity = cache_capacity(changed);
      add("engine.kv_cache_memory_bytes", request_.kv_bytes, *lower_value,
          plain(capacity.tokens) + " tokens of cache, " + format_fixed(capacity.windows, 2) +
              " full windows");
      return;
    }
    if (window <= request_.kv_bytes) return;
    PlanRequest changed = request_;
    changed.kv_bytes = window;
    if (fits(changed)) {
      add("engine.kv_cache_memory_bytes", request_.kv_bytes, window,
          "one request of the longest length fits");
    }
  }

  void context() {
    lower(
        "engine.max_model_len", request_.max_model_len,
        [](PlanRequest& request, int64_t value) { request.max_model_len = value; }, kMinContext, kContextStep,
        "shorter requests");
  }

  void sequences() {
    lower(
        "engine.max_num_seqs", request_.max_num_seqs,
        [](PlanRequest& request, int64_t value) {
          request.max_num_seqs = value;
          const int64_t rows = value * (1 + request.drafts);
          std::erase_if(request.captured_sizes, [&](int64_t size) { return size > rows; });
        },
        1, 1, "fewer requests at once");
  }

  void chunk() {
    lower(
        "engine.max_num_batched_tokens", request_.max_num_batched_tokens,
        [](PlanRequest& request, int64_t value) { request.max_num_batched_tokens = value; }, kRowsStep,
        kRowsStep, "smaller prefill chunks, slower prefill");
  }

  void node() {
    if (request_.ranks >= 4) return;
    PlanRequest changed = request_;
    changed.ranks = request_.ranks < 3 ? 3 : 4;
    changed.transport = nullptr;
    if (!fits(changed)) {
      changed.ranks = 4;
      if (!fits(changed)) return;
    }
    add("engine.nodes", request_.ranks, changed.ranks, "every rank holds less of the weights");
    changes_.back().size = kAnotherMachine;
  }

  const PlanRequest& request_;
  std::vector<Change> changes_;
};

std::string node_called(const PlanRequest& request, bool head) {
  if (request.nodes.empty()) return head ? "the head" : "a worker";
  return request.nodes[head ? 0 : 1];
}

std::vector<int64_t> default_streams(int64_t most) {
  std::vector<int64_t> streams;
  for (int64_t n = 1; n < most; n *= 2) streams.push_back(n);
  if (most >= 1) streams.push_back(most);
  return streams;
}

std::vector<int64_t> default_prompts(int64_t longest) {
  std::vector<int64_t> prompts;
  for (const int64_t length : {32768, 262144, 512000, 1048576}) {
    if (length <= longest) prompts.push_back(length);
  }
  if (prompts.empty()) prompts.push_back(longest);
  return prompts;
}

}  // namespace

std::vector<std::string> reasons_against(const PlanRequest& request) {
  std::vector<std::string> reasons;
  const NodeMemory memory = node_memory(request);
  const double needed = needed_available(request);
  for (const bool head : {true, false}) {
    if (!head && request.ranks == 1) continue;
    const double left = memory.available(head);
    if (left >= needed) continue;
    reasons.push_back(
        node_called(request, head) +
        (left < 0 ? " would lack " + gib(-left) + " of memory" : " would be left with " + gib(left)) + "; " +
        gib(needed) + " must stay available (start guard " + std::to_string(request.startup_guard_gib) +
        " GiB, steady guard " + std::to_string(request.guard_gib) + " GiB and " + std::to_string(kMarginGib) +
        ")");
  }
  if (native_engine(request)) {
    double process = 0;
    for (const MemoryPart& part : memory.parts) {
      const bool own = part.name.starts_with("weights") || part.name.starts_with("KV") ||
                       part.name.starts_with("activation") || part.name.starts_with("cache");
      if (own) process += part.head;
    }
    const double limit = static_cast<double>(request.service_memory_max_gib) * kGibibyte;
    if (limit > 0 && process > limit) {
      reasons.push_back("the engine takes " + gib(process) + ", its unit may take " + gib(limit) +
                        " (engine.memory_max_gib)");
    }
    return reasons;
  }
  const UniformPages pages = uniform_pages(request);
  if (pages.request_pages > request.kv_bytes / pages.page_bytes) {
    reasons.push_back("a request of " + plain(request.max_model_len) + " tokens takes " +
                      gib(static_cast<double>(pages.request_pages * pages.page_bytes)) +
                      " of cache; there are " + gib(static_cast<double>(request.kv_bytes)) +
                      ", and the server would refuse to start");
  }
  return reasons;
}

Plan make_plan(const PlanRequest& request, const PlanOptions& options) {
  const Workload* workload = find_workload(options.workload);
  if (workload == nullptr) {
    const auto guess = nearest(options.workload, workload_names());
    throw Error("\"" + options.workload + "\" is not a workload", "plan",
                guess ? "did you mean \"" + *guess + "\"?" : "prose and code are known");
  }
  if (request.max_model_len < 1 || request.max_num_seqs < 1 || request.max_num_batched_tokens < 1 ||
      request.kv_bytes < 0 ||
      (request.engine == EngineKind::kVllm && (request.kv_bytes < 1 || request.block_size < 1))) {
    throw Error("sizes must be positive", request.profile,
                "correct max_model_len, max_num_seqs, "
                "max_num_batched_tokens, kv_cache_memory_bytes and block_size");
  }
  Plan plan;
  plan.request = request;
  plan.options = options;
  plan.memory = node_memory(request);
  plan.needed_available = needed_available(request);
  plan.capacity = cache_capacity(request);
  if (plan.options.streams.empty()) plan.options.streams = default_streams(request.max_num_seqs);
  if (plan.options.prompts.empty()) plan.options.prompts = default_prompts(request.max_model_len);
  const SpeedModel speed(request);
  for (const int64_t streams : plan.options.streams) {
    if (streams < 1 || streams > request.max_num_seqs) {
      throw Error(std::to_string(streams) + " streams; the profile admits 1 to " +
                      std::to_string(request.max_num_seqs),
                  "plan", "raise engine.max_num_seqs or ask for fewer streams");
    }
    plan.steps.push_back(speed.step(*workload, streams, plan.options.context));
  }
  for (const int64_t prompt : plan.options.prompts) {
    if (prompt < 1 || prompt > request.max_model_len) {
      throw Error("a prompt of " + std::to_string(prompt) + " tokens; the profile admits " +
                      std::to_string(request.max_model_len),
                  "plan", "raise engine.max_model_len or ask for a shorter prompt");
    }
    plan.prefills.push_back(speed.prefill(prompt));
  }
  const std::vector<std::string> reasons = reasons_against(request);
  for (const std::string& reason : reasons) plan.misfits.push_back({reason, {}});
  // Changes are sought for all reasons together: a change that cures one of two is no cure.
  if (!reasons.empty()) plan.misfits.front().changes = ChangeFinder(request).run();
  if (const int64_t end = request.model.max_position_embeddings; end > 0 && request.max_model_len > end) {
    const std::string window = format_count(static_cast<uint64_t>(request.max_model_len));
    const std::string model_end = format_count(static_cast<uint64_t>(end));
    plan.misfits.push_back({"the window of " + window + " tokens is longer than the model's " + model_end,
                            {{"engine.max_model_len", window, model_end, 0, "the model's whole window"}}});
  }
  return plan;
}

}  // namespace spark::ops
