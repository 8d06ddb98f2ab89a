#include "engine/serve/chat_prompt.h"

#include <charconv>

namespace spark::engine {
namespace {

int effort_of(const std::string& name) {
  if (const auto known = text::parse_reasoning_effort(name)) return *known;
  int value = text::kDefaultReasoningEffort;
  std::from_chars(name.data(), name.data() + name.size(), value);  // the request's reader has checked it
  return value;
}

text::ToolChoice choice_of(const api::ChatRequest& request) {
  switch (request.tool_choice) {
    case api::ToolChoice::kNone:
      return text::ToolChoice::kNone;
    case api::ToolChoice::kRequired:
      return text::ToolChoice::kRequired;
    case api::ToolChoice::kNamed:
      return text::ToolChoice::kNamed;
    case api::ToolChoice::kAuto:
      break;
  }
  return text::ToolChoice::kAuto;
}

text::ChatOptions options_of(const api::ChatRequest& request,
                             const std::optional<text::ChatTemplateParts>& tool_text) {
  text::ChatOptions options;
  options.tools = request.tools;
  options.tool_choice = choice_of(request);
  options.tool_name = request.tool_name;
  options.template_parts = tool_text;
  options.thinking = request.thinking.value_or(true);
  if (request.reasoning_effort && *request.reasoning_effort != "none") {
    options.reasoning_effort = effort_of(*request.reasoning_effort);
  }
  options.continue_final_message = request.continue_final_message;
  options.add_generation_prompt = request.add_generation_prompt;
  return options;
}

std::vector<text::ChatMessage> messages_of(const api::ChatRequest& request) {
  std::vector<text::ChatMessage> messages;
  for (const api::ChatMessage& given : request.messages) {
    text::ChatMessage message;
    message.role = text::parse_role(given.role).value_or(text::Role::kUser);
    for (const std::string& part : given.content) message.content.push_back(text::text_part(part));
    if (!given.reasoning.empty()) message.reasoning = given.reasoning;
    for (const api::ToolCall& call : given.tool_calls)
      message.tool_calls.push_back({call.id, call.name, call.arguments});
    message.tool_call_id = given.tool_call_id;
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace

bool offers_tools(const api::ChatRequest& request) {
  return !request.tools.empty() && request.tool_choice != api::ToolChoice::kNone;
}

ChatPrompt encode_chat_request(const api::ChatRequest& request, const text::Tokenizer& tokenizer,
                               const std::optional<text::ChatTemplateParts>& tool_text,
                               const text::EncodeBounds& bounds) {
  if (offers_tools(request) && !tool_text) {
    throw api::RequestError(api::bad_request(
        "this checkpoint has no tool text: put the model's own encoding/encoding.py into its folder",
        "tools"));
  }
  try {
    const auto messages = messages_of(request);
    const auto options = options_of(request, tool_text);
    return {text::encode_chat(messages, options, tokenizer, bounds), text::output_start(messages, options)};
  } catch (const Error& error) {
    throw api::RequestError(api::bad_request(error.describe(), error.where()));
  }
}

}  // namespace spark::engine
