#include "ops/doctor/doctor.h"

#include <algorithm>
#include <array>

#include "common/printable.h"
#include "common/table.h"
#include "ops/doctor/grouped.h"
#include "ops/doctor/rule.h"

namespace spark::ops {
namespace {

struct PathRule {
  const char* prefix;
  const char* rule;
};

// Faults of form whose rule says more than "form": first match counts.
constexpr PathRule kProfileFaults[] = {
    {"host.memguard", "cluster.guard"},
    {"host.startup_memguard", "cluster.guard"},
    {"deployment", "cluster.deployment"},
    {"serve_args.--speculative-config", "engine.drafter"},
    {"engine.speculative", "engine.drafter"},
    {"host.kernel", "host.kernel"},
    {"container.docker_run_args", "container.options"},
    {"container.mounts", "container.mounts"},
};

struct FieldRule {
  const char* field;
  const char* rule;
};

constexpr FieldRule kNodeFaults[] = {
    {".rank", "fabric.ranks"},
    {".roce_gid_index", "fabric.gid-index"},
    {".roce_peer_hcas", "fabric.peers"},
    {".roce_subnets", "fabric.subnets"},
    {".mesh_ports", "fabric.mesh-ports"},
    {".name", "fabric.identity"},
    {".management_ip", "fabric.identity"},
    {".head", "cluster.head"},
};

bool below(const std::string& path, const std::string& parent) {
  if (path.compare(0, parent.size(), parent) != 0) return false;
  return path.size() == parent.size() || path[parent.size()] == '.' || path[parent.size()] == '[';
}

std::string rule_of_fault(const Site& site, const FileFault& entry) {
  const std::string& where = entry.fault.where;
  if (entry.fault.what == "is not a known key" || entry.fault.what == "is not a site setting")
    return "config.format";
  if (entry.file == site.nodes_file) {
    if (where == "nodes") return "fabric.nodes";
    const size_t dot = where.find('.');
    if (where.rfind("nodes[", 0) != 0 || dot == std::string::npos) return "config.format";
    for (const FieldRule& field : kNodeFaults) {
      if (below(where.substr(dot), field.field)) return field.rule;
    }
    return "config.format";
  }
  for (const PathRule& path : kProfileFaults) {
    if (where.rfind(path.prefix, 0) == 0) return path.rule;
  }
  return "config.format";
}

Findings findings_of_faults(const Site& site) {
  Findings findings;
  for (const FileFault& entry : site.faults) {
    findings.push_back({rule_of_fault(site, entry),
                        Severity::kError,
                        entry.file,
                        entry.fault.where,
                        entry.fault.what,
                        {},
                        entry.fault.hint});
  }
  return findings;
}

// Is the value that a rule complains about one that could not be read in the first place?
bool explained(const Finding& finding, const Site& site, const std::string& raw_where) {
  return std::any_of(site.faults.begin(), site.faults.end(), [&](const FileFault& entry) {
    if (entry.file != finding.file) return false;
    const std::string& fault = entry.fault.where;
    return fault.empty() || below(finding.where, fault) || below(raw_where, fault) || below(fault, raw_where);
  });
}

// File and place as the operator wrote them: a typed setting rather than the variable that it becomes.
void locate(Finding& finding, const Site& site) {
  if (!finding.file.empty() || finding.rule == "secrets.tracked") return;
  if (finding.where.rfind("nodes", 0) == 0 && finding.where.rfind("nodes_config", 0) != 0) {
    finding.file = site.nodes_file;
    return;
  }
  const Origin origin = site.origin_of(finding.where);
  finding.file = origin.file;
  const bool typed = site.sources.count(finding.where) != 0;
  if (typed) finding.where = origin.note;
}

bool engine_is_readable(const Site& site) {
  return std::none_of(site.faults.begin(), site.faults.end(), [&](const FileFault& entry) {
    const std::string& where = entry.fault.where;
    return entry.file != site.nodes_file &&
           (where.rfind("engine", 0) == 0 || where.rfind("serve_args", 0) == 0);
  });
}

unsigned available(const Site& site) {
  unsigned have = 0;
  if (site.nodes_loaded && !site.nodes.nodes.empty()) have |= kNodes;
  if (!rule::other_size(site)) have |= kOneSize;
  if (site.profile.transport != nullptr) have |= kTransport;
  if (engine_is_readable(site)) have |= kEngine;
  have |= site.profile.engine_kind == EngineKind::kVllm ? kVllmOnly : kNativeOnly;
  return have;
}

std::string line_of(const Finding& finding) {
  std::string line = finding.severity == Severity::kError ? "ERROR: " : "WARN: ";
  if (!finding.file.empty()) line += finding.file + ": ";
  if (!finding.where.empty()) line += finding.where + ": ";
  line += finding.evidence;
  if (!finding.expected.empty()) line += "; expected: " + finding.expected;
  if (!finding.fix.empty()) line += "; to fix: " + finding.fix;
  line += " [" + finding.rule + "]";
  std::string text = one_line(line) + "\n";
  for (const std::string& detail : finding.details) text += "    " + one_line(detail) + "\n";
  return text;
}

std::string severity_text(const Rule& rule) {
  if (rule.severity == Severity::kWarning) return "warning";
  return rule.also_warns ? "error, some warnings" : "error";
}

std::string rules_list(bool live) {
  Table table({{"Rule"}, {"Severity"}, {"Title"}});
  for (const Rule& rule : rules()) {
    if (rule.is_live() != live) continue;
    // GitHub's anchors drop the dot.
    std::string anchor = rule.id;
    anchor.erase(std::remove(anchor.begin(), anchor.end(), '.'), anchor.end());
    table.add(
        {"[`" + std::string(rule.id) + "`](#" + anchor + ")" + ((rule.needs & kSparkOnly) != 0 ? " *" : ""),
         severity_text(rule), rule.title});
  }
  return table.markdown();
}

std::string counted(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

Findings diagnose(const Site& site, const SecretScan* secrets) {
  Findings found = findings_of_faults(site);
  Findings judged;
  RuleContext context(site, secrets, judged);
  if (site.profile_loaded) {
    const unsigned have = available(site);
    for (const Rule& rule : rules()) {
      if (rule.run == nullptr || (rule.needs & have) != rule.needs) continue;
      context.begin(rule);
      rule.run(context);
    }
  } else if (secrets != nullptr) {
    const Rule* rule = find_rule("secrets.tracked");
    context.begin(*rule);
    rule->run(context);
  }
  // Profile and map of two sizes explain whatever else does not fit.
  std::stable_partition(judged.begin(), judged.end(),
                        [](const Finding& finding) { return finding.rule == "engine.world-size"; });
  for (Finding& finding : judged) {
    const std::string raw_where = finding.where;
    locate(finding, site);
    if (!explained(finding, site, raw_where)) found.push_back(std::move(finding));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return found;
}

bool has_error(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

std::string findings_text(const Findings& all, const std::string& clean_suffix) {
  const Findings findings = grouped_by_node(all);  // counted as they are shown
  std::string text;
  for (const Finding& finding : findings) text += line_of(finding);
  const auto errors = std::count_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::kError;
  });
  const auto warnings = static_cast<int64_t>(findings.size()) - errors;
  if (errors > 0)
    return text + counted(errors, "error") + (warnings > 0 ? ", " + counted(warnings, "warning") : "") + "\n";
  return text + "configuration OK" + clean_suffix +
         (warnings > 0 ? " with " + counted(warnings, "warning") : "") + "\n";
}

Json findings_json(const Findings& findings) {
  Json list = Json::array();
  int64_t errors = 0;
  for (const Finding& finding : findings) {
    const bool error = finding.severity == Severity::kError;
    errors += error ? 1 : 0;
    list.push_back({{"rule", finding.rule},
                    {"severity", error ? "error" : "warning"},
                    {"file", finding.file},
                    {"where", finding.where},
                    {"evidence", finding.evidence},
                    {"expected", finding.expected},
                    {"fix", finding.fix}});
    if (!finding.details.empty()) list.back()["details"] = finding.details;
  }
  return {{"ok", errors == 0},
          {"errors", errors},
          {"warnings", static_cast<int64_t>(findings.size()) - errors},
          {"findings", list}};
}

std::string rules_text() {
  Table table({{"rule"}, {"severity"}, {"what it checks"}});
  for (const Rule& rule : rules()) table.add({rule.id, severity_text(rule), rule.title});
  return table.text();
}

std::string rules_markdown() {
  std::string text =
      "# What `spark doctor` checks\n\n"
      "<!-- Generated by `spark doctor --rules --markdown` from the table that the program runs. Do not "
      "edit. -->\n\n"
      "`spark doctor` reads the profile, the site file, the node map, the lock, the source manifest and the "
      "tracked\n"
      "files. It contacts nobody and changes nothing. `spark doctor --live` then asks every node, all at "
      "once, and "
      "applies\nthe live rules; it changes nothing either ([how it asks](probe.md)). Every finding is one "
      "line:\n\n"
      "```\n"
      "ERROR: config/cluster.json: host.startup_memguard_gib: is 3, the steady threshold is 3; expected: …; "
      "to fix: … "
      "[cluster.guard]\n"
      "```\n\n"
      "Warnings stand first. Without errors the last line contains `configuration OK`, followed by\n"
      "`; live cluster matches` after a live check and by ` with N warnings` when there are any; with errors "
      "it "
      "counts\nboth. `--json` prints one document with the same findings instead.\n\n"
      "| Exit code | Meaning |\n| --- | --- |\n| 0 | no error; warnings do not count |\n"
      "| 1 | at least one error, or the command failed |\n| 2 | the command line makes no sense |\n"
      "| 3 | a node cannot be reached (live checks) |\n| 4 | aborted |\n| 5 | regression against a reference "
      "|\n"
      "| 6 | a quality gate failed |\n| 130 | interrupted |\n\n"
      "An error means broken or dangerous now; a warning means latent, cheap or unreadable. What cannot be "
      "read is never\n"
      "reported as clean. Identifiers are stable.\n\n";
  text += "## Rules for files\n\n" + rules_list(false) + "\n## Rules for nodes\n\n" + rules_list(true) + "\n";
  text +=
      "Rules marked with * are about a DGX Spark and are left out with `host.hardware` \"generic\", which "
      "the doctor says.\n\n";
  for (const Rule& rule : rules()) {
    text += "### " + std::string(rule.id) + "\n\n**" + rule.title + "** (" + severity_text(rule) + ")\n\n" +
            rule.checks + "\n\nWhy: " + rule.because + "\n\nTo fix: " + rule.fix + "\n\n";
  }
  text.pop_back();
  return text;
}

}  // namespace spark::ops
