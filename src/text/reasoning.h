// Splits the model's output into reasoning and content, as it streams.
//
//   ReasoningParser parser(true);
//   parser.push("Two and two");        // .reasoning = "Two and two"
//   parser.push(" are four</think>4"); // .reasoning = " are four", .content = "4"
//
// Reasoning ends at "</think>". What could be the start of a marker waits. In tolerant mode, which is how
// models are served, a tool block that opens inside reasoning ends it, and a "</think>" in the content is
// dropped (not inside a tool block: there it belongs to an argument). In strict mode the former is an Error
// and the latter is content. Text is passed on as it is; no white space is trimmed, so that a conversation
// sent back renders to the same tokens.
#pragma once

#include <string>
#include <string_view>

#include "text/output_start.h"
#include "text/stop_strings.h"

namespace spark::text {

enum class Strictness { kStrict, kTolerant };

class ReasoningParser {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
  };

  // Without tools in the request: tool blocks are not looked for.
  explicit ReasoningParser(bool in_reasoning) : ReasoningParser({in_reasoning, false}, false) {}
  // `tool_calls`: the request has tools.
  ReasoningParser(OutputStart start, bool tool_calls, Strictness strictness = Strictness::kTolerant);

  Piece push(std::string_view text);
  Piece flush();

  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State { kReasoning, kContent, kVerbatim };
  static State first_state(OutputStart start, Strictness strictness);
  void reasoning_ended(size_t marker, Piece& piece);
  void content_marker(size_t marker, Piece& piece);

  State state_;
  Strictness strictness_;
  StopStrings reasoning_end_;
  StopStrings content_markers_;
};

}  // namespace spark::text
