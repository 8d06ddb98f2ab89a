// What became of asking a node.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ops/probe/facts.h"

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
  Faults faults = {};     // of reading the answer
  std::string text = {};  // the answer as it came
  // When the script was sent and its answer complete, on this machine's clock (seconds since 1970); empty for
  // recorded answers.
  std::optional<double> sent_s = {}, received_s = {};
};

// What a node answered, as text, becomes facts.
NodeAnswer read_answer(const std::string& node, std::string_view answer);

}  // namespace spark::ops
