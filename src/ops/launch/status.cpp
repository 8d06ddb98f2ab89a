#include "ops/launch/status.h"

#include <algorithm>
#include <set>
#include <utility>

#include "api/prometheus.h"
#include "common/units.h"
#include "ops/launch/head_api.h"

namespace spark::ops {
namespace {

std::string gib_of(const std::optional<int64_t>& kib) {
  return kib ? format_fixed(static_cast<double>(*kib) / (1 << 20), 1) + " GiB" : std::string("unknown");
}

ApiStatus ask_api(const Site& site, const Remote& remote, const std::stop_token& stop) {
  ApiStatus status;
  status.asked = true;
  const RemoteNode head = remote_node(site.nodes, *site.nodes.head());
  HeadApi api(remote, head, site.profile.deployment.ready_url,
              find_api_key(remote, head, api_key_source(site)));
  const ApiAnswer ready = api.get(api.address().path, 3, stop);
  status.healthy = ready.status == 200;
  if (!status.healthy) {
    status.problem = ready.status == 0 ? ready.problem : "answers " + std::to_string(ready.status);
    return status;
  }
  const ApiAnswer metrics = api.get("/metrics", 3, stop);
  if (metrics.status != 200) return status;
  try {
    const api::MetricsPage page = api::parse_metrics(metrics.body);
    status.running = page.sum("vllm:num_requests_running");
    status.waiting = page.sum("vllm:num_requests_waiting");
  } catch (const Error&) {
    // The API answers; how many requests it has is a comfort.
  }
  return status;
}

std::string service_words(const ClusterStatus& status, const NodeLook& look) {
  if (!look.reached) return look.problem;
  if (look.seen.empty()) return look.problem.empty() ? "unknown" : look.problem;
  if (look.seen == "absent") return "not running";
  std::string words = status.service + "|" +
                      (status.container ? look.tag : std::string("process ") + look.id) + "|" +
                      (look.status.empty() ? look.seen : look.status);
  return words;
}

// What systemd users look for, then what the guard itself says.
std::string guard_words(const NodeLook& look) {
  if (!look.reached) return "memguard=unknown";
  return "memguard=" + look.guard_text();
}

std::string more_words(const NodeLook& look) {
  if (!look.reached) return {};
  std::string text = "available=" + gib_of(look.available_kib);
  if (!look.image_id.empty()) text += " image=" + look.image_id.substr(0, 19);
  if (!look.commit.empty()) text += " checkout=" + look.commit.substr(0, 12);
  if (!look.kept.empty()) text += " kept=" + look.kept;
  return text;
}

// Nothing is known of the service of a head that does not answer.
std::string why_not_asked(const ClusterStatus& status) {
  for (const NodeLook& look : status.nodes) {
    if (look.node != status.head) continue;
    if (!look.reached) return status.head + " does not answer";
    if (look.seen.empty()) return "what runs on " + status.head + " is unknown";
  }
  return "nothing runs on " + status.head;
}

Json node_json(const ClusterStatus& status, const NodeLook& look) {
  Json node = {{"node", look.node},
               {"reached", look.reached},
               {"state", look.seen.empty() ? "unknown" : look.seen},
               {"status", look.status},
               {"problem", look.problem},
               {"exit_code", look.exit_code},
               {"oom_killed", look.oom_killed},
               {"id", look.id},
               {"image", look.tag},
               {"image_id", look.image_id},
               {"since", look.since},
               {"commit", look.commit},
               {"kept", look.kept},
               {"guarded", look.guarded()}};
  node["guard"] = Json(look.guard);
  node["guard"]["alive"] = look.guard_alive;
  node["memory_available_kib"] = look.available_kib ? Json(*look.available_kib) : Json();
  node["memory_total_kib"] = look.total_kib ? Json(*look.total_kib) : Json();
  node["head"] = look.node == status.head;
  return node;
}

// "node1: X", "node2: X"  ->  "node1, node2: X"
std::vector<std::string> said_once(const std::vector<std::string>& complaints) {
  std::vector<std::pair<std::string, std::string>> said;  // nodes, what is said of them
  for (const std::string& complaint : complaints) {
    const size_t colon = std::min(complaint.find(": "), complaint.size());
    const std::string node = complaint.substr(0, colon), text = complaint.substr(colon);
    const auto same =
        std::find_if(said.begin(), said.end(), [&](const auto& one) { return one.second == text; });
    if (same == said.end()) {
      said.emplace_back(node, text);
    } else {
      same->first += ", " + node;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [nodes, text] : said) lines.push_back(nodes + text);
  return lines;
}

}  // namespace

bool ClusterStatus::any_unreachable() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const NodeLook& look) { return !look.reached; });
}

bool ClusterStatus::every_node_runs() const {
  return std::all_of(nodes.begin(), nodes.end(), [](const NodeLook& look) { return look.running(); });
}

bool ClusterStatus::serving() const {
  return every_node_runs() && api.healthy && complaints().empty();
}

std::vector<std::string> ClusterStatus::complaints() const {
  std::vector<std::string> list;
  std::set<std::string> images, commits;
  for (const NodeLook& look : nodes) {
    if (!look.reached) {
      list.push_back(look.node + ": " + look.problem + (look.hint.empty() ? "" : "; " + look.hint));
      continue;
    }
    if (look.seen.empty() && !look.problem.empty()) list.push_back(look.node + ": " + look.problem);
    if (look.running() && !look.guarded())
      list.push_back(look.node +
                     ": the service runs WITHOUT a guard; spark cluster stop --apply, then start");
    if (look.running() && look.guarded() && look.guard_value("phase") != "steady" && api.healthy &&
        history.unfinished.empty())
      list.push_back(look.node + ": the API answers, but the guard is still in its startup phase");
    if (const std::string killed = look.killed_by_guard(); !killed.empty() && !look.running())
      list.push_back(look.node + ": the memory guard killed the service: " + killed +
                     "; find out what grew, then spark cluster start --replace --apply");
    else if (look.seen == "stopped" && container && look.exit_code != "0" && look.exit_code != "143")
      list.push_back(look.node + ": the service ended with exit code " + look.exit_code +
                     (look.oom_killed ? ", killed for memory by the kernel" : "") +
                     "; docker logs --tail 50 " + service);
    else if (look.seen == "stopped" && !container)
      list.push_back(look.node + ": the service ended" +
                     (look.exit_code.empty() ? "" : " with exit code " + look.exit_code) +
                     "; spark cluster logs brings its log here and names the file");
    if (!look.image_id.empty()) images.insert(look.image_id);
    if (!look.commit.empty()) commits.insert(look.commit);
  }
  if (images.size() > 1) list.push_back("all nodes: the images differ");
  if (commits.size() > 1) list.push_back("all nodes: the checkouts differ; spark cluster sync --apply");
  return list;
}

ClusterStatus cluster_status(const Site& site, const Repository& repository, const Remote& remote,
                             std::stop_token stop) {
  const RemoteActions actions(site, remote, {});
  ClusterStatus status;
  status.service = site.profile.service_name();
  status.container = site.profile.in_container();
  status.nodes = actions.look(stop);
  status.head = actions.launches().back().node;
  status.history = run_history(launch_folder(repository, status.service));
  status.hold = hold_text(status.nodes);
  for (const NodeLook& look : status.nodes) {
    const auto claim = look.files.find(kClaimFile);
    if (claim != look.files.end()) status.claim = claim->second;
  }
  if (status.nodes.back().running()) status.api = ask_api(site, remote, stop);
  return status;
}

std::string status_text(const ClusterStatus& status) {
  std::string text;
  for (const NodeLook& look : status.nodes) {
    text += look.node + "\t" + service_words(status, look) + "\t" + guard_words(look);
    const std::string more = more_words(look);
    text += (more.empty() ? "" : "\t" + more) + "\n";
  }
  const ApiStatus& api = status.api;
  if (!api.asked) {
    text += "API: not asked, " + why_not_asked(status) + "\n";
  } else {
    text += "API: " + (api.healthy ? std::string("healthy") : "does not answer: " + api.problem);
    if (api.running) text += ", " + format_fixed(*api.running, 0) + " requests running";
    if (api.waiting) text += ", " + format_fixed(*api.waiting, 0) + " waiting";
    text += "\n";
  }
  if (!status.history.at_work.empty())
    text += "at work: " + status.history.at_work + "\n";
  else if (!status.history.unfinished.empty())
    text += "interrupted: " + status.history.unfinished;
  else if (!status.history.last.empty())
    text += "last: " + status.history.last;
  if (!status.claim.empty()) text += "claimed: " + status.claim + "\n";
  if (!status.hold.empty()) text += "held: " + status.hold + "\n";
  for (const std::string& complaint : said_once(status.complaints())) text += "WARN: " + complaint + "\n";
  return text;
}

Json status_json(const ClusterStatus& status) {
  Json nodes = Json::array();
  for (const NodeLook& look : status.nodes) nodes.push_back(node_json(status, look));
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return {{"service", status.service},
          {"serving", status.serving()},
          {"nodes", std::move(nodes)},
          {"api",
           {{"asked", status.api.asked},
            {"healthy", status.api.healthy},
            {"problem", status.api.problem},
            {"running", number(status.api.running)},
            {"waiting", number(status.api.waiting)}}},
          {"at_work", status.history.at_work},
          {"interrupted", status.history.at_work.empty() ? status.history.unfinished : std::string()},
          {"last", status.history.last},
          {"claim", status.claim},
          {"hold", status.hold},
          {"complaints", status.complaints()}};
}

}  // namespace spark::ops
