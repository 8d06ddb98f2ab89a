#include "text/reasoning.h"

#include "common/error.h"
#include "text/chat.h"
#include "text/dsml.h"

namespace spark::text {
namespace {

// Marker 0 is </think>; the others open a tool block, with the line breaks before it.
std::string marker_text(size_t marker) {
  if (marker == 0) return std::string(control::kThinkClose);
  return std::string(dsml::kBreakBeforeCalls.substr(marker - 1)).append(dsml::kOpenCalls);
}

std::vector<std::string> markers(Strictness strictness, bool tool_calls) {
  std::vector<std::string> result = {marker_text(0)};
  if (tool_calls) result.push_back(marker_text(1));
  if (tool_calls && strictness == Strictness::kTolerant) {
    result.push_back(marker_text(2));
    result.push_back(marker_text(3));
  }
  return result;
}

}  // namespace

ReasoningParser::ReasoningParser(OutputStart start, bool tool_calls, Strictness strictness)
    : state_(first_state(start, strictness)),
      strictness_(strictness),
      reasoning_end_(markers(strictness, tool_calls)),
      content_markers_(markers(strictness, tool_calls)) {}

// Only tolerant reading looks for a stray </think>, and not among the arguments of tool calls.
ReasoningParser::State ReasoningParser::first_state(OutputStart start, Strictness strictness) {
  if (start.in_reasoning) return State::kReasoning;
  if (start.in_tool_calls || strictness == Strictness::kStrict) return State::kVerbatim;
  return State::kContent;
}

ReasoningParser::Piece ReasoningParser::push(std::string_view text) {
  Piece piece;
  while (state_ != State::kVerbatim) {
    const bool reasoning = state_ == State::kReasoning;
    StopStrings& matcher = reasoning ? reasoning_end_ : content_markers_;
    (reasoning ? piece.reasoning : piece.content) += matcher.push(text);
    if (!matcher.stopped()) return piece;
    text = text.substr(text.size() - matcher.unread());
    const size_t marker = *matcher.matched();
    matcher.restart();
    if (reasoning) {
      reasoning_ended(marker, piece);
    } else {
      content_marker(marker, piece);
    }
  }
  piece.content += text;
  return piece;
}

void ReasoningParser::reasoning_ended(size_t marker, Piece& piece) {
  if (marker == 0) {
    state_ = strictness_ == Strictness::kStrict ? State::kVerbatim : State::kContent;
    return;
  }
  if (strictness_ == Strictness::kStrict)
    throw Error("tool calls begin before the end of the reasoning", "output");
  piece.content += marker_text(marker);
  state_ = State::kVerbatim;
}

void ReasoningParser::content_marker(size_t marker, Piece& piece) {
  if (marker == 0) return;  // a stray </think>
  piece.content += marker_text(marker);
  state_ = State::kVerbatim;
}

ReasoningParser::Piece ReasoningParser::flush() {
  return {.reasoning = reasoning_end_.flush(), .content = content_markers_.flush()};
}

}  // namespace spark::text
