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

#include "ops/probe/facts.h"
#include "ops/site/finding.h"
#include "ops/site/site.h"

namespace spark::ops {

enum class ProbeOutcome {
  kAnswered,
  kUnreachable,  // no session with the node
  kFailed,       // a session, but the script could not be run to its end
};

struct NodeAnswer {
  std::string node;
  ProbeOutcome outcome = ProbeOutcome::kAnswered;
  std::string problem = {};  // of the other two, one line
  std::string hint = {};
  Facts facts = {};
  Faults faults = {};  // of reading the answer
  // When the script was sent and its answer complete, on this machine's clock (seconds since 1970); empty for
  // recorded answers.
  std::optional<double> sent_s = {}, received_s = {};
};

// What a node answered, as text, becomes facts.
NodeAnswer read_answer(const std::string& node, std::string_view answer);

struct LiveOptions {
  bool expect_stopped = false;  // before the first start: that nothing serves is no finding
  // The recovery policy's files as reviewed, path -> SHA-256. Empty: not judged.
  std::map<std::string, std::string> policy_files = {};
};

// Findings of the live rules only, warnings first. The site must have no error that its nodes or profile have
// (diagnose() first).
Findings diagnose_live(const Site& site, const std::vector<NodeAnswer>& answers,
                       const LiveOptions& options = {});

// Any node that could not be reached?
bool any_unreachable(const std::vector<NodeAnswer>& answers);

// `sudo e4defrag -v FILE` for every shard that is not at its best extent count, per node under a comment
// line.
std::string fragmentation_commands(const std::vector<NodeAnswer>& answers);

}  // namespace spark::ops
