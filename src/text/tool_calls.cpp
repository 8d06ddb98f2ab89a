#include "text/tool_calls.h"

#include <utility>

#include "common/error.h"
#include "common/json.h"
#include "text/dsml.h"
#include "text/json_text.h"

namespace spark::text {
namespace {

constexpr std::string_view kEndOfNameText = "\" string=\"";
constexpr std::string_view kEndOfTagText = "\">";

bool is_white_byte(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

}  // namespace

ToolCallParser::ToolCallParser(OutputStart start, Strictness strictness)
    : state_(start.in_tool_calls ? State::kBlock : State::kContent), strictness_(strictness) {
  // The prompt that opened a block also ended its line.
  for (uint8_t state = 0; state <= static_cast<uint8_t>(State::kAfter); ++state) {
    scanners_.push_back(make_scanner(static_cast<State>(state)));
  }
  if (!start.in_tool_calls || start.tool_name.empty()) return;
  text_ = start.tool_name;
  start_call();
  text_.clear();
}

ToolCallParser::Scanner ToolCallParser::make_scanner(State state) const {
  std::vector<std::string> texts;
  std::vector<Mark> marks;
  const auto mark = [&](Mark value, std::string_view text, std::string_view before = {}) {
    texts.push_back(std::string(before).append(text));
    marks.push_back(value);
  };
  switch (state) {
    case State::kContent:
      mark(Mark::kOpenCalls, dsml::kOpenCalls, "\n\n");
      if (!strict()) mark(Mark::kOpenCalls, dsml::kOpenCalls, "\n");
      if (!strict()) mark(Mark::kOpenCalls, dsml::kOpenCalls);
      break;
    case State::kBlock:
      mark(Mark::kOpenCall, dsml::kOpenCall);
      mark(Mark::kCloseCalls, dsml::kCloseCalls);
      break;
    case State::kCall:
      mark(Mark::kOpenParameter, dsml::kOpenParameter);
      mark(Mark::kCloseCall, dsml::kCloseCall);
      if (!strict()) mark(Mark::kOpenCall, dsml::kOpenCall);
      if (!strict()) mark(Mark::kCloseCalls, dsml::kCloseCalls);
      break;
    case State::kParameterName:
      mark(Mark::kEndOfName, kEndOfNameText);
      if (!strict()) mark(Mark::kEndOfTag, kEndOfTagText);
      break;
    case State::kCallName:
    case State::kParameterType:
      mark(Mark::kEndOfTag, kEndOfTagText);
      break;
    case State::kValue:
      mark(Mark::kCloseParameter, dsml::kCloseParameter);
      // Without the closing tag the line break before the next tag is not part of the value either.
      for (const std::string_view before : {"\n", ""}) {
        if (strict()) break;
        mark(Mark::kOpenParameter, dsml::kOpenParameter, before);
        mark(Mark::kCloseCall, dsml::kCloseCall, before);
        mark(Mark::kOpenCall, dsml::kOpenCall, before);
        mark(Mark::kCloseCalls, dsml::kCloseCalls, before);
      }
      break;
    case State::kAfter:
      break;
  }
  return {StopStrings(texts), std::move(marks)};
}

std::vector<ToolCallEvent> ToolCallParser::push(std::string_view text) {
  for (;;) {
    if (state_ == State::kAfter) text = skip_after_block(text);
    Scanner& now = scanner();
    take_text(now.matcher.push(text));
    if (!now.matcher.stopped()) break;
    text = text.substr(text.size() - now.matcher.unread());
    const Mark mark = now.marks[*now.matcher.matched()];
    now.matcher.restart();
    take_mark(mark);
  }
  return std::exchange(events_, {});
}

// White space after the block is dropped; anything else is content again.
std::string_view ToolCallParser::skip_after_block(std::string_view text) {
  if (strict()) {
    if (!text.empty()) fail("text follows the closing tag of the block");
    return text;
  }
  while (!text.empty() && is_white_byte(text.front())) text.remove_prefix(1);
  if (!text.empty()) state_ = State::kContent;
  return text;
}

void ToolCallParser::take_text(const std::string& text) {
  if (text.empty()) return;
  if (state_ == State::kContent) {
    add(ToolCallEvent::Kind::kContent, text);
  } else if (state_ == State::kValue && type_ == ValueType::kString) {
    std::string escaped;
    append_json_escaped(text, escaped);
    add(ToolCallEvent::Kind::kArguments, std::move(escaped));
  } else {
    text_ += text;
  }
}

void ToolCallParser::take_mark(Mark mark) {
  if (state_ == State::kValue) end_value();
  check_gap(mark);
  switch (mark) {
    case Mark::kOpenCalls:
      state_ = State::kBlock;
      gap_before_ = "\n";
      break;
    case Mark::kOpenCall:
      if (call_open_) end_call();
      state_ = State::kCallName;
      break;
    case Mark::kCloseCall:
      end_call();
      break;
    case Mark::kCloseCalls:
      if (call_open_) end_call();
      state_ = State::kAfter;
      break;
    case Mark::kOpenParameter:
      state_ = State::kParameterName;
      break;
    case Mark::kCloseParameter:
      state_ = State::kCall;
      gap_before_ = "\n";
      break;
    case Mark::kEndOfName:
      open_parameter();
      break;
    case Mark::kEndOfTag:
      if (state_ == State::kCallName) {
        start_call();
      } else {
        start_value();
      }
      break;
  }
  text_.clear();
}

// In strict mode tags follow each other after one line break; a call without arguments has an empty line.
void ToolCallParser::check_gap(Mark mark) {
  const bool tag = state_ == State::kBlock || state_ == State::kCall;
  if (!strict() || !tag) return;
  const bool empty_call = mark == Mark::kCloseCall && names_.empty();
  if (text_ != (empty_call ? "\n\n" : gap_before_)) fail("\"" + text_ + "\" stands between two tags");
}

void ToolCallParser::start_call() {
  call_open_ = true;
  names_.clear();
  add(ToolCallEvent::Kind::kStart, text_);
  ++calls_;
  state_ = State::kCall;
  gap_before_ = "\n";
}

void ToolCallParser::open_parameter() {
  parameter_ = text_;
  state_ = State::kParameterType;
}

void ToolCallParser::start_value() {
  if (state_ == State::kParameterName) {  // tolerant: no string="..."
    parameter_ = text_;
    type_ = ValueType::kJson;
  } else {
    if (strict() && text_ != "true" && text_ != "false")
      fail("string=\"" + text_ + "\" is neither true nor false");
    type_ = text_ == "true" ? ValueType::kString : ValueType::kJson;
  }
  state_ = State::kValue;
  const bool first = names_.empty();
  if (!names_.insert(parameter_).second) {
    if (strict()) fail("the parameter \"" + parameter_ + "\" stands twice in one call");
    type_ = ValueType::kIgnored;
    return;
  }
  std::string opening = first ? "{\"" : ", \"";
  append_json_escaped(parameter_, opening);
  opening += type_ == ValueType::kString ? "\": \"" : "\": ";
  add(ToolCallEvent::Kind::kArguments, std::move(opening));
}

void ToolCallParser::end_value() {
  if (type_ == ValueType::kString) {
    add(ToolCallEvent::Kind::kArguments, "\"");
  } else if (type_ == ValueType::kJson) {
    std::string value = std::exchange(text_, {});
    if (!strict() && !Json::accept(value)) {
      std::string quoted = "\"";
      append_json_escaped(value, quoted);
      value = quoted + '"';
    }
    add(ToolCallEvent::Kind::kArguments, std::move(value));
  }
  text_.clear();
  gap_before_.clear();
}

void ToolCallParser::end_call() {
  add(ToolCallEvent::Kind::kArguments, names_.empty() ? "{}" : "}");
  add(ToolCallEvent::Kind::kEnd, {});
  call_open_ = false;
  state_ = State::kBlock;
  gap_before_ = "\n";
}

void ToolCallParser::add(ToolCallEvent::Kind kind, std::string text) {
  const bool content = kind == ToolCallEvent::Kind::kContent;
  const bool start = kind == ToolCallEvent::Kind::kStart;
  const size_t call = content ? 0 : start ? calls_ : calls_ - 1;
  const bool joins = content || kind == ToolCallEvent::Kind::kArguments;
  if (joins && !events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
    return;
  }
  events_.push_back({kind, call, std::move(text)});
}

std::vector<ToolCallEvent> ToolCallParser::flush(bool ended) {
  take_text(scanner().matcher.flush());
  if (state_ != State::kContent && state_ != State::kAfter && ended) {
    if (strict()) fail("the output ends inside the block");
    if (state_ == State::kValue) end_value();
    if (call_open_) end_call();
    state_ = State::kAfter;
  }
  return std::exchange(events_, {});
}

void ToolCallParser::fail(const std::string& what) const {
  throw Error(what, "tool calls of the output", "the model did not keep to the format");
}

}  // namespace spark::text
