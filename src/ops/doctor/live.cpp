#include "ops/doctor/live.h"

#include <algorithm>

#include "common/url_secrets.h"
#include "ops/doctor/live_context.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

PathEnd path_end(const Cable& cable, size_t number, const CablePath& path, bool at_a) {
  return {number,
          &cable,
          path.stripe,
          at_a ? &cable.a : &cable.b,
          at_a ? &cable.b : &cable.a,
          at_a ? &path.a : &path.b,
          at_a ? &path.b : &path.a,
          path.subnet};
}

unsigned rules_for(const Site& site) {
  unsigned have = kNodes | kEngine;
  if (site.profile.transport != nullptr) have |= kTransport;
  // Live rules of vLLM are about its container, which the native engine may have too.
  have |= site.profile.in_container() ? kVllmOnly : kNativeOnly;
  if (site.profile.host.hardware == "spark") have |= kSparkOnly;
  if (site.policy) have |= kPolicy;
  return have;
}

std::optional<FabricLayout> layout_of(const NodeMap& map) {
  try {
    return fabric_layout(map);
  } catch (const Error&) {
    return {};  // the offline rules say why
  }
}

}  // namespace

bool older_version(const std::string& version, const std::string& wanted) {
  size_t a = 0, b = 0;
  const auto next = [](const std::string& text, size_t& at) {
    while (at < text.size() && (text[at] < '0' || text[at] > '9')) ++at;
    int64_t number = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9' && number < 1'000'000'000)
      number = number * 10 + (text[at++] - '0');
    return number;
  };
  while (a < version.size() || b < wanted.size()) {
    const int64_t left = next(version, a), right = next(wanted, b);
    if (left != right) return left < right;
  }
  return false;
}

const Unit* LiveNode::unit(const std::string& unit_name) const {
  const auto& units = facts.host.units;
  if (!units) return nullptr;
  const auto found = units->find(unit_name);
  return found == units->end() ? nullptr : &found->second;
}

std::string PathEnd::place() const {
  return end_name(*end) + " path " + std::to_string(stripe + 1);
}

std::string PathEnd::cable_name() const {
  return "cable " + std::to_string(cable) + " (" + end_name(of->a) + " - " + end_name(of->b) + ")";
}

LiveContext::LiveContext(const Site& loaded, const std::vector<NodeAnswer>& all, const LiveOptions& wanted,
                         Findings& findings)
    : site(loaded),
      profile(loaded.profile),
      answers(all),
      options(wanted),
      layout(layout_of(loaded.nodes)),
      findings_(findings) {
  for (const Node& node : site.nodes.nodes) {
    for (const NodeAnswer& answer : answers) {
      if (answer.node == node.name && answer.outcome == ProbeOutcome::kAnswered)
        nodes_.push_back({node, answer.facts, answer});
    }
  }
}

const LiveNode* LiveContext::find(const std::string& name) const {
  for (const LiveNode& node : nodes_) {
    if (node.name() == name) return &node;
  }
  return nullptr;
}

std::vector<PathEnd> LiveContext::ends_of(const Cable& cable) const {
  std::vector<PathEnd> ends;
  const auto number = static_cast<size_t>(&cable - layout->cables.data()) + 1;
  for (const CablePath& path : cable.paths) {
    ends.push_back(path_end(cable, number, path, true));
    ends.push_back(path_end(cable, number, path, false));
  }
  return ends;
}

std::vector<PathEnd> LiveContext::path_ends(const std::string& node) const {
  std::vector<PathEnd> ends;
  if (!layout) return ends;
  for (const Cable& cable : layout->cables) {
    for (PathEnd& end : ends_of(cable)) {
      if (end.end->node == node) ends.push_back(std::move(end));
    }
  }
  return ends;
}

void LiveContext::add(Severity severity, const std::string& where, std::string evidence, std::string expected,
                      std::string fix, std::vector<std::string> details) {
  findings_.push_back({rule_->id,
                       severity,
                       {},
                       where,
                       std::move(evidence),
                       std::move(expected),
                       std::move(fix),
                       std::move(details)});
}

void LiveContext::error(const std::string& where, std::string evidence, std::string expected, std::string fix,
                        std::vector<std::string> details) {
  add(Severity::kError, where, std::move(evidence), std::move(expected), std::move(fix), std::move(details));
}

void LiveContext::warn(const std::string& where, std::string evidence, std::string expected, std::string fix,
                       std::vector<std::string> details) {
  add(Severity::kWarning, where, std::move(evidence), std::move(expected), std::move(fix),
      std::move(details));
}

void LiveContext::unknown(const LiveNode& node, const std::string& what, const std::string& section) {
  if (!node.answer.faults.empty()) return;
  warn(node.name(), what + " cannot be read: " + section + " " + node.facts.why(section), "a readable value",
       "`spark probe " + node.name() + "` shows what every question was answered with");
}

void LiveContext::correction(const LiveNode& node, const std::string& command) {
  const std::string line = "ssh " + node.node.ssh_target() + " " + command;
  if (std::find(corrections_.begin(), corrections_.end(), line) == corrections_.end())
    corrections_.push_back(line);
}

void LiveContext::report_corrections() {
  if (corrections_.empty()) return;
  warn({}, "kernel corrections (not executed)", {}, {}, corrections_);
}

bool LiveContext::serving(const LiveNode& node) const {
  if (in_container()) return node.facts.docker.container && node.facts.docker.container->running;
  if (as_process()) return node.facts.service.process && node.facts.service.process->running;
  if (!node.facts.host.units) return false;
  const auto found = node.facts.host.units->find(profile.service_name() + ".service");
  return found != node.facts.host.units->end() && found->second.active == "active";
}

Findings diagnose_live(const Site& site, const std::vector<NodeAnswer>& answers, const LiveOptions& options) {
  Findings findings;
  LiveContext context(site, answers, options, findings);
  const unsigned have = rules_for(site);
  for (const Rule& rule : rules()) {
    if ((rule.needs & have) != rule.needs) continue;
    context.begin(rule);
    if (rule.cluster != nullptr) rule.cluster(context);
    if (rule.node == nullptr) continue;
    for (const LiveNode& node : context.nodes()) rule.node(context, node);
  }
  warnings_first(findings);
  return findings;
}

Findings diagnose_node(const NodeAnswer& answer, const std::vector<std::string>& rule_ids) {
  Site site;
  site.nodes.nodes.emplace_back().name = answer.node;
  const std::vector<NodeAnswer> answers = {answer};
  const LiveOptions options;
  Findings findings;
  LiveContext context(site, answers, options, findings);
  for (const std::string& id : rule_ids) {
    const Rule* rule = find_rule(id);
    SPARK_CHECK(rule != nullptr && rule->node != nullptr);
    context.begin(*rule);
    for (const LiveNode& node : context.nodes()) rule->node(context, node);
  }
  return findings;
}

std::string clone_command(const DeploymentSpec& deployment) {
  const std::string path = shell_quote(deployment.path);
  return "git clone " + shell_quote(without_url_secrets(deployment.repository)) + " " + path + " && " +
         shell_quote(deployment.path + "/script/build") + " release spark spark-engine spark-guard";
}

bool any_unreachable(const std::vector<NodeAnswer>& answers) {
  return std::any_of(answers.begin(), answers.end(),
                     [](const NodeAnswer& answer) { return answer.outcome == ProbeOutcome::kUnreachable; });
}

std::string fragmentation_commands(const std::vector<NodeAnswer>& answers) {
  std::string text;
  for (const NodeAnswer& answer : answers) {
    text += "# " + answer.node;
    if (answer.outcome != ProbeOutcome::kAnswered) {
      text += ": " + answer.problem + "\n";
      continue;
    }
    if (!answer.facts.model.extents) {
      text += ": not known, e4defrag " + answer.facts.model.extents_failure + "\n";
      continue;
    }
    std::string commands;
    for (const auto& file : *answer.facts.model.extents) {
      if (file.current > file.best) commands += "sudo e4defrag -v " + shell_quote(file.file) + "\n";
    }
    text += commands.empty() ? ": nothing to do\n" : "\n" + commands;
  }
  return text;
}

}  // namespace spark::ops
