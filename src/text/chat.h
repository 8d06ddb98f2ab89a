// Conversations to prompts in the format of DeepSeek V4.1 Flash (there is no Jinja template).
//
//   ChatOptions options;
//   options.thinking = false;
//   encode_chat({{.role = Role::kUser, .content = {text_part("What is 2+2?")}}}, options, tokenizer);
//   // <｜begin▁of▁sentence｜><｜User｜>What is 2+2?<｜Assistant｜></think>
//
// A prompt is a list of segments: control tokens of the protocol, and text between them. Only the former
// become control tokens; everything that came from a user, a tool or a model is encoded as plain text,
// whatever it spells.
//
// The order of things:
//   - tool results become parts of a user message; consecutive user messages merge, unless the earlier has a
//     task; the results of one user message stand in the order of the calls they answer;
//   - system text, tool descriptions and the response format open the prompt, in thinking mode after a line
//     that states the effort;
//   - every assistant turn opens with <｜Assistant｜> and <think> or </think>. Reasoning is kept in the turn
//     that the model writes (a new one, or the last message with `continue_final_message`), and in all turns
//     if the conversation has tools.
// Where the official implementations differ (a reminder before an answer, an answer as the last message) this
// follows the `deepseek-recipe` package 0.2.
//
// Errors (spark::Error, with "messages[3].content" and the like as place): no messages, a continued message
// that is not an assistant's, tools without the published tool text, a literal image placeholder in text, a
// control token that the tokenizer does not have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "text/output_start.h"
#include "text/tokenizer.h"

namespace spark::text {

// Control tokens of the protocol, as the tokenizer spells them.
namespace control {
inline constexpr std::string_view kBeginOfSentence = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kImage = "<｜deepseek_image｜>";
}  // namespace control

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// "system", "developer" (read as system), "user", "assistant", "tool", "latest_reminder".
std::optional<Role> parse_role(std::string_view name);

struct ContentPart {
  enum class Kind { kText, kImage, kUnsupported };
  Kind kind = Kind::kText;
  std::string text;  // of a text part
};

inline ContentPart text_part(std::string text) {
  return {ContentPart::Kind::kText, std::move(text)};
}

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; anything else is passed on as one parameter "arguments"
};

// What a user message asks for instead of an answer.
enum class ChatTask { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct ChatMessage {
  Role role = Role::kUser;
  std::vector<ContentPart> content;  // parts are joined by an empty line; images only in user messages
  std::optional<std::string> reasoning = {};  // assistant
  std::vector<ToolCall> tool_calls = {};      // assistant
  std::string tool_call_id = {};              // tool
  ChatTask task = ChatTask::kNone;            // user
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

// The tool description around the schemas: copyrighted text of the checkpoint's own encoder, read from there
// when the checkpoint is converted, with its fields filled in. `before_schemas` starts "## Tools",
// `after_schemas` with the empty line after the last schema.
struct ChatTemplateParts {
  std::string before_schemas;
  std::string after_schemas;
};

inline constexpr int kDefaultReasoningEffort = 75;

struct ChatOptions {
  bool thinking = true;
  int reasoning_effort = kDefaultReasoningEffort;  // 1 .. 100; in thinking mode
  std::vector<Json> tools;                         // the "function" object of each tool, as given
  // kNone leaves the tools out; kRequired opens the call block, kNamed also a call of `tool_name`
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name = {};
  std::optional<Json> response_format;              // the schema, or {"type": "json_object"}
  bool continue_final_message = false;              // the model goes on with the last (assistant) message
  bool add_generation_prompt = true;                // open an assistant turn after the last message
  std::optional<ChatTemplateParts> template_parts;  // needed for tools
};

// "low" = 50, "medium" and "high" = 75, "xhigh" = 75, "max" = 100, "minimal" = 50. "none" is not an effort:
// it turns thinking off.
std::optional<int> parse_reasoning_effort(std::string_view name);

struct PromptSegment {
  bool control = false;  // `text` is the spelling of one control token
  std::string text;
};

// Neighbouring texts are one segment.
std::vector<PromptSegment> render_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options);

std::string prompt_text(const std::vector<PromptSegment>& prompt);
std::vector<int32_t> encode_prompt(const std::vector<PromptSegment>& prompt, const Tokenizer& tokenizer,
                                   const EncodeBounds& bounds = {});

// Where the output of this prompt begins.
OutputStart output_start(const std::vector<ChatMessage>& messages, const ChatOptions& options);

std::vector<int32_t> encode_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options,
                                 const Tokenizer& tokenizer, const EncodeBounds& bounds = {});

}  // namespace spark::text
