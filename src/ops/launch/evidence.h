// What is kept of a start that failed, before its containers are removed: per node the container as Docker
// describes it, its whole log, the guard's status and journal, memory and the kernel's last words; and what
// the step said that failed.
#pragma once

#include "ops/launch/render.h"
#include "ops/remote/remote.h"

namespace spark::ops {

// experiments/NAME/runs/failed-starts/TIME-SERVICE for a profile that lies directly in an experiment,
// results/private/failed-starts/TIME-SERVICE otherwise; relative to the repository.
std::string evidence_folder(const std::string& profile, const std::string& service, const std::string& time);

// Folders of failed starts of this service beside `newest` (an evidence_folder), oldest first, without the
// last `keep`.
std::vector<std::string> old_evidence(const std::string& newest, const std::string& service, size_t keep);

// Files NODE.log, NODE.inspect.json, NODE.state below `folder`, which is created. Throws Error when nothing
// could be had from the node or written here.
void save_evidence(const Remote& remote, const RemoteNode& node, const RankLaunch& launch,
                   const std::string& folder);

// File NODE.start: all that a step which failed there wrote. Nothing is written for a single line, which the
// step's problem tells already. Throws Error.
void save_step_words(const std::string& words, const std::string& node, const std::string& folder);

// Prints the service's last lines, or all of them (lines < 0), with times where Docker keeps them.
std::string log_script(const RankLaunch& launch, int lines, const std::string& since = {});

}  // namespace spark::ops
