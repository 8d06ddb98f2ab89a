// cluster sync: every node's checkout to one published revision, or none.
#include <algorithm>
#include <sstream>

#include "common/process.h"
#include "common/url_secrets.h"
#include "ops/doctor/live.h"
#include "ops/launch/cluster.h"
#include "ops/launch/preflight.h"
#include "ops/launch/sync.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string git_here(const Repository& repository, std::vector<std::string> words, double timeout_s = 60) {
  words.insert(words.begin(), {"git", "-C", repository.root()});
  const ProcessResult result =
      run_process(words, {.environment = {"GIT_TERMINAL_PROMPT=0"}, .timeout_s = timeout_s});
  if (result.exit_code != 0)
    throw Error("git " + words[3] +
                    " failed: " + text_without_url_secrets(result.error.substr(0, result.error.find('\n'))),
                repository.root());
  std::string text = result.output;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Branches of the origin that contain the revision; its symbolic HEAD is none.
std::vector<std::string> publishing_branches(const Repository& repository, const std::string& revision) {
  std::istringstream lines(git_here(
      repository, {"branch", "--remotes", "--contains", revision, "--format=%(refname:lstrip=2) %(symref)"}));
  std::vector<std::string> branches;
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = line.find(' ');
    const bool symbolic = blank != std::string::npos && blank + 1 < line.size();
    if (line.starts_with("origin/") && !symbolic) branches.push_back(line.substr(7, blank - 7));
  }
  return branches;
}

}  // namespace

std::string resolve_revision(const Repository& repository, const std::string& wanted) {
  return git_here(repository,
                  {"rev-parse", "--verify", "--quiet", (wanted.empty() ? "HEAD" : wanted) + "^{commit}"});
}

void require_published(const Repository& repository, const Site& site, const std::string& revision) {
  git_here(repository, {"fetch", "--quiet", "--prune", "origin"}, 120);
  const std::vector<std::string> branches = publishing_branches(repository, revision);
  const auto& wanted = site.profile.deployment.branch;
  const bool good =
      wanted ? std::find(branches.begin(), branches.end(), *wanted) != branches.end() : !branches.empty();
  if (good) return;
  throw Error("revision " + revision.substr(0, 12) + " is not on " +
                  (wanted ? "the origin's branch " + *wanted : std::string("any branch of the origin")),
              "cluster sync", "git push it first: nodes fetch from the origin");
}

Findings judge_sync(const Site& site, const std::vector<NodeLook>& looks) {
  Findings findings;
  const auto refuse = [&findings](const NodeLook& look, const std::string& evidence,
                                  const std::string& expected, const std::string& fix) {
    findings.push_back({"sync.checkout", Severity::kError, {}, look.node, evidence, expected, fix});
  };
  const DeploymentSpec& deployment = site.profile.deployment;
  for (const NodeLook& look : looks) {
    if (!look.reached) {
      refuse(look, look.problem, "an answer", look.hint);
    } else if (look.commit.empty()) {
      refuse(look, "there is no checkout at " + deployment.path, "a clone",
             "on the node: " + clone_command(deployment));
    } else if (normalised_origin(look.origin) != normalised_origin(deployment.repository)) {
      const std::string expected = without_url_secrets(deployment.repository);
      refuse(look, "the checkout's origin is " + without_url_secrets(look.origin), expected,
             "git remote set-url origin " + expected);
    } else if (const auto changes = undeclared_changes(site, look.changes); !changes.empty()) {
      findings.push_back({"sync.clean",
                          Severity::kError,
                          {},
                          look.node,
                          "the checkout was changed",
                          "what is in the repository, nothing else",
                          "commit it, or undo it on the node",
                          changes});
    }
  }
  return findings;
}

ClusterOutcome ClusterCommand::sync() try {
  const LocalState local = local_state(repository_);
  if (!local.changes.empty())
    fail(ClusterOutcome::kFailed,
         "the repository here has changes that are not committed: " + local.changes[0] +
             "\n  commit or undo them: nodes get what is published");
  options_.revision = resolve_revision(repository_, options_.revision);
  require_published(repository_, site_, options_.revision);
  lock();
  recover_earlier(RecoveryAim::kRestoreService, "sync");
  const auto actions = actions_for(header_for("sync"));
  const std::vector<NodeLook> looks = actions->look(stop_);
  if (stop_.stop_requested()) return ClusterOutcome::kInterrupted;
  refuse_holds(looks);
  const Findings findings = judge_sync(site_, looks);
  if (!findings.empty()) {
    refuse_findings(findings);
    const bool away =
        std::any_of(looks.begin(), looks.end(), [](const NodeLook& look) { return !look.reached; });
    fail(away ? ClusterOutcome::kUnreachable : ClusterOutcome::kFailed, "nothing was changed");
  }
  return run("sync", plan_sync(situation_of(looks, actions->launches()), options_.revision));
} catch (const Failure& failure) {
  return failure.outcome;
}

}  // namespace spark::ops
