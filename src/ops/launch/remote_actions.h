// Steps carried out on real nodes, through ops/remote.
#pragma once

#include <functional>
#include <memory>

#include "ops/launch/executor.h"
#include "ops/launch/node_look.h"
#include "ops/launch/node_scripts.h"
#include "ops/remote/remote.h"

namespace spark::ops {

struct RemoteActionsOptions {
  NodeScriptContext context;
  std::string evidence_folder;                                 // of kEvidence; made when it is needed
  std::function<void(const std::string& line)> progress = {};  // of long waits
  std::function<void(const std::string& line)> warn = {};
};

class RemoteActions : public StepActions {
 public:
  RemoteActions(const Site& site, const Remote& remote, RemoteActionsOptions options);

  std::vector<StepResult> perform(const Wave& wave, std::stop_token stop) override;

  const std::vector<RankLaunch>& launches() const { return launches_; }  // in deployment order
  RemoteNode target(const std::string& node) const;
  std::vector<NodeLook> look(std::stop_token stop = {}) const;  // at every node at once, in deployment order

 private:
  const RankLaunch* launch_of(const std::string& node) const;
  StepResult wait_ready(const Step& step, const std::stop_token& stop);
  StepResult keep_evidence(const Step& step);
  void keep_words(const Step& step, const std::string& words) const;
  std::string last_log_lines(const std::string& node) const;

  const Site& site_;
  const Remote& remote_;
  RemoteActionsOptions options_;
  std::vector<RankLaunch> launches_;
};

// Every rank's launch in deployment order.
std::vector<RankLaunch> plan_launches(const Site& site);

}  // namespace spark::ops
