#include "text/chat.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/error.h"
#include "text/json_text.h"
#include "text/prompt_builder.h"

namespace spark::text {
namespace {

// A message as it is rendered: tool messages have become parts of user turns, neighbours have merged.
struct Turn {
  Role role;
  const ChatMessage* message;
  std::vector<const ChatMessage*> blocks;  // of a user turn: user and tool messages
};

bool uses_tools(const ChatOptions& options) {
  return !options.tools.empty() && options.tool_choice != ToolChoice::kNone;
}

// Whether the prompt itself opens the block of calls.
bool must_call(const ChatOptions& options) {
  return options.tool_choice == ToolChoice::kRequired || options.tool_choice == ToolChoice::kNamed;
}

bool has_tool(const ChatOptions& options) {
  return std::any_of(options.tools.begin(), options.tools.end(), [&](const Json& tool) {
    return tool.is_object() && tool.contains("name") && tool["name"] == Json(options.tool_name);
  });
}

class ChatChecker {
 public:
  void check(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
    if (messages.empty()) add("messages", "is empty", "send at least one message");
    for (size_t i = 0; i < messages.size(); ++i)
      check_message(messages[i], "messages[" + std::to_string(i) + "]");
    if (options.reasoning_effort < 1 || options.reasoning_effort > 100) {
      add("reasoning_effort",
          "is " + std::to_string(options.reasoning_effort) + "; it must be between 1 and 100", "");
    }
    if (options.continue_final_message && !messages.empty() && messages.back().role != Role::kAssistant) {
      add("continue_final_message", "needs an assistant message at the end", "");
    }
    if (must_call(options) && options.tools.empty()) {
      add("tool_choice", "requires a call, but there are no tools", "");
    } else if (options.tool_choice == ToolChoice::kNamed && !has_tool(options)) {
      add("tool_choice", "names \"" + options.tool_name + "\", which is none of the tools", "");
    }
    if (uses_tools(options) && !options.template_parts) {
      add("tools", "cannot be used: this checkpoint has no tool text",
          "put the model's own encoding/encoding.py into the checkpoint's folder");
    }
    throw_if_any(faults_, "conversation");
  }

 private:
  void add(std::string where, std::string what, std::string hint) {
    faults_.push_back({std::move(where), std::move(what), std::move(hint)});
  }

  void check_message(const ChatMessage& message, const std::string& where) {
    const bool assistant = message.role == Role::kAssistant;
    if (!assistant && message.reasoning) add(where + ".reasoning", "belongs to assistant messages only", "");
    if (!assistant && !message.tool_calls.empty())
      add(where + ".tool_calls", "belongs to assistant messages only", "");
    if (message.role != Role::kUser && message.task != ChatTask::kNone) {
      add(where + ".task", "belongs to user messages only", "");
    }
    const bool may_have_images = !assistant && message.role != Role::kLatestReminder;
    for (size_t i = 0; i < message.content.size(); ++i) {
      const ContentPart& part = message.content[i];
      const std::string place = where + ".content[" + std::to_string(i) + "]";
      if (part.kind == ContentPart::Kind::kImage && !may_have_images)
        add(place, "cannot be an image here", "");
      if (part.kind == ContentPart::Kind::kUnsupported && message.role != Role::kTool) {
        add(place, "has an unsupported type", "send text");
      }
      if (!assistant && part.text.find(control::kImage) != std::string::npos) {
        add(place, "contains the image placeholder " + std::string(control::kImage),
            "remove it from the text");
      }
    }
  }

  Faults faults_;
};

// The results of one user turn in the order of the calls of the last assistant message that made any; results
// of unknown calls count as results of the first. Text keeps its place.
void order_tool_results(std::vector<const ChatMessage*>& blocks,
                        const std::map<std::string, size_t>& call_order) {
  std::vector<const ChatMessage*> results;
  for (const ChatMessage* block : blocks) {
    if (block->role == Role::kTool) results.push_back(block);
  }
  const auto place_of = [&](const ChatMessage* result) {
    const auto found = call_order.find(result->tool_call_id);
    return found == call_order.end() ? 0 : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const ChatMessage* a, const ChatMessage* b) { return place_of(a) < place_of(b); });
  size_t next = 0;
  for (const ChatMessage*& block : blocks) {
    if (block->role == Role::kTool) block = results[next++];
  }
}

std::vector<Turn> make_turns(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  for (const ChatMessage& message : messages) {
    if (message.role != Role::kUser && message.role != Role::kTool) {
      turns.push_back({message.role, &message, {}});
      continue;
    }
    const bool joins = !turns.empty() && turns.back().role == Role::kUser &&
                       turns.back().blocks.back()->task == ChatTask::kNone;
    if (!joins) turns.push_back({Role::kUser, &message, {}});
    turns.back().blocks.push_back(&message);
  }
  std::map<std::string, size_t> call_order;
  for (Turn& turn : turns) {
    if (turn.role == Role::kUser) order_tool_results(turn.blocks, call_order);
    if (turn.role != Role::kAssistant || turn.message->tool_calls.empty()) continue;
    call_order.clear();
    for (size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
      if (!turn.message->tool_calls[i].id.empty()) call_order[turn.message->tool_calls[i].id] = i;
    }
  }
  return turns;
}

ChatTask task_of(const Turn& turn) {
  return turn.blocks.empty() ? ChatTask::kNone : turn.blocks.back()->task;
}

std::string_view task_token(ChatTask task) {
  switch (task) {
    case ChatTask::kNone:
      break;
    case ChatTask::kAction:
      return "<｜action｜>";
    case ChatTask::kQuery:
      return "<｜query｜>";
    case ChatTask::kAuthority:
      return "<｜authority｜>";
    case ChatTask::kDomain:
      return "<｜domain｜>";
    case ChatTask::kTitle:
      return "<｜title｜>";
    case ChatTask::kReadUrl:
      return "<｜read_url｜>";
  }
  return {};
}

// Several parts are never empty: line breaks join them.
bool has_text_or_calls(const ChatMessage& message) {
  return !message.tool_calls.empty() || message.content.size() > 1 ||
         (message.content.size() == 1 && !message.content[0].text.empty());
}

class ChatRenderer {
 public:
  explicit ChatRenderer(const ChatOptions& options) : options_(options) {}

  std::vector<PromptSegment> render(const std::vector<Turn>& turns) {
    prompt_.control(control::kBeginOfSentence);
    const bool leading_system = turns.front().role == Role::kSystem;
    open(leading_system ? turns.front().message : nullptr);
    ChatTask task = ChatTask::kNone;
    for (size_t i = leading_system ? 1 : 0; i < turns.size(); ++i) {
      const bool open_turn =
          i + 1 == turns.size() && (options_.continue_final_message || !options_.add_generation_prompt);
      render_turn(turns[i], task, open_turn);
      task = task_of(turns[i]);
    }
    if (options_.add_generation_prompt && !options_.continue_final_message) open_assistant(task, true);
    if (must_call(options_)) {
      prompt_.text("\n\n");
      open_tool_calls(prompt_);
      if (options_.tool_choice == ToolChoice::kNamed) open_tool_call(options_.tool_name, prompt_);
    }
    return prompt_.take();
  }

 private:
  // Everything before the first turn.
  void open(const ChatMessage* system) {
    const bool tools = uses_tools(options_);
    if (!options_.thinking && system == nullptr && !tools && !options_.response_format) return;
    prompt_.control(control::kSystem);
    if (options_.thinking) {
      prompt_.text("Reasoning Effort: " + std::to_string(options_.reasoning_effort) +
                   " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    if (system != nullptr) append_content(*system);
    if (tools) {
      prompt_.text("\n\n");
      append_tool_block(*options_.template_parts, options_.tools, prompt_);
    }
    if (options_.response_format) {
      prompt_.text("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
      prompt_.text(to_prompt_json(*options_.response_format));
    }
  }

  void append_content(const ChatMessage& message) {
    for (size_t i = 0; i < message.content.size(); ++i) {
      if (i > 0) prompt_.text("\n\n");
      switch (message.content[i].kind) {
        case ContentPart::Kind::kText:
          prompt_.text(message.content[i].text);
          break;
        case ContentPart::Kind::kImage:
          prompt_.control(control::kImage);
          break;
        case ContentPart::Kind::kUnsupported:
          prompt_.text("[Unsupported type]");
          break;
      }
    }
  }

  void render_turn(const Turn& turn, ChatTask task_before, bool open_turn) {
    switch (turn.role) {
      case Role::kSystem:
        prompt_.control(control::kSystem);
        append_content(*turn.message);
        break;
      case Role::kLatestReminder:
        prompt_.control(control::kLatestReminder);
        append_content(*turn.message);
        break;
      case Role::kAssistant:
        render_assistant(*turn.message, task_before, open_turn);
        break;
      case Role::kUser:
      case Role::kTool:
        render_user(turn);
        break;
    }
  }

  void render_user(const Turn& turn) {
    prompt_.control(control::kUser);
    for (size_t i = 0; i < turn.blocks.size(); ++i) {
      const bool result = turn.blocks[i]->role == Role::kTool;
      if (i > 0) prompt_.text("\n\n");
      if (result) prompt_.text("<tool_result>");
      append_content(*turn.blocks[i]);
      if (result) prompt_.text("</tool_result>");
    }
  }

  // What makes the model speak: after a task its token, otherwise the assistant's.
  void open_assistant(ChatTask task, bool reasons) {
    if (task == ChatTask::kNone || task == ChatTask::kAction) {
      prompt_.control(control::kAssistant);
      prompt_.control(options_.thinking && reasons ? control::kThinkOpen : control::kThinkClose);
    }
    if (task != ChatTask::kNone) prompt_.control(task_token(task));
  }

  void render_assistant(const ChatMessage& message, ChatTask task_before, bool open_turn) {
    const bool keeps_reasoning = options_.thinking && (open_turn || uses_tools(options_));
    const bool continued = open_turn && options_.continue_final_message;
    open_assistant(task_before, keeps_reasoning);
    if (keeps_reasoning && task_before == ChatTask::kNone) {
      prompt_.text(message.reasoning.value_or(""));
      if (!continued || has_text_or_calls(message)) prompt_.control(control::kThinkClose);
    }
    append_content(message);
    if (!message.tool_calls.empty()) {
      prompt_.text("\n\n");
      append_tool_calls(message.tool_calls, prompt_);
    }
    if (!continued) prompt_.control(control::kEndOfSentence);
  }

  const ChatOptions& options_;
  PromptBuilder prompt_;
};

}  // namespace

std::optional<Role> parse_role(std::string_view name) {
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kLatestReminder;
  return std::nullopt;
}

std::optional<int> parse_reasoning_effort(std::string_view name) {
  if (name == "minimal" || name == "low") return 50;
  if (name == "medium" || name == "high" || name == "xhigh") return kDefaultReasoningEffort;
  if (name == "max") return 100;
  return std::nullopt;
}

std::vector<PromptSegment> render_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  ChatChecker().check(messages, options);
  return ChatRenderer(options).render(make_turns(messages));
}

std::string prompt_text(const std::vector<PromptSegment>& prompt) {
  std::string text;
  for (const PromptSegment& segment : prompt) text += segment.text;
  return text;
}

std::vector<int32_t> encode_prompt(const std::vector<PromptSegment>& prompt, const Tokenizer& tokenizer,
                                   const EncodeBounds& bounds) {
  std::vector<int32_t> ids;
  for (const PromptSegment& segment : prompt) {
    if (ids.size() > bounds.max_tokens) break;
    if (!segment.control) {
      tokenizer.append_encoded(segment.text, ControlTokens::kAsText, ids, bounds);
      continue;
    }
    const std::optional<int32_t> id = tokenizer.added_token(segment.text);
    if (!id) {
      throw Error("the tokenizer has no control token " + segment.text, "tokenizer.json",
                  "use the tokenizer.json that was published with the model");
    }
    ids.push_back(*id);
  }
  return ids;
}

OutputStart output_start(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  if (must_call(options)) {
    const bool named = options.tool_choice == ToolChoice::kNamed;
    return {.in_tool_calls = true, .tool_name = named ? options.tool_name : std::string()};
  }
  const bool answered =
      options.continue_final_message && !messages.empty() && has_text_or_calls(messages.back());
  return {.in_reasoning = options.thinking && !answered};
}

std::vector<int32_t> encode_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options,
                                 const Tokenizer& tokenizer, const EncodeBounds& bounds) {
  return encode_prompt(render_chat(messages, options), tokenizer, bounds);
}

}  // namespace spark::text
