#include "ops/launch/node_look.h"

#include "common/units.h"
#include "common/url_secrets.h"
#include "ops/launch/node_scripts.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string gib_text(const std::string& kib) {
  const auto number = whole_number(kib);
  return number ? format_fixed(static_cast<double>(*number) / (1 << 20), 2) + " GiB" : "unknown";
}

// What stands in a node's own words: the last line of its standard error. A tool may name its origin there.
std::string complaint(const RemoteResult& result) {
  if (result.outcome != RemoteOutcome::kExited) return result.describe();
  std::string text = result.error;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return result.describe();
  return text_without_url_secrets(text.substr(text.rfind('\n') + 1));
}

// What a guard leaves behind, or says, that has not decided to end.
bool goes_on(const std::string& guard_state) {
  return guard_state == "watching" || guard_state == "waiting";
}

}  // namespace

std::string NodeLook::guard_value(const std::string& key) const {
  const auto found = guard.find(key);
  return found == guard.end() ? std::string() : found->second;
}

std::string NodeLook::killed_by_guard() const {
  const std::string state = guard_value("state");
  if (guard_alive || (state != "killed" && state != "kill-failed")) return {};
  return guard_value("reason") + ", " + gib_text(guard_value("available_kib")) + " available, threshold " +
         gib_text(guard_value("threshold_kib"));
}

std::string NodeLook::guard_text() const {
  if (guard_alive) {
    return std::string(guarded() ? "active" : "waiting") + " (" + guard_value("phase") + ", below " +
           gib_text(guard_value("threshold_kib")) + ")";
  }
  if (const std::string killed = killed_by_guard(); !killed.empty()) return "killed it: " + killed;
  const std::string state = guard_value("state");
  if (state == "gave-up") return "gave up: " + guard_value("reason");
  if (goes_on(state)) return "gone: it was " + state + " and did not end by itself";
  return "inactive";
}

NodeLook read_look(const std::string& node, const RemoteResult& result) {
  NodeLook look;
  look.node = node;
  look.reached = result.reached() && !(result.outcome == RemoteOutcome::kTimedOut && !result.started);
  look.answered = result.ok();
  if (!result.ok()) {
    look.problem = complaint(result);
    look.hint = result.hint();
  }
  const std::map<std::string, std::string> values = read_values(result.output);
  const auto text = [&values](const char* key) {
    const auto found = values.find(key);
    return found == values.end() ? std::string() : found->second;
  };
  look.seen = text("seen");
  look.id = text("id");
  look.exit_code = text("code");
  look.oom_killed = text("oom") == "true";
  look.since = text("since");
  look.image_id = text("image_id");
  look.tag = text("tag");
  look.status = text("status");
  look.commit = text("commit");
  look.origin = text("origin");
  look.kept = text("kept");
  look.unkeepable = text("unkeepable");
  look.guard_alive = text("guard_alive") == "1";
  look.guard_unit = text("guard_unit");
  look.available_kib = whole_number(text("available_kib"));
  look.total_kib = whole_number(text("total_kib"));
  for (const auto& [key, value] : values) {
    if (key.starts_with("guard.")) look.guard[key.substr(6)] = value;
    if (key.starts_with("file.")) look.files[key.substr(5)] = value;
    if (key.starts_with("change.")) look.changes.push_back(value);
  }
  return look;
}

std::string hold_text(const std::vector<NodeLook>& looks) {
  for (const NodeLook& look : looks) {
    for (const auto& [name, content] : look.files) {
      if (name != kClaimFile) return name + " on " + look.node + ": " + content;
    }
  }
  return {};
}

ReadinessVerdict judge_readiness(const std::vector<NodeLook>& looks, int unguarded_before) {
  ReadinessVerdict verdict;
  for (const NodeLook& look : looks) {
    if (!look.reached || !look.answered) {
      verdict.unreachable.push_back(look.node + ": " + look.problem);
      continue;
    }
    if (!look.running()) {
      const std::string killed = look.killed_by_guard();
      verdict.failure = look.node + ": the service ended (exit code " +
                        (look.exit_code.empty() ? "unknown" : look.exit_code) +
                        (look.oom_killed ? ", killed for memory by the kernel" : "") + ")" +
                        (killed.empty() ? "" : "; its memory guard killed it: " + killed);
      return verdict;
    }
    if (!look.guarded()) {
      verdict.unguarded = look.node + ": the service runs without a guard (" + look.guard_text() + ")";
      if (goes_on(look.guard_value("state")) && unguarded_before + 1 < kUnguardedLooks) continue;
      verdict.failure = verdict.unguarded;
      return verdict;
    }
  }
  verdict.all_there = verdict.unreachable.empty() && verdict.unguarded.empty();
  return verdict;
}

}  // namespace spark::ops
