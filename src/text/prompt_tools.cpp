// Tools in prompts: their description and the calls of earlier turns.
#include <array>

#include "common/error.h"
#include "text/json_text.h"
#include "text/prompt_builder.h"

namespace spark::text {
namespace {

// The block's tags have a blank between the token and the name: <｜DSML｜ calls>.
void append_tag(std::string_view open, std::string_view rest, PromptBuilder& prompt) {
  prompt.text(open);
  prompt.control(control::kDsml);
  prompt.text(rest);
}

// Text of the checkpoint, in which the protocol's tokens are tokens.
void append_trusted(std::string_view text, PromptBuilder& prompt) {
  constexpr std::array<std::string_view, 3> kTokens = {control::kDsml, control::kThinkOpen,
                                                       control::kThinkClose};
  while (!text.empty()) {
    size_t first = std::string_view::npos;
    std::string_view found;
    for (const std::string_view token : kTokens) {
      const size_t at = text.find(token);
      if (at < first) {
        first = at;
        found = token;
      }
    }
    prompt.text(text.substr(0, first));
    if (found.empty()) return;
    prompt.control(found);
    text.remove_prefix(first + found.size());
  }
}

// The arguments as an object, also when they were encoded twice; nothing when they are anything else. Throws
// Error for a number that only Python can hold: the model must not read another one.
std::optional<Json> decode_arguments(const std::string& text) {
  constexpr JsonLimits kLimits = {.max_members = 10000, .exact_integers = true};
  try {
    Json value = parse_json(text, "arguments", kLimits);
    if (value.is_string()) value = parse_json(value.get<std::string>(), "arguments", kLimits);
    if (value.is_object()) return value;
  } catch (const JsonRangeError&) {
    throw;
  } catch (const Error&) {
    // Not JSON: the caller passes the text on as it is.
  }
  return std::nullopt;
}

void append_parameter(std::string_view name, const Json& value, PromptBuilder& prompt) {
  append_tag("<", " parameter name=\"", prompt);
  prompt.text(name);
  prompt.text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
  prompt.text(value.is_string() ? value.get<std::string>() : to_prompt_json(value));
  append_tag("</", " parameter>", prompt);
}

void append_call(const ToolCall& call, PromptBuilder& prompt) {
  open_tool_call(call.name, prompt);
  const Json arguments = decode_arguments(call.arguments).value_or(Json{{"arguments", call.arguments}});
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    if (it != arguments.begin()) prompt.text("\n");
    append_parameter(it.key(), it.value(), prompt);
  }
  prompt.text("\n");
  append_tag("</", " invoke>", prompt);
}

}  // namespace

void append_tool_block(const ChatTemplateParts& parts, const std::vector<Json>& tools,
                       PromptBuilder& prompt) {
  append_trusted(parts.before_schemas, prompt);
  for (size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) prompt.text("\n");
    prompt.text(to_prompt_json(tools[i]));
  }
  append_trusted(parts.after_schemas, prompt);
}

void open_tool_calls(PromptBuilder& prompt) {
  append_tag("<", " calls>\n", prompt);
}

void open_tool_call(std::string_view name, PromptBuilder& prompt) {
  append_tag("<", " invoke name=\"", prompt);
  prompt.text(name);
  prompt.text("\">\n");
}

void append_tool_calls(const std::vector<ToolCall>& calls, PromptBuilder& prompt) {
  open_tool_calls(prompt);
  for (const ToolCall& call : calls) {
    append_call(call, prompt);
    prompt.text("\n");
  }
  append_tag("</", " calls>", prompt);
}

}  // namespace spark::text
