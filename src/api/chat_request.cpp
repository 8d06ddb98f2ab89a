#include <charconv>

#include "api/request_fields.h"

namespace spark::api {
namespace {

void read_part(const JsonReader& part, ChatMessage& message) {
  const std::string type = part.field("type").string();
  if (type == "text" || type == "input_text") {
    message.content.push_back(part.field("text").string());
    refuse_unknown(part, {"type", "text"});
  } else if (!type.empty()) {
    part.field("type").fault("is \"" + clipped(type) + "\"", "only \"text\" parts are supported yet");
  }
}

void read_content(const JsonReader& content, ChatMessage& message) {
  if (!content.present()) {
    // An assistant turn may have nothing but reasoning or calls.
    if (message.role != "assistant") content.fault("is missing");
  } else if (content.json()->is_string()) {
    message.content.push_back(content.string());
  } else if (content.json()->is_array()) {
    content.each([&](const JsonReader& part) { read_part(part, message); });
  } else {
    content.fault("must be a string or a list of parts");
  }
}

ChatMessage read_message(const JsonReader& reader) {
  ChatMessage message;
  if (!reader.json()->is_object()) {
    reader.fault("must be an object");
    return message;
  }
  const JsonReader role = reader.field("role");
  message.role = role.string();
  if (message.role == "developer") message.role = "system";
  if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
      message.role != "tool" && role.present() && role.json()->is_string()) {
    role.fault("is \"" + clipped(message.role) + "\"", "use system, user, assistant or tool");
  }
  read_content(reader.field("content"), message);
  if (message.role == "assistant") {
    // Two spellings of one field; vLLM writes both.
    message.reasoning = reader.field("reasoning_content").optional_string().value_or("");
    const auto other = reader.field("reasoning").optional_string();
    if (other && message.reasoning.empty()) message.reasoning = *other;
    if (other && *other != message.reasoning)
      reader.field("reasoning").fault("differs from `reasoning_content`");
  }
  reader.field("name").optional_string();
  const JsonReader calls = reader.field("tool_calls");
  if (message.role == "assistant") {
    message.tool_calls = read_tool_calls(calls);
  } else if (calls.present() && !calls.json()->empty()) {
    calls.fault("belongs to assistant messages only");
  }
  const JsonReader answered = reader.field("tool_call_id");
  if (message.role == "tool") {
    message.tool_call_id = answered.string();
  } else if (answered.present()) {
    answered.fault("belongs to tool messages only");
  }
  refuse_unknown(reader, {"role", "content", "reasoning_content", "reasoning", "name", "tool_calls",
                          "tool_call_id", "refusal", "annotations", "audio", "function_call"});
  for (const char* key : {"audio", "function_call", "refusal"}) {
    if (reader.field(key).present())
      reader.field(key).fault("is set", "only text and `tool_calls` are supported");
  }
  return message;
}

// A name as the API spells it, or an integer from 1 to 100.
std::optional<std::string> read_effort(const JsonReader& field) {
  if (!field.present()) return std::nullopt;
  if (field.json()->is_number()) return std::to_string(field.integer(1, 100, 1));
  const std::string name = field.string();
  if (!field.json()->is_string()) return std::nullopt;
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (name == known) return name;
  }
  int value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error == std::errc() && end == name.data() + name.size() && value >= 1 && value <= 100) return name;
  field.fault("is \"" + clipped(name) + "\"", "use none, minimal, low, medium, high, xhigh, max or 1 to 100");
  return std::nullopt;
}

void read_template_arguments(const JsonReader& field, ChatRequest& request) {
  if (!field.present()) return;
  if (!field.json()->is_object()) {
    field.fault("must be an object");
    return;
  }
  const auto thinking = field.field("thinking").optional_boolean();
  const auto enable = field.field("enable_thinking").optional_boolean();
  if (thinking && enable && *thinking != *enable)
    field.field("enable_thinking").fault("contradicts `thinking`");
  request.thinking = thinking ? thinking : enable;
  const auto effort = read_effort(field.field("reasoning_effort"));
  if (effort && request.reasoning_effort && *effort != *request.reasoning_effort) {
    field.field("reasoning_effort").fault("differs from the `reasoning_effort` of the request");
  }
  if (effort) request.reasoning_effort = effort;
  refuse_unknown(field, {"thinking", "enable_thinking", "reasoning_effort"});
}

}  // namespace

ChatRequest read_chat(const JsonReader& root) {
  ChatRequest request;
  request.model = root.field("model").optional_string().value_or("");
  const JsonReader messages = root.field("messages");
  messages.each([&](const JsonReader& message) { request.messages.push_back(read_message(message)); });
  if (messages.present() && messages.json()->is_array() && request.messages.empty()) {
    messages.fault("is empty", "send at least one message");
  }
  request.reasoning_effort = read_effort(root.field("reasoning_effort"));
  read_template_arguments(root.field("chat_template_kwargs"), request);
  if (request.reasoning_effort == "none") {
    if (request.thinking.value_or(false)) root.field("reasoning_effort").fault("contradicts `thinking`");
    request.thinking = false;
  }
  request.continue_final_message = root.field("continue_final_message").optional_boolean().value_or(false);
  request.add_generation_prompt =
      root.field("add_generation_prompt").optional_boolean().value_or(!request.continue_final_message);
  if (request.continue_final_message && request.add_generation_prompt) {
    root.field("continue_final_message").fault("excludes `add_generation_prompt`");
  }
  if (request.continue_final_message && !request.messages.empty() &&
      request.messages.back().role != "assistant") {
    root.field("continue_final_message").fault("needs the last message to be the assistant's");
  }
  read_tools(root, request);
  return request;
}

std::vector<std::string> chat_field_names() {
  return {"model",
          "messages",
          "reasoning_effort",
          "chat_template_kwargs",
          "continue_final_message",
          "add_generation_prompt",
          "tools",
          "tool_choice",
          "parallel_tool_calls"};
}

void drop_chat_nulls(Json& root) {
  for (const char* key : {"stream_options", "chat_template_kwargs"}) {
    if (const auto found = root.find(key); found != root.end()) drop_nulls(*found);
  }
  if (const auto messages = root.find("messages"); messages != root.end() && messages->is_array()) {
    for (Json& message : *messages) drop_nulls(message);
  }
  // Not within the parameters: there null means something.
  if (const auto tools = root.find("tools"); tools != root.end() && tools->is_array()) {
    for (Json& tool : *tools) {
      drop_nulls(tool);
      if (tool.is_object() && tool.contains("function")) drop_nulls(tool["function"]);
    }
  }
}

ChatRequest parse_chat_request(std::string_view body, const SamplingFields& defaults) {
  Json document = parse_body(body);
  drop_chat_nulls(document);
  Faults faults(kMaxFaultsListed);
  const JsonReader root(document, "", faults);
  ChatRequest request = read_chat(root);
  request.sampling = read_sampling(root, Route::kChat, defaults);
  request.delivery = read_delivery(root);
  std::vector<std::string> known = shared_field_names(Route::kChat);
  for (std::string& name : chat_field_names()) known.push_back(std::move(name));
  refuse_unsupported(root, known, Route::kChat);
  throw_if_bad(faults);
  return request;
}

Json ChatRequest::json() const {
  Json root = Json::object();
  if (!model.empty()) root["model"] = model;
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    Json item = {{"role", message.role}};
    if (message.content.size() == 1) {
      item["content"] = message.content.front();
    } else {
      item["content"] = Json::array();
      for (const std::string& text : message.content)
        item["content"].push_back({{"type", "text"}, {"text", text}});
    }
    if (!message.reasoning.empty()) item["reasoning_content"] = message.reasoning;
    if (!message.tool_calls.empty()) item["tool_calls"] = tool_calls_json(message.tool_calls);
    if (message.role == "tool") item["tool_call_id"] = message.tool_call_id;
    list.push_back(std::move(item));
  }
  root["messages"] = std::move(list);
  write_sampling(sampling, Route::kChat, root);
  write_delivery(delivery, root);
  if (thinking) root["chat_template_kwargs"] = Json{{"thinking", *thinking}};
  if (reasoning_effort) root["reasoning_effort"] = *reasoning_effort;
  if (continue_final_message) {
    root["continue_final_message"] = true;
    root["add_generation_prompt"] = false;
  } else if (!add_generation_prompt) {
    root["add_generation_prompt"] = false;
  }
  write_tools(*this, root);
  return root;
}

}  // namespace spark::api
