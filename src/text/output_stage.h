// Where the model's output begins, as the prompt left it: what the parsers of the output must know.
#pragma once

namespace spark::text {

enum class OutputStage {
  kReasoning,  // after <think>, before its close
  kContent,
  kToolCalls,  // inside a block of tool calls that the prompt opened
};

}  // namespace spark::text
