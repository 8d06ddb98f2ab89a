#include "ops/launch/cluster.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <thread>

#include "common/clock.h"
#include "common/units.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/grouped.h"
#include "ops/doctor/live.h"
#include "ops/launch/evidence.h"
#include "ops/launch/log_shipping.h"
#include "ops/launch/preflight.h"

namespace spark::ops {
namespace {

constexpr size_t kKeptJournals = 200;

std::string step_sentence(const Step& step, const StepResult& result) {
  const auto value = [&result](const char* name) {
    const auto found = result.values.find(name);
    return found == result.values.end() ? std::string() : found->second;
  };
  const std::string node = step.node + ": ";
  switch (step.kind) {
    case StepKind::kClaim:
    case StepKind::kRelease:
    case StepKind::kKeep:
      return {};
    case StepKind::kArm:
      return node + "memguard active: " + value("guard");
    case StepKind::kLaunch:
      return node + "launched " + value("id").substr(0, 12);
    case StepKind::kReady:
      return "API ready: " + value("model") + " generated a token after " + value("seconds") + " s";
    case StepKind::kSteady:
      return node + "memguard switched: " + value("guard");
    case StepKind::kRetire:
      return node + "stopped and kept as " + step.parameter("backup");
    case StepKind::kDiscard:
      return node + "removed " + step.parameter("backup");
    case StepKind::kStop:
      return node +
             (value("found") == "absent"    ? "nothing was there"
              : value("found") == "stopped" ? "had ended already"
                                            : "stopped") +
             (step.parameter("remove") == "1" && value("found") != "absent" ? ", removed" : "");
    case StepKind::kEvidence:
      return node + "logs and state are in " + value("folder");
    case StepKind::kRemove:
      return node + (value("kept").empty() ? "removed" : "left alone: " + value("kept"));
    case StepKind::kDisarm:
      return node + (value("kept").empty() ? "memguard ended" : "kept " + value("kept"));
    case StepKind::kRestore:
      if (value("lost") == "1") return node + "nothing is left of the service from before";
      return node + (step.parameter("start") == "1" ? "the service from before runs again, guarded"
                                                    : "the service from before has its name again");
    case StepKind::kFetch:
      return node + "fetched " + step.parameter("revision").substr(0, 12);
    case StepKind::kCheckout:
      return node + "is at " + step.parameter("revision").substr(0, 12);
    case StepKind::kPrune:
      return node + (value("pruned").empty() ? "nothing to remove" : "removed " + value("pruned")) +
             (value("kept").empty() ? "" : "; cannot remove " + value("kept"));
  }
  return {};
}

Json step_event(const Step& step, const StepResult& result) {
  Json event = {{"event", "step"}, {"step", step_name(step.kind)}, {"node", step.node}, {"ok", result.ok}};
  if (!result.ok) event["problem"] = result.problem;
  for (const auto& [key, value] : result.values) event[key] = value;
  return event;
}

bool any_node_away(const std::vector<NodeLook>& looks) {
  return std::any_of(looks.begin(), looks.end(), [](const NodeLook& look) { return !look.reached; });
}

}  // namespace

std::string user_and_host() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const passwd* user = ::getpwuid(::getuid());
  return (user != nullptr ? std::string(user->pw_name) : std::to_string(::getuid())) + "@" + host;
}

std::string launch_folder(const Repository& repository, const std::string& service) {
  return repository.absolute("results/private/launch/" + service);
}

std::vector<std::string> prunable_evidence(const Site& site, const Repository& repository, size_t keep) {
  const std::string& service = site.profile.service_name();
  return old_evidence(repository.absolute(evidence_folder(site.request.profile, service, "now")), service,
                      keep);
}

RunHistory run_history(const std::string& folder) {
  RunHistory history;
  history.at_work = launch_at_work(folder);
  for (const std::string& path : journals_in(folder)) {
    try {
      const std::vector<Json> records = read_journal(path);
      if (records.empty()) continue;
      const RunState run = replay(records);
      history.last = explain(run);
      if (!run.ended) history.unfinished += history.last;
    } catch (const Error& error) {
      history.unfinished += error.describe() + "\n";
    }
  }
  return history;
}

ClusterCommand::ClusterCommand(const Site& site, const Repository& repository, const Remote& remote,
                               ClusterOptions options, ClusterReport report, std::stop_token stop,
                               std::stop_token undo_stop)
    : site_(site),
      repository_(repository),
      remote_(remote),
      options_(std::move(options)),
      report_(std::move(report)),
      stop_(std::move(stop)),
      undo_stop_(std::move(undo_stop)),
      folder_(launch_folder(repository, site.profile.service_name())),
      me_(user_and_host()),
      begin_(monotonic_s()) {}

void ClusterCommand::say(const std::string& text, Json event) {
  if (text.empty() && event.is_null()) return;
  if (event.is_null()) event = {{"event", "message"}, {"text", text}};
  event["seconds"] = std::round((monotonic_s() - begin_) * 1000) / 1000;
  report_.progress(text, event);
}

void ClusterCommand::fail(ClusterOutcome outcome, const std::string& text) {
  report_.complain(text);
  throw Failure{outcome};
}

void ClusterCommand::lock() {
  std::string holder;
  lock_ =
      lock_launch(folder_, me_ + ", process " + std::to_string(::getpid()) + ", since " + utc_now(), holder);
  if (!lock_)
    fail(ClusterOutcome::kFailed, "another `spark cluster` command is at work here: " + holder +
                                      "\n  wait for it to end; `spark status` shows the nodes");
}

RunHeader ClusterCommand::header_for(const std::string& command) const {
  RunHeader header;
  header.run = new_run_name(command);
  header.command = command;
  header.service = site_.profile.service_name();
  header.profile = site_.request.profile;
  header.by = me_;
  header.replace = options_.replace;
  header.evidence = repository_.absolute(
      evidence_folder(header.profile, header.service, header.run.substr(0, header.run.find('-'))));
  return header;
}

std::unique_ptr<RemoteActions> ClusterCommand::actions_for(const RunHeader& header) {
  RemoteActionsOptions options;
  options.context.steady = plan_guard(site_.profile, GuardPhase::kSteady);
  options.context.run = header.run;
  const Json owner = {{"by", me_}, {"journal", folder_}};
  options.context.owner = owner.dump().substr(1);
  const Json claim = {{"run", header.run}, {"since", utc_now()}, {"by", me_}, {"journal", folder_}};
  options.context.claim = claim.dump();
  options.context.take_over = options_.take_over;
  options.context.node_maps[site_.nodes_file] = repository_.read(site_.nodes_file);
  if (repository_.exists(site_.request.site_file) && !site_.request.site_file.empty())
    options.context.node_maps[site_.request.site_file] = repository_.read(site_.request.site_file);
  options.evidence_folder = header.evidence;
  options.warn = [this](const std::string& line) { report_.complain("WARN: " + line); };
  return std::make_unique<RemoteActions>(site_, remote_, std::move(options));
}

void ClusterCommand::tell_step(const Step& step, const StepResult& result) {
  if (result.ok) return say(step_sentence(step, result), step_event(step, result));
  say("", step_event(step, result));
  if (may_fail(step.kind)) report_.complain("WARN: " + step.id() + ": " + result.problem);
}

RunHooks ClusterCommand::hooks() {
  return {.step = [this](const Step& step, const StepResult& result) { tell_step(step, result); },
          .say = [this](const std::string& line) { report_.complain(line); },
          .stop = stop_,
          .undo_stop = undo_stop_};
}

// An earlier run of this service that did not end is finished or taken back before anything else.
void ClusterCommand::recover_earlier(RecoveryAim aim, const std::string& command) {
  for (const std::string& path : journals_in(folder_)) {
    std::vector<Json> records = read_journal(path);
    const RunState state = replay(records);
    if (state.ended) continue;
    if (state.header.run.empty()) {  // it ended before it had begun
      Journal::resume(path).append({{"event", "end"}, {"outcome", "not-begun"}});
      continue;
    }
    say(explain(state), {{"event", "recover"}, {"run", state.header.run}});
    auto journal = std::make_shared<Journal>(Journal::resume(path));
    RunLog log(std::move(records), [journal](Json record) { journal->append(std::move(record)); });
    const auto actions = actions_for(state.header);
    const RunResult result = recover(log, aim, me_, *actions, hooks());
    const RunState after = log.state();
    say(explain(after), {{"event", "recovered"}, {"run", state.header.run}, {"outcome", after.outcome}});
    if (!result.ok && command != "stop")
      fail(result.unreachable ? ClusterOutcome::kUnreachable : ClusterOutcome::kFailed,
           "the earlier run could not be taken back: " + result.problem +
               "\n  correct that, then try again; nothing else was changed");
    if (!result.ok) report_.complain("WARN: the earlier run could not be taken back: " + result.problem);
    start_finished_ = start_finished_ || (after.ended && after.outcome == "ready");
  }
}

void ClusterCommand::refuse_findings(const Findings& findings) {
  for (const Finding& finding : grouped_by_node(findings)) {
    if (finding.severity == Severity::kWarning) continue;
    std::string text = "ERROR: " + finding.where + (finding.where.empty() ? "" : ": ") + finding.evidence +
                       "; expected " + finding.expected + " [" + finding.rule + "]\n  to fix: " + finding.fix;
    for (const std::string& detail : finding.details) text += "\n    " + detail;
    report_.complain(text);
  }
}

void ClusterCommand::refuse_holds(const std::vector<NodeLook>& looks) {
  const std::string hold = hold_text(looks);
  if (hold.empty()) return;
  if (options_.force_hold.empty())
    fail(ClusterOutcome::kFailed,
         "somebody holds the cluster: " + hold + "\n  ask its owner, or --force-hold REASON");
  report_.complain("WARN: going on in spite of " + hold + " (" + options_.force_hold + ")");
}

ClusterOutcome ClusterCommand::report_end(const std::string& command, const RunResult& result,
                                          const std::string& evidence) {
  const std::string took = "(+" + format_fixed(monotonic_s() - begin_, 1) + "s)";
  if (result.ok) {
    const std::string text = command == "start"
                                 ? "cluster ready; memory guards are active on all nodes " + took
                             : command == "stop"  ? "cluster stopped " + took
                             : command == "prune" ? "nothing retired is left " + took
                                                  : "all nodes are at " + options_.revision + " " + took;
    say(text, {{"event", "end"}, {"command", command}, {"ok", true}});
    return ClusterOutcome::kDone;
  }
  say("", {{"event", "end"}, {"command", command}, {"ok", false}, {"problem", result.problem}});
  std::string text = command + " failed: " + result.problem;
  if (command == "start" || command == "sync")
    text += result.taken_back ? std::string("\n  everything it did was taken back") +
                                    (result.restored ? "; the service from before serves again" : "")
                              : "\n  `spark status` shows what is left; the next start or stop takes it back";
  std::error_code absent;
  if (command == "start" && std::filesystem::exists(evidence, absent))
    text += "\n  next: " + evidence +
            " has the whole log and the state of every rank; correct what they say, then start again";
  report_.complain(text);
  if (result.interrupted) return ClusterOutcome::kInterrupted;
  return result.unreachable ? ClusterOutcome::kUnreachable : ClusterOutcome::kFailed;
}

// Logs are brought here for later: that they find no place does not change how the command ended.
void ClusterCommand::ship() try {
  const LogRing ring{.folder = log_folder(repository_, site_.profile.service_name())};
  size_t bytes = 0;
  for (const ShippedLog& log : ship_logs(remote_, site_, plan_launches(site_), ring, stop_))
    bytes += log.bytes;
  if (bytes > 0)
    say("logs: " + format_bytes(bytes) + " new in " + ring.folder,
        {{"event", "logs"}, {"bytes", bytes}, {"folder", ring.folder}});
} catch (const Error& error) {
  report_.complain("WARN: the logs of the ranks were not brought here: " + error.describe());
} catch (const std::filesystem::filesystem_error& error) {
  report_.complain("WARN: the logs of the ranks were not brought here: " + std::string(error.what()));
}

ClusterOutcome ClusterCommand::run(const std::string& command, const Waves& waves) {
  const RunHeader header = header_for(command);
  prune_journals(folder_, kKeptJournals);
  auto journal = std::make_shared<Journal>(Journal::create(folder_, header.run));
  RunLog log(header, waves, [journal](Json record) { journal->append(std::move(record)); });
  const auto actions = actions_for(header);
  begin_ = monotonic_s();
  // What ran before is about to be stopped: its logs first.
  if (command == "stop" || options_.replace) ship();
  const RunResult result = carry_out(log, outcome_of(command), *actions, hooks());
  if (command == "start" && result.ok) ship();
  const ClusterOutcome outcome = report_end(command, result, header.evidence);
  if (result.restored) judge_restored();
  return outcome;
}

// That a token came says little about a service that came back: the nodes are compared with the profile.
void ClusterCommand::judge_restored() {
  const std::vector<NodeAnswer> answers =
      probe_nodes(site_, site_.nodes.deployment_order(), {.fragmentation = false}, remote_, undo_stop_);
  size_t errors = 0;
  for (const Finding& finding : diagnose_live(site_, answers, {})) {
    if (finding.severity != Severity::kError) continue;
    ++errors;
    report_.complain("WARN: restored, but " + finding.where + ": " + finding.evidence + " [" + finding.rule +
                     "]");
  }
  say(errors == 0 ? "the live doctor finds no error in the restored service" : "",
      {{"event", "restored"}, {"errors", errors}});
}

ClusterOutcome ClusterCommand::start() try {
  const LocalState local = local_state(repository_);
  if (!local.changes.empty()) {
    std::string list;
    for (const std::string& change : local.changes) list += "\n    " + change;
    fail(ClusterOutcome::kFailed, "the repository here has changes that are not committed" + list +
                                      "\n  commit or undo them: nodes run what is committed");
  }
  lock();
  recover_earlier(options_.replace ? RecoveryAim::kRestoreNames : RecoveryAim::kRestoreService, "start");
  if (start_finished_ && !options_.replace) {
    say("cluster ready: the earlier start is finished; memory guards are active on all nodes",
        {{"event", "end"}, {"command", "start"}, {"ok", true}});
    return ClusterOutcome::kDone;
  }
  const auto actions = actions_for(header_for("start"));
  std::vector<const Node*> nodes = site_.nodes.deployment_order();
  std::vector<NodeLook> looks;
  std::vector<NodeAnswer> answers;
  {
    std::jthread looking([&] { looks = actions->look(stop_); });
    answers = probe_nodes(site_, nodes, {.fragmentation = false}, remote_, stop_);
  }
  if (stop_.stop_requested()) return ClusterOutcome::kInterrupted;
  const Findings findings = judge_preflight({.site = site_,
                                             .local = local,
                                             .answers = answers,
                                             .looks = looks,
                                             .replace = options_.replace,
                                             .holds_forced = !options_.force_hold.empty()});
  if (has_error(findings)) {
    refuse_findings(findings);
    fail(any_node_away(looks) ? ClusterOutcome::kUnreachable : ClusterOutcome::kFailed,
         "preflight failed; nothing was changed");
  }
  refuse_holds(looks);
  const std::string warnings = preflight_warnings(site_, findings);
  say("preflight passed on " + std::to_string(looks.size()) + " nodes" + (warnings.empty() ? "" : ", ") +
          warnings,
      {{"event", "preflight"}, {"warnings", findings.size()}});
  const std::string backup = site_.profile.service_name() + "-pre-" + std::to_string(std::time(nullptr));
  return run("start", plan_start(situation_of(looks, actions->launches()), {options_.replace, backup}));
} catch (const Failure& failure) {
  return failure.outcome;
}

ClusterOutcome ClusterCommand::stop() try {
  lock();
  const auto actions = actions_for(header_for("stop"));
  const std::vector<NodeLook> looks = actions->look(stop_);
  refuse_holds(looks);
  recover_earlier(RecoveryAim::kRestoreNames, "stop");
  return run("stop", plan_stop(situation_of(looks, actions->launches()), options_.stop));
} catch (const Failure& failure) {
  return failure.outcome;
}

ClusterOutcome ClusterCommand::prune() try {
  lock();
  recover_earlier(RecoveryAim::kRestoreService, "prune");
  const auto actions = actions_for(header_for("prune"));
  const std::vector<NodeLook> looks = actions->look(stop_);
  refuse_holds(looks);
  for (const std::string& folder : prunable_evidence(site_, repository_, options_.keep)) {
    std::filesystem::remove_all(folder);
    say("here: removed " + folder, {{"event", "evidence"}, {"removed", folder}});
  }
  return run("prune", plan_prune(situation_of(looks, actions->launches())));
} catch (const Failure& failure) {
  return failure.outcome;
}

}  // namespace spark::ops
