#include "ops/launch/preflight.h"

#include <algorithm>
#include <set>

#include "common/process.h"
#include "common/url_secrets.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/grouped.h"
#include "ops/doctor/live.h"
#include "ops/launch/node_scripts.h"

namespace spark::ops {
namespace {

// About the service that runs now. A start is going to replace it, or refuses because it is there.
const std::set<std::string>& rules_of_running_service() {
  static const std::set<std::string> ids = {
      "service.container",   "service.running", "service.image",   "service.command",
      "service.environment", "service.mounts",  "service.options", "service.guard",
      "memory.events",       "gpu.clock",       "gpu.hang",        "live.hold"};
  return ids;
}

Finding preflight_error(const std::string& rule, const std::string& where, std::string evidence,
                        std::string expected, std::string fix, std::vector<std::string> details = {}) {
  return {rule,           Severity::kError,  {}, where, std::move(evidence), std::move(expected),
          std::move(fix), std::move(details)};
}

void judge_look(const PreflightInput& input, const NodeLook& look, Findings& findings) {
  const ClusterProfile& profile = input.site.profile;
  if (!look.reached) return;  // live.reachable says it
  if (!look.answered && look.problem.find("docker does not answer") == std::string::npos)
    findings.push_back(preflight_error("start.look", look.node, look.problem, "an answer", look.hint));
  if (look.commit != input.local.revision) {
    const bool absent = look.commit.empty();
    findings.push_back(preflight_error(
        "start.commit", look.node,
        absent ? "there is no checkout at " + profile.deployment.path
               : "the checkout is at " + look.commit.substr(0, 12),
        "the revision of this repository, " + input.local.revision.substr(0, 12),
        absent ? "on the node: " + clone_command(profile.deployment) : "spark cluster sync --apply"));
  }
  if (!look.origin.empty() &&
      normalised_origin(look.origin) != normalised_origin(profile.deployment.repository)) {
    const std::string expected = without_url_secrets(profile.deployment.repository);
    findings.push_back(preflight_error("start.origin", look.node,
                                       "the checkout's origin is " + without_url_secrets(look.origin),
                                       expected, "git remote set-url origin " + expected));
  }
  if (input.replace && look.running() && !look.unkeepable.empty())
    findings.push_back(preflight_error(
        "start.restore", look.node,
        "the service that runs could not be started again if its successor fails: " + look.unkeepable,
        "what it takes to restore it", "spark cluster stop --apply, then start without --replace"));
  if (!look.seen.empty() && look.seen != "absent" && !input.replace) {
    const bool container = profile.in_container();
    findings.push_back(
        preflight_error("start.exists", look.node,
                        "there is a " + profile.service_name() + " already (" + look.status + ")", "none",
                        container ? "--replace stops and replaces it; or spark cluster stop --remove --apply"
                                  : "--replace stops and replaces it; or spark cluster stop --apply"));
  }
}

void judge_answer(const PreflightInput& input, const NodeAnswer& answer, Findings& findings) {
  if (answer.outcome != ProbeOutcome::kAnswered) return;
  const Facts& facts = answer.facts;
  if (facts.docker.answers && facts.docker.image_exists == false) {
    const std::string& image = input.site.profile.container.image;
    findings.push_back(preflight_error("start.image", answer.node, "the image " + image + " does not exist",
                                       "the profile's image",
                                       "docker save " + image + " | ssh " + answer.node + " docker load"));
  }
  if (!facts.deployment.changes) return;
  const std::vector<std::string> changes = undeclared_changes(input.site, *facts.deployment.changes);
  if (!changes.empty())
    findings.push_back(preflight_error("start.clean", answer.node, "the checkout was changed",
                                       "what is in the repository, nothing else",
                                       "commit it, or undo it on the node", changes));
}

}  // namespace

LocalState local_state(const Repository& repository) {
  const auto git = [&repository](std::vector<std::string> words) {
    words.insert(words.begin(), {"git", "--no-optional-locks", "-C", repository.root()});
    const ProcessResult result = run_process(words);
    if (result.exit_code != 0)
      throw Error("git cannot read it: " + result.error.substr(0, result.error.find('\n')), repository.root(),
                  "what is started on nodes comes from a git repository");
    return result.output;
  };
  LocalState state;
  state.revision = git({"rev-parse", "HEAD"});
  while (!state.revision.empty() && state.revision.back() == '\n') state.revision.pop_back();
  const std::string status = git({"status", "--porcelain", "--untracked-files=all"});
  for (size_t at = 0; at < status.size();) {
    const size_t end = std::min(status.find('\n', at), status.size());
    state.changes.push_back(status.substr(at, end - at));
    at = end + 1;
  }
  return state;
}

std::vector<std::string> undeclared_changes(const Site& site, const std::vector<std::string>& lines) {
  const std::string root = site.profile.deployment.path + "/";
  std::vector<std::string> left;
  for (const std::string& line : lines) {
    const std::string path = line.size() > 3 ? line.substr(3) : line;
    const bool declared = std::any_of(site.profile.container.mounts.begin(),
                                      site.profile.container.mounts.end(), [&](const Mount& mount) {
                                        if (mount.mode != "rw" || !mount.source.starts_with(root))
                                          return false;
                                        const std::string below = mount.source.substr(root.size());
                                        return path == below || path.starts_with(below + "/");
                                      });
    if (!declared) left.push_back(line);
  }
  return left;
}

Findings judge_preflight(const PreflightInput& input) {
  Findings findings;
  const std::set<std::string>& others = rules_of_running_service();
  const bool runs = std::any_of(input.looks.begin(), input.looks.end(),
                                [](const NodeLook& look) { return look.running(); });
  for (Finding& finding : diagnose_live(input.site, input.answers, {.expect_stopped = true})) {
    if (others.contains(finding.rule)) continue;
    if (finding.rule == "deployment.commit") continue;  // start.commit compares with this repository
    // What the service that is going to be replaced uses now, it will give back.
    const bool its_own = finding.rule == "memory.available" || finding.rule == "gpu.processes" ||
                         finding.rule == "memory.swap-use" || finding.rule == "service.ports";
    if (input.replace && runs && its_own) continue;
    findings.push_back(std::move(finding));
  }
  for (const NodeLook& look : input.looks) judge_look(input, look, findings);
  for (const NodeAnswer& answer : input.answers) judge_answer(input, answer, findings);
  if (const std::string hold = hold_text(input.looks); !hold.empty() && !input.holds_forced)
    findings.push_back(preflight_error("start.hold", {}, "somebody holds the cluster: " + hold, "no hold",
                                       "ask its owner, or --force-hold REASON"));
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

std::string preflight_warnings(const Site& site, const Findings& preflight) {
  Findings shown = diagnose(site, nullptr);
  shown.insert(shown.end(), preflight.begin(), preflight.end());
  shown = grouped_by_node(shown);
  const auto count = std::count_if(shown.begin(), shown.end(), [](const Finding& finding) {
    return finding.severity == Severity::kWarning;
  });
  if (count == 0) return {};
  return std::to_string(count) + (count == 1 ? " warning" : " warnings") +
         " (spark doctor --live --expect-stopped shows " + (count == 1 ? "it)" : "them)");
}

ClusterSituation situation_of(const std::vector<NodeLook>& looks, const std::vector<RankLaunch>& launches) {
  ClusterSituation cluster;
  for (size_t i = 0; i < launches.size(); ++i) {
    const NodeLook& look = looks.at(i);
    cluster.nodes.push_back({launches[i].node, launches[i].head, look.seen != "absent" && !look.seen.empty(),
                             look.running(), look.commit, launches[i].runtime != LaunchRuntime::kContainer});
  }
  return cluster;
}

}  // namespace spark::ops
