#include <cmath>

#include "common/table.h"
#include "common/units.h"
#include "model/layer_plan.h"
#include "ops/plan/plan.h"

namespace spark::ops {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kMs = 1000;

std::string in_gib(double bytes) {
  return format_fixed(bytes / kGiB, 2);
}

std::string thousands(double value) {
  return format_count(static_cast<uint64_t>(value < 0 ? 0 : std::llround(value)));
}

bool fitted(const Plan& plan) {
  return plan.request.engine == EngineKind::kVllm;
}

std::string heading(const Plan& plan) {
  const PlanRequest& r = plan.request;
  std::string text = r.profile + ": " + (fitted(plan) ? "vLLM" : "native engine") + " on " +
                     std::to_string(r.ranks) + (r.ranks == 1 ? " node, " : " nodes, ") +
                     std::to_string(r.page_size / 1024) + " KiB pages";
  if (r.page_size > 4096) text += r.memory_saver ? " with memory saver" : " without memory saver";
  return text + ", " + thousands(static_cast<double>(r.max_model_len)) + " tokens a request, " +
         std::to_string(r.max_num_seqs) + " at once\n";
}

std::string memory_text(const Plan& plan) {
  Table table({{"GiB per node"}, {"head", Align::kRight}, {"worker", Align::kRight}, {""}});
  for (const MemoryPart& part : plan.memory.parts) {
    table.add({part.name, in_gib(part.head), in_gib(part.worker),
               part.exact     ? ""
               : fitted(plan) ? "calibrated"
                              : "estimated"});
  }
  table.add({"total", in_gib(plan.memory.used(true)), in_gib(plan.memory.used(false)), ""});
  table.add({"memory of the node", in_gib(plan.memory.node), in_gib(plan.memory.node), "assumed"});
  table.add(
      {"left available", in_gib(plan.memory.available(true)), in_gib(plan.memory.available(false)), ""});
  table.add({"must stay available", in_gib(plan.needed_available), in_gib(plan.needed_available), "guards"});
  return table.text();
}

std::string cache_text(const Plan& plan) {
  const CacheCapacity& c = plan.capacity;
  return "KV cache: " + thousands(static_cast<double>(c.tokens)) + " tokens, " + format_fixed(c.windows, 2) +
         " full windows, " + format_fixed(c.bytes_per_token, 0) + " B a token (" + c.accounting +
         "; the model's own growth is " + format_fixed(c.growth_per_token, 0) + " B).\n";
}

std::string speed_text(const Plan& plan) {
  Table steps({{"streams", Align::kRight},
               {"rows", Align::kRight},
               {"GB read", Align::kRight},
               {fitted(plan) ? "step ms" : "floor ms", Align::kRight},
               {"of it collectives", Align::kRight},
               {"tok/s", Align::kRight}});
  for (const StepTime& step : plan.steps) {
    steps.add({std::to_string(step.streams), format_fixed(step.rows, 1), format_fixed(step.bytes / 1e9, 2),
               format_fixed(step.total_s() * kMs, 1), format_fixed(step.collective_s * kMs, 1),
               step.tokens_per_s > 0 ? format_fixed(step.tokens_per_s, 0) : "-"});
  }
  Table prefills({{"prompt", Align::kRight}, {"seconds", Align::kRight}, {"tok/s", Align::kRight}});
  for (const PrefillTime& prefill : plan.prefills) {
    prefills.add({thousands(static_cast<double>(prefill.tokens)), format_fixed(prefill.total_s(), 1),
                  thousands(prefill.tokens_per_s())});
  }
  return "Decode, " + plan.options.workload + ", " + thousands(static_cast<double>(plan.options.context)) +
         " tokens before the step:\n" + steps.text() + "\nPrefill of one prompt:\n" + prefills.text();
}

std::vector<const Constant*> used_constants(const Plan& plan) {
  const Calibration& c = calibration();
  const bool native = !fitted(plan);
  const bool ring = plan.request.ranks > 3;
  std::vector<const Constant*> used;
  for (const Constant* entry : c.all()) {
    const bool native_only = entry == &c.native_system_bytes || entry == &c.fp8_flops_per_s;
    const bool shared = entry == &c.stream_bytes_per_s || entry == &c.node_bytes ||
                        entry == &c.link_bytes_per_s || entry == &c.page_descriptor_bytes ||
                        entry == &c.leaf_table_bytes || entry == &c.leaf_table_covers_bytes;
    if (native ? !(native_only || shared) : native_only) continue;
    const bool one_shot = plan.request.transport == nullptr || plan.request.transport->one_shot;
    if (entry == &c.nccl_latency_s && one_shot) continue;
    if (entry == &c.direct_latency_s && (ring || !one_shot)) continue;
    if (entry == &c.ring_latency_s && (!ring || !one_shot)) continue;
    used.push_back(entry);
  }
  return used;
}

std::string value_text(const Constant& constant) {
  const std::string unit = constant.unit;
  if (unit == "B" && constant.value >= kGiB) return in_gib(constant.value) + " GiB";
  if (unit == "B" && constant.value >= 1048576) return format_fixed(constant.value / 1048576, 2) + " MiB";
  if (unit == "B" && constant.value >= 1024) return format_fixed(constant.value / 1024, 0) + " KiB";
  if (unit == "B/s") return format_fixed(constant.value / 1e9, 1) + " GB/s";
  if (unit == "FLOP/s") return format_fixed(constant.value / 1e12, 0) + " TFLOP/s";
  if (unit == "s") return format_fixed(constant.value * 1e6, 0) + " us";
  if (unit.empty()) return format_fixed(constant.value, 2);
  return format_fixed(constant.value, 0) + " " + unit;
}

std::string assumptions(const Plan& plan) {
  const Workload& workload = *find_workload(plan.options.workload);
  std::string text = "Assumptions:\n";
  for (const Constant* entry : used_constants(plan)) {
    text += "  " + std::string(entry->name) + ": " + value_text(*entry) + " (" + entry->source + ")\n";
  }
  if (plan.request.drafts > 0 && fitted(plan)) {
    text += "  tokens per stream and step: " + format_fixed(workload.tokens_per_step, 2) + " (" +
            workload.source + ")\n";
  }
  text +=
      fitted(plan)
          ? "  weights, cache records and operations: exact, from the model's shapes\n"
          : "  times are floors at the device's ceilings, with independent routing; nothing is calibrated\n"
            "  weights, caches and operations: exact, from the model's shapes\n";
  return text;
}

std::string verdict(const Plan& plan) {
  if (plan.misfits.empty()) return "It fits.\n";
  std::string text = "It does not fit:\n";
  for (const Misfit& misfit : plan.misfits) text += "  " + misfit.what + "\n";
  const auto& changes = plan.misfits.front().changes;
  if (changes.empty()) return text + "No single change of the profile makes it fit.\n";
  text += "The smallest change that makes it fit";
  for (size_t i = 0; i < changes.size(); ++i) {
    const Change& change = changes[i];
    text += i == 0 ? ":\n" : i == 1 ? "Or one of these:\n" : "";
    text += "  " + change.setting + ": " + change.from + " -> " + change.to + " (" + change.effect + ")\n";
  }
  return text;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  return heading(plan) + "\n" + memory_text(plan) + "\n" + cache_text(plan) + "\n" + speed_text(plan) + "\n" +
         assumptions(plan) + "\n" + verdict(plan);
}

Json plan_json(const Plan& plan) {
  const PlanRequest& r = plan.request;
  Json json;
  json["profile"] = r.profile;
  json["engine"] = fitted(plan) ? "vllm" : "native";
  json["nodes"] = r.ranks;
  json["page_size"] = r.page_size;
  json["fits"] = plan.misfits.empty();
  Json parts = Json::array();
  for (const MemoryPart& part : plan.memory.parts) {
    parts.push_back({{"name", part.name},
                     {"head_bytes", std::llround(part.head)},
                     {"worker_bytes", std::llround(part.worker)},
                     {"exact", part.exact}});
  }
  json["memory"] = {{"parts", std::move(parts)},
                    {"node_bytes", std::llround(plan.memory.node)},
                    {"available_head_bytes", std::llround(plan.memory.available(true))},
                    {"available_worker_bytes", std::llround(plan.memory.available(false))},
                    {"needed_available_bytes", std::llround(plan.needed_available)}};
  json["cache"] = {{"accounting", plan.capacity.accounting},
                   {"bytes", std::llround(plan.capacity.bytes)},
                   {"tokens", plan.capacity.tokens},
                   {"full_windows", plan.capacity.windows},
                   {"bytes_per_token", plan.capacity.bytes_per_token},
                   {"growth_per_token", plan.capacity.growth_per_token}};
  json["workload"] = plan.options.workload;
  json["steps"] = Json::array();
  for (const StepTime& step : plan.steps) {
    Json entry = {{"streams", step.streams},
                  {"context", plan.options.context},
                  {"rows", step.rows},
                  {"bytes", std::llround(step.bytes)},
                  {"step_ms", step.total_s() * kMs},
                  {"collective_ms", step.collective_s * kMs},
                  {"is_floor", !fitted(plan)}};
    entry["tokens_per_s"] = step.tokens_per_s > 0 ? Json(step.tokens_per_s) : Json();
    json["steps"].push_back(std::move(entry));
  }
  json["prefill"] = Json::array();
  for (const PrefillTime& prefill : plan.prefills) {
    json["prefill"].push_back({{"tokens", prefill.tokens},
                               {"seconds", prefill.total_s()},
                               {"tokens_per_s", prefill.tokens_per_s()},
                               {"is_floor", !fitted(plan)}});
  }
  json["assumptions"] = Json::array();
  for (const Constant* entry : used_constants(plan)) {
    json["assumptions"].push_back(
        {{"name", entry->name}, {"value", entry->value}, {"unit", entry->unit}, {"source", entry->source}});
  }
  json["misfits"] = Json::array();
  for (const Misfit& misfit : plan.misfits) {
    Json changes = Json::array();
    for (const Change& change : misfit.changes) {
      changes.push_back(
          {{"setting", change.setting}, {"from", change.from}, {"to", change.to}, {"effect", change.effect}});
    }
    json["misfits"].push_back({{"what", misfit.what}, {"changes", std::move(changes)}});
  }
  return json;
}

}  // namespace spark::ops
