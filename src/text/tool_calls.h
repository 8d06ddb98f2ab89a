// Reads tool calls from the model's output, as it streams.
//
//   ToolCallParser parser(output_start(messages, options));
//   for (const ToolCallEvent& event : parser.push(content)) ...
//   for (const ToolCallEvent& event : parser.flush(true)) ...
//
// Content comes out as it arrives, except for what could be the two line breaks and the tag that open a
// block. Inside the block each call gives kStart (its name), kArguments (pieces that join to one JSON object)
// and kEnd. String arguments stream; others are checked and come whole.
//
// Strict mode takes the reference grammar to the letter and throws Error for anything else. Tolerant mode,
// for serving, takes a block without the line breaks before it, ignores what stands between tags, and accepts
// missing closing tags, a missing string="..." and values that are not the JSON they claim to be (they become
// strings). Of arguments with one name the first counts. Text after the block is content again.
//
// When the output ends inside a call: flush(true), the model ended it, closes what is open in tolerant mode
// and is an Error in strict mode; flush(false), it was cut off, leaves the arguments as they are, without
// kEnd.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/reasoning.h"
#include "text/stop_strings.h"

namespace spark::text {

struct ToolCallEvent {
  enum class Kind { kContent, kStart, kArguments, kEnd };
  Kind kind = Kind::kContent;
  size_t call = 0;   // counted from 0; not for content
  std::string text;  // content, name of the call, or a piece of its arguments
};

class ToolCallParser {
 public:
  explicit ToolCallParser(OutputStart start, Strictness strictness = Strictness::kTolerant);

  std::vector<ToolCallEvent> push(std::string_view text);
  std::vector<ToolCallEvent> flush(bool ended);

  size_t call_count() const { return calls_; }      // calls whose name is known
  bool call_is_open() const { return call_open_; }  // after flush(false): the output was cut within a call

 private:
  enum class State : uint8_t {
    kContent,
    kBlock,
    kCallName,
    kCall,
    kParameterName,
    kParameterType,
    kValue,
    kAfter
  };
  enum class Mark : uint8_t {
    kOpenCalls,
    kCloseCalls,
    kOpenCall,
    kCloseCall,
    kOpenParameter,
    kCloseParameter,
    kEndOfName,
    kEndOfTag,
  };
  // What may end the text of a state, in the order of the matcher's strings.
  struct Scanner {
    StopStrings matcher;
    std::vector<Mark> marks;
  };
  enum class ValueType : uint8_t { kString, kJson, kIgnored };

  Scanner make_scanner(State state) const;
  Scanner& scanner() { return scanners_[static_cast<size_t>(state_)]; }
  std::string_view skip_after_block(std::string_view text);
  void take_text(const std::string& text);
  void take_mark(Mark mark);
  void check_gap(Mark mark);
  void start_call();
  void open_parameter();
  void start_value();
  void end_value();
  void end_call();
  void add(ToolCallEvent::Kind kind, std::string text);
  bool strict() const { return strictness_ == Strictness::kStrict; }
  [[noreturn]] void fail(const std::string& what) const;

  State state_;
  Strictness strictness_;
  std::vector<Scanner> scanners_;  // by state
  std::vector<ToolCallEvent> events_;
  std::string text_;        // since the last mark, outside content and string values
  std::string gap_before_;  // strict: what must stand before the next tag
  std::string parameter_;
  std::set<std::string> names_;  // of the call's parameters
  ValueType type_ = ValueType::kString;
  bool call_open_ = false;
  size_t calls_ = 0;
};

}  // namespace spark::text
