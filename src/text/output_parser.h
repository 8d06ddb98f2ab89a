// The model's output as the API returns it: reasoning, content and tool calls, streamed or whole.
//
//   OutputParser parser(output_start(messages, options), {.tool_calls = !options.tools.empty()});
//   OutputDelta delta = parser.push(detokenizer.push(id));
//
// Feed it text without the end-of-sentence token. See text/reasoning.h and text/tool_calls.h for the rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/reasoning.h"
#include "text/tool_calls.h"

namespace spark::text {

struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallEvent> tool_calls;  // kStart, kArguments and kEnd; content is in `content`
};

struct OutputParserOptions {
  bool tool_calls = true;  // false: the markup of tool calls is content
  Strictness strictness = Strictness::kTolerant;
};

class OutputParser {
 public:
  explicit OutputParser(OutputStart start, OutputParserOptions options = {});

  OutputDelta push(std::string_view text);
  // `ended`: the model ended the output; otherwise it was cut off.
  OutputDelta flush(bool ended);

  bool in_reasoning() const { return reasoning_.in_reasoning(); }
  size_t tool_call_count() const { return tool_calls_.call_count(); }
  bool tool_call_is_open() const { return tool_calls_.call_is_open(); }

 private:
  OutputDelta parsed(ReasoningParser::Piece piece);
  static void sort_events(std::vector<ToolCallEvent> events, OutputDelta& delta);

  OutputParserOptions options_;
  ReasoningParser reasoning_;
  ToolCallParser tool_calls_;
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // ids are empty: whoever answers gives them
};

ParsedOutput parse_output(std::string_view text, OutputStart start, OutputParserOptions options = {},
                          bool ended = true);

}  // namespace spark::text
