// spark doctor: what is wrong with the configuration, the nodes, a checkpoint or a boot's log, and how to
// correct it.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "checkpoint_findings.h"
#include "commands.h"
#include "common/file.h"
#include "node_choice.h"
#include "ops/doctor/boot_log.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/live.h"
#include "ops/launch/preflight.h"
#include "ops/probe/gather.h"
#include "ops/recovery/policy.h"
#include "site_options.h"

namespace spark::app {
namespace {

constexpr size_t kMaxLogBytes = size_t{64} << 20;  // a boot writes a few megabytes

struct DoctorFlags {
  bool json = false;
  bool rules = false;
  bool markdown = false;
  bool no_secrets = false;
  bool live = false;
  bool expect_stopped = false;
  bool fragmentation_commands = false;
  std::vector<std::string> nodes;
  std::string recorded;
  std::string model;
  std::string manifest;
  std::string boot_log;
  std::string boot_log_policy = ops::kBootLogPolicy;
};

void print(const ops::Findings& findings, const DoctorFlags& flags, const std::string& clean_suffix) {
  std::cout << (flags.json ? ops::findings_json(findings).dump(2) + "\n"
                           : ops::findings_text(findings, clean_suffix));
}

std::vector<const ops::Node*> chosen_nodes(const ops::Site& site, const std::vector<std::string>& names) {
  std::vector<const ops::Node*> nodes;
  for (const std::string& name : names) nodes.push_back(&find_node(site, name));
  if (nodes.empty()) {
    for (const ops::Node& node : site.nodes.nodes) nodes.push_back(&node);
  }
  return nodes;
}

// The reviewed files, where the repository has them.
std::map<std::string, std::string> policy_digests(const ops::Repository& repository) {
  try {
    return ops::load_recovery_policy(repository).digests();
  } catch (const Error&) {
    return {};
  }
}

std::vector<ops::NodeAnswer> ask_nodes(const ops::Site& site, const DoctorFlags& flags,
                                       const std::map<std::string, std::string>& policy) {
  const std::vector<const ops::Node*> nodes = chosen_nodes(site, flags.nodes);
  if (!flags.recorded.empty()) return ops::probe_recorded(site, nodes, flags.recorded);
  ops::GatherOptions options;
  for (const auto& [path, digest] : policy) options.policy_files.push_back(path);
  const ops::Remote remote;
  return ops::probe_nodes(site, nodes, options, remote);
}

// What the nodes shall be at; empty where the site lies in no repository.
std::string revision_here(const ops::Repository& repository) {
  try {
    return ops::local_state(repository).revision;
  } catch (const Error&) {
    return {};
  }
}

// After "configuration OK": a cluster at another revision does not match, though that is only a warning.
std::string verdict_of(const ops::Findings& findings, bool all_asked) {
  for (const ops::Finding& finding : findings) {
    if (finding.rule == "deployment.commit") return "; the checkouts of the nodes are not at this revision";
  }
  return all_asked ? "; live cluster matches" : "; the named nodes match";
}

void run_live(const ops::Site& site, const ops::Repository& repository, ops::Findings findings,
              const DoctorFlags& flags, Outcome& outcome) {
  ops::LiveOptions options;
  options.expect_stopped = flags.expect_stopped;
  options.policy_files = policy_digests(repository);
  if (flags.recorded.empty()) options.revision = revision_here(repository);
  const std::vector<ops::NodeAnswer> answers = ask_nodes(site, flags, options.policy_files);
  if (flags.fragmentation_commands) {
    std::cout << ops::fragmentation_commands(answers);
    outcome.code = ops::any_unreachable(answers) ? ExitCode::kUnreachable : ExitCode::kOk;
    return;
  }
  for (ops::Finding& finding : ops::diagnose_live(site, answers, options))
    findings.push_back(std::move(finding));
  ops::warnings_first(findings);
  print(findings, flags, verdict_of(findings, flags.nodes.empty()));
  if (ops::any_unreachable(answers)) {
    outcome.code = ExitCode::kUnreachable;
  } else {
    outcome.code = ops::has_error(findings) ? ExitCode::kFindings : ExitCode::kOk;
  }
}

void run_site(const DoctorFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  repository.confine(options.request.profile);
  const ops::Site site = options.load(repository);
  ops::SecretScan secrets;
  if (!flags.no_secrets) secrets = ops::scan_tracked_files(repository);
  const ops::Findings findings = ops::diagnose(site, flags.no_secrets ? nullptr : &secrets);
  // Nodes are compared with a configuration that makes sense, or not at all.
  if (flags.live && !ops::has_error(findings)) return run_live(site, repository, findings, flags, outcome);
  print(findings, flags, {});
  outcome.code = ops::has_error(findings) ? ExitCode::kFindings : ExitCode::kOk;
}

void run_boot_log(const DoctorFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::Repository repository(options.repository);
  Faults faults;
  const ops::BootLogPolicy policy = ops::read_boot_log_policy(
      parse_json(repository.read(flags.boot_log_policy), flags.boot_log_policy), faults);
  throw_if_any(faults, flags.boot_log_policy);
  const ops::Findings findings =
      ops::judge_boot_log(policy, read_file(flags.boot_log, kMaxLogBytes), flags.boot_log);
  print(findings, flags, "; the boot log is clean");
  outcome.code = ops::has_error(findings) ? ExitCode::kFindings : ExitCode::kOk;
}

void run_model(const DoctorFlags& flags, Outcome& outcome) {
  const ops::Findings findings = checkpoint_findings(flags.model, flags.manifest);
  print(findings, flags, "; the checkpoint is whole");
  outcome.code = ops::has_error(findings) ? ExitCode::kFindings : ExitCode::kOk;
}

void run_doctor(const DoctorFlags& flags, const SiteOptions& options, Outcome& outcome) {
  if (flags.rules) {
    std::cout << (flags.markdown ? ops::rules_markdown() : ops::rules_text());
  } else if (!flags.boot_log.empty()) {
    run_boot_log(flags, options, outcome);
  } else if (!flags.model.empty()) {
    run_model(flags, outcome);
  } else {
    run_site(flags, options, outcome);
  }
}

void add_live_flags(CLI::App& command, DoctorFlags& flags) {
  CLI::Option* live =
      command.add_flag("--live", flags.live, "Then ask every node and compare; needs SSH, changes nothing");
  command
      .add_flag("--expect-stopped", flags.expect_stopped,
                "With --live: nothing serves yet, and that is right")
      ->needs(live);
  command
      .add_flag("--fragmentation-commands", flags.fragmentation_commands,
                "With --live: only print the commands that defragment the weights")
      ->needs(live);
  command.add_option("--node", flags.nodes, "With --live: only these nodes")->needs(live);
  command
      .add_option("--recorded", flags.recorded,
                  "With --live: recorded trees FOLDER/NODE (spark probe --record) instead of nodes")
      ->needs(live)
      ->check(CLI::ExistingDirectory);
}

}  // namespace

void add_doctor_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand("doctor",
                                         "Check profile, node map, sources and tracked files, the nodes, a "
                                         "checkpoint, a boot log; change nothing");
  command->fallthrough();
  command->add_flag("--json", flags->json, "Print one JSON document");
  command->add_flag("--no-secret-scan", flags->no_secrets, "Do not search tracked files for credentials");
  add_live_flags(*command, *flags);
  CLI::Option* model = command
                           ->add_option("--model", flags->model,
                                        "Check this checkpoint folder instead: files present and whole")
                           ->check(CLI::ExistingDirectory);
  command
      ->add_option("--manifest", flags->manifest,
                   "With --model: sizes and SHA-256 to compare with, as `sha256sum` prints them")
      ->needs(model)
      ->check(CLI::ExistingFile);
  CLI::Option* log = command
                         ->add_option("--boot-log", flags->boot_log,
                                      "Check this log of a boot instead: silent fallbacks and faults")
                         ->check(CLI::ExistingFile);
  log->excludes(model);
  command->add_option("--boot-log-policy", flags->boot_log_policy, "Patterns, relative to the repository")
      ->needs(log)
      ->capture_default_str();
  CLI::Option* rules = command->add_flag("--rules", flags->rules, "List the rules instead of checking");
  command->add_flag("--markdown", flags->markdown, "With --rules: the text of docs/doctor.md")->needs(rules);
  command->footer(
      "Exit code 0: no error. 1: errors, each with the place and a fix. 2: wrong usage. 3: a node cannot be "
      "reached.\n"
      "docs/doctor.md describes every rule, docs/probe.md what --live asks a node.");
  command->callback([flags, &options, &outcome] { run_doctor(*flags, options, outcome); });
}

}  // namespace spark::app
