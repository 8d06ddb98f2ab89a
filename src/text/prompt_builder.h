// Puts a prompt together from control tokens and text. Internal to the room; see chat.h.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "text/chat.h"

namespace spark::text {

class PromptBuilder {
 public:
  void text(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().control) segments_.push_back({});
    segments_.back().text.append(text);
  }
  void control(std::string_view spelling) { segments_.push_back({true, std::string(spelling)}); }

  std::vector<PromptSegment> take() { return std::move(segments_); }

 private:
  std::vector<PromptSegment> segments_;
};

// The tool description with the schemas in it. Its example calls contain control tokens.
void append_tool_block(const ChatTemplateParts& parts, const std::vector<Json>& tools, PromptBuilder& prompt);

// "<｜DSML｜ calls>" ... "</｜DSML｜ calls>", without the empty line before it.
void append_tool_calls(const std::vector<ToolCall>& calls, PromptBuilder& prompt);

// "<｜DSML｜ calls>" and a line break: the model must go on with a call.
void open_tool_calls(PromptBuilder& prompt);

// <｜DSML｜ invoke name="NAME"> and a line break: its parameters follow.
void open_tool_call(std::string_view name, PromptBuilder& prompt);

}  // namespace spark::text
