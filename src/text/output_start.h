// Where the model's output begins, as the prompt left it: what the parsers of the output must know.
#pragma once

#include <string>

namespace spark::text {

struct OutputStart {
  bool in_reasoning = false;   // after <think>, before its close
  bool in_tool_calls = false;  // inside a block of tool calls that the prompt opened
  std::string tool_name = {};  // of the call that the prompt opened within it
};

}  // namespace spark::text
