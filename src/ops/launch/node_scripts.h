// What a step does on its node, as a script for the node's sh. Pure: rank and step -> text. Scripts find out
// what is there before they act, so that a step that was interrupted can be repeated, and an undo may come
// after any part of what it takes back. They print "key=value" lines.
//
// Nothing here starts a service without a guard that answers, and nothing ends a guard while its service
// runs.
#pragma once

#include "ops/launch/render.h"
#include "ops/launch/steps.h"

namespace spark::ops {

// Steps that run on a node; kReady and kEvidence are made of other calls (ops/launch/readiness.h,
// evidence.h).
struct NodeScriptContext {
  GuardLaunch steady;                            // limits of kSteady
  std::string claim;                             // one line for the claim file: who, what, since when
  std::string owner;                             // end of that line: whoever has it may replace the claim
  std::string run;                               // name of the run
  bool take_over = false;                        // another run's claim is replaced
  std::map<std::string, std::string> node_maps;  // of kCheckout: path in the checkout -> content
};
std::string step_script(const RankLaunch& launch, const Step& step, const NodeScriptContext& context);
double step_timeout_s(StepKind kind);

// Everything `spark status` and the readiness loop want to know of a node; changes nothing.
std::string look_script(const RankLaunch& launch);

// "key=value" lines; others are dropped.
std::map<std::string, std::string> read_values(std::string_view output);

// The parts of a URL of a git repository that name it: "git@host:a/b.git" and "https://host/a/b" are one.
std::string normalised_origin(const std::string& url);

inline constexpr const char* kClaimFile = ".spark-cluster-claim";  // in the home of the login, on the head

}  // namespace spark::ops
