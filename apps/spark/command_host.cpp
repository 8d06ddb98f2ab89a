// spark host: the recovery policy of this machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "common/error.h"
#include "common/printable.h"
#include "ops/doctor/doctor.h"
#include "ops/probe/gather.h"
#include "ops/recovery/change.h"
#include "ops/recovery/check.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct HostFlags {
  std::string root = "/";
  std::vector<std::string> without;
  bool apply = false;
  bool json = false;
};

ops::RecoveryPolicy load_policy(const HostFlags& flags, const SiteOptions& options) {
  return ops::load_recovery_policy(ops::Repository(options.repository),
                                   {flags.without.begin(), flags.without.end()});
}

ops::NodeAnswer look(const HostFlags& flags) {
  ops::ProbeRequest request;
  request.root = std::filesystem::canonical(flags.root).string();
  ops::NodeAnswer answer = ops::probe_here(flags.root, request);
  if (!answer.facts.identity.host_name.empty()) answer.node = answer.facts.identity.host_name;
  return answer;
}

void run_check(const HostFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::RecoveryPolicy policy = load_policy(flags, options);
  const ops::Host host(flags.root);
  const ops::NodeAnswer answer = look(flags);
  const ops::Findings findings = ops::check_recovery(host, policy, answer);
  if (flags.json) {
    std::cout << ops::findings_json(findings).dump(2) << "\n";
  } else {
    std::cout << ops::findings_text(findings, "; recovery policy of " + answer.node + " is in effect");
  }
  if (ops::has_error(findings)) outcome.code = ExitCode::kFindings;
}

void carry_out(ops::Host& host, const ops::RecoveryPlan& plan, const HostFlags& flags) {
  std::cout << fit_lines(ops::plan_text(plan));
  if (plan.changes.empty()) return;
  if (!flags.apply) {
    std::cout << "plan only; --apply is required\n";
    return;
  }
  if (host.is_this_machine() && ::geteuid() != 0)
    throw Error("changing this machine needs root", "spark host",
                "sudo spark host " + std::string(plan.revert ? "revert" : "apply") + " --apply");
  ops::execute(host, plan, [&](const std::string& line) { std::cout << fit_lines(line) << std::endl; });
  if (!host.is_this_machine()) std::cout << "on a folder: files were changed, commands were not run\n";
}

void run_apply(const HostFlags& flags, const SiteOptions& options) {
  const ops::RecoveryPolicy policy = load_policy(flags, options);
  ops::Host host(flags.root);
  const ops::NodeAnswer answer = look(flags);
  carry_out(host, ops::plan_apply(host, policy, answer.facts), flags);
}

void add_common(CLI::App& command, HostFlags& flags) {
  command.fallthrough();
  command
      .add_option("--root", flags.root,
                  "A folder instead of this machine: files below it, commands listed only")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
}

}  // namespace

void add_host_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<HostFlags>();
  CLI::App* host =
      app.add_subcommand("host", "What keeps a node manageable: check it, put it on, take it back");
  host->require_subcommand(1);
  host->footer(
      "Run on the node, from its checkout. docs/recovery.md lists every file, its reason and how it is taken "
      "back.");

  CLI::App* check =
      host->add_subcommand("check", "Is the recovery policy here, and in effect? Changes nothing");
  add_common(*check, *flags);
  check->add_option("--without", flags->without,
                    "Leave out a module: tailscale, plymouth, console, watermark");
  check->add_flag("--json", flags->json, "Print one JSON document");
  check->callback([flags, &options, &outcome] { run_check(*flags, options, outcome); });

  CLI::App* apply =
      host->add_subcommand("apply", "Install the policy; prints a plan unless --apply is given");
  add_common(*apply, *flags);
  apply->add_option("--without", flags->without,
                    "Leave out a module: tailscale, plymouth, console, watermark");
  apply->add_flag("--apply", flags->apply, "Do it");
  apply->callback([flags, &options] { run_apply(*flags, options); });

  CLI::App* revert = host->add_subcommand(
      "revert", "Put everything back as the first apply found it; prints a plan unless --apply");
  add_common(*revert, *flags);
  revert->add_flag("--apply", flags->apply, "Do it");
  revert->callback([flags] {
    ops::Host target(flags->root);
    carry_out(target, ops::plan_revert(target), *flags);
  });
}

}  // namespace spark::app
