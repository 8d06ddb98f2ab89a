// The live doctor: Site x Facts of every node -> findings. Pure; gathering the facts is ops/probe's business.
//
//   std::vector<NodeAnswer> answers = gather(...);                   // one per node, in any order
//   Findings findings = diagnose_live(site, answers, {.policy_files = recovery_digests});
//   std::cout << findings_text(findings, "; live cluster matches");
//
// A node that did not answer is one finding that says whether the way to it or the command failed; everything
// that needs its facts is left out, and the others are judged as usual. Rules are in the one table of rule.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/probe/answer.h"
#include "ops/site/finding.h"
#include "ops/site/site.h"

namespace spark::ops {

struct LiveOptions {
  bool expect_stopped = false;  // before the first start: that nothing serves is no finding
  // The recovery policy's files as reviewed, path -> SHA-256. Empty: not judged.
  std::map<std::string, std::string> policy_files = {};
  // The commit of the repository that the site was read from; empty: nodes are not compared with it.
  std::string revision = {};
};

// Findings of the live rules only, warnings first. The site must have no error that its nodes or profile have
// (diagnose() first).
Findings diagnose_live(const Site& site, const std::vector<NodeAnswer>& answers,
                       const LiveOptions& options = {});

// Some rules about one machine by itself, by id, for `spark host check`. They need no site.
Findings diagnose_node(const NodeAnswer& answer, const std::vector<std::string>& rule_ids);

// What makes a node's checkout and the programs that a start needs there; for the node's own shell.
std::string clone_command(const DeploymentSpec& deployment);

// Any node that could not be reached?
bool any_unreachable(const std::vector<NodeAnswer>& answers);

// `sudo e4defrag -v FILE` for every shard that is not at its best extent count, per node under a comment
// line.
std::string fragmentation_commands(const std::vector<NodeAnswer>& answers);

}  // namespace spark::ops
