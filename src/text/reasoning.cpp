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

ReasoningParser::ReasoningParser(OutputStage stage, Strictness strictness, bool tool_calls)
    : state_(first_state(stage, strictness)),
      strictness_(strictness),
      reasoning_end_(markers(strictness, tool_calls)),
      content_markers_(markers(strictness, tool_calls)) {}

// Only tolerant reading looks for a stray </think>, and not among the arguments of tool calls.
ReasoningParser::State ReasoningParser::first_state(OutputStage stage, Strictness strictness) {
  if (stage == OutputStage::kReasoning) return State::kReasoning;
  if (stage == OutputStage::kToolCalls || strictness == Strictness::kStrict) return State::kVerbatim;
  return State::kContent;
}

ReasoningParser::Delta ReasoningParser::push(std::string_view text) {
  Delta delta;
  while (state_ != State::kVerbatim) {
    const bool reasoning = state_ == State::kReasoning;
    StopStrings& matcher = reasoning ? reasoning_end_ : content_markers_;
    (reasoning ? delta.reasoning : delta.content) += matcher.push(text);
    if (!matcher.stopped()) return delta;
    text = text.substr(text.size() - matcher.unread());
    const size_t marker = *matcher.matched();
    matcher.restart();
    if (reasoning) {
      reasoning_ended(marker, delta);
    } else {
      content_marker(marker, delta);
    }
  }
  delta.content += text;
  return delta;
}

void ReasoningParser::reasoning_ended(size_t marker, Delta& delta) {
  if (marker == 0) {
    state_ = strictness_ == Strictness::kStrict ? State::kVerbatim : State::kContent;
    return;
  }
  if (strictness_ == Strictness::kStrict)
    throw Error("tool calls begin before the end of the reasoning", "output");
  delta.content += marker_text(marker);
  state_ = State::kVerbatim;
}

void ReasoningParser::content_marker(size_t marker, Delta& delta) {
  if (marker == 0) return;  // a stray </think>
  delta.content += marker_text(marker);
  state_ = State::kVerbatim;
}

ReasoningParser::Delta ReasoningParser::flush() {
  return {.reasoning = reasoning_end_.flush(), .content = content_markers_.flush()};
}

}  // namespace spark::text
