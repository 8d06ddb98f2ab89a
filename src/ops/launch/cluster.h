// `spark cluster start|stop|sync|prune --apply`: everything around a run. One command at a time, nobody's
// hold broken, what an earlier command left first, then preflight, then the run.
//
//   ClusterCommand command(site, repository, remote, {.replace = true}, report);
//   ClusterOutcome outcome = command.start();
#pragma once

#include "ops/launch/planner.h"
#include "ops/launch/remote_actions.h"
#include "ops/launch/run.h"
#include "ops/site/finding.h"

namespace spark::ops {

enum class ClusterOutcome { kDone, kFailed, kUnreachable, kInterrupted };

struct ClusterOptions {
  bool replace = false;    // start
  StopOptions stop = {};   // stop
  std::string revision;    // sync
  size_t keep = 5;         // prune: how many failed starts' evidence stays
  bool take_over = false;  // the claim of another machine
  std::string force_hold;  // reason to go on in spite of a hold
};

// Progress as text and as one JSON object per event; the caller prints one of them.
struct ClusterReport {
  std::function<void(const std::string& text, const Json& event)> progress = [](auto&, auto&) {};
  std::function<void(const std::string& text)> complain = [](auto&) {};
};

class ClusterCommand {
 public:
  ClusterCommand(const Site& site, const Repository& repository, const Remote& remote, ClusterOptions options,
                 ClusterReport report, std::stop_token stop = {}, std::stop_token undo_stop = {});

  ClusterOutcome start();
  ClusterOutcome stop();
  ClusterOutcome sync();
  ClusterOutcome prune();

 private:
  struct Failure {
    ClusterOutcome outcome;
  };

  void lock();
  void recover_earlier(RecoveryAim aim, const std::string& command);
  ClusterOutcome run(const std::string& command, const Waves& waves);
  ClusterOutcome report_end(const std::string& command, const RunResult& result, const std::string& evidence);
  void refuse_holds(const std::vector<NodeLook>& looks);
  void refuse_findings(const Findings& findings);
  std::unique_ptr<RemoteActions> actions_for(const RunHeader& header);
  RunHooks hooks();
  void tell_step(const Step& step, const StepResult& result);
  void ship();  // the logs that are there
  void judge_restored();
  void say(const std::string& text, Json event = {});
  [[noreturn]] void fail(ClusterOutcome outcome, const std::string& text);
  RunHeader header_for(const std::string& command) const;

  const Site& site_;
  const Repository& repository_;
  const Remote& remote_;
  ClusterOptions options_;
  ClusterReport report_;
  std::stop_token stop_;
  std::stop_token undo_stop_;
  std::string folder_;
  std::string me_;
  std::optional<Descriptor> lock_;
  bool start_finished_ = false;
  double begin_ = 0;
};

// Where the journals of a service lie: results/private/launch/SERVICE below the repository.
std::string launch_folder(const Repository& repository, const std::string& service);

// Evidence of failed starts that `spark cluster prune` removes.
std::vector<std::string> prunable_evidence(const Site& site, const Repository& repository, size_t keep);

// What the journals say: the run that did not end, or the last one; "" when there was none.
struct RunHistory {
  std::string at_work;  // the command that runs now, on this machine
  std::string unfinished;
  std::string last;
};
RunHistory run_history(const std::string& folder);

std::string user_and_host();

}  // namespace spark::ops
