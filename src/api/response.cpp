#include "api/response.h"

#include "api/json_text.h"

namespace spark::api {
namespace {

Json logprob_json(const TokenLogprob& entry) {
  Json bytes = Json::array();
  for (const char byte : entry.bytes) bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return Json{{"token", entry.token}, {"logprob", entry.logprob}, {"bytes", std::move(bytes)}};
}

Json chat_logprobs(const std::vector<PositionLogprobs>& positions) {
  Json content = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json entry = logprob_json(position.chosen);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : position.top) entry["top_logprobs"].push_back(logprob_json(top));
    content.push_back(std::move(entry));
  }
  return Json{{"content", std::move(content)}};
}

size_t characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// The older form of /v1/completions: parallel lists, and one object of the likeliest tokens per position.
Json completion_logprobs(const std::vector<PositionLogprobs>& positions, int64_t offset) {
  Json offsets = Json::array(), values = Json::array(), tokens = Json::array(), tops = Json::array();
  for (const PositionLogprobs& position : positions) {
    offsets.push_back(offset);
    offset += static_cast<int64_t>(characters(position.chosen.token));
    values.push_back(position.chosen.logprob);
    tokens.push_back(position.chosen.token);
    Json top = Json::object();
    for (const TokenLogprob& entry : position.top) top.emplace(entry.token, entry.logprob);
    top.emplace(position.chosen.token, position.chosen.logprob);
    tops.push_back(std::move(top));
  }
  return Json{{"text_offset", std::move(offsets)},
              {"token_logprobs", std::move(values)},
              {"tokens", std::move(tokens)},
              {"top_logprobs", std::move(tops)}};
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json tool_call_json(const ToolCallDelta& call, bool is_chunk) {
  Json out = Json::object();
  if (is_chunk) out["index"] = call.index;
  if (!call.id.empty() || !is_chunk) {
    out["id"] = call.id;
    out["type"] = "function";
  }
  Json function = Json::object();
  if (!call.name.empty() || !is_chunk) function["name"] = call.name;
  function["arguments"] = call.arguments;
  out["function"] = std::move(function);
  return out;
}

Json chat_choice(const ChatChoice& choice, bool is_chunk) {
  Json message = Json::object();
  if (choice.role) message["role"] = *choice.role;
  // Both spellings of the reasoning channel that clients read.
  if (choice.reasoning) {
    message["reasoning"] = *choice.reasoning;
    message["reasoning_content"] = *choice.reasoning;
  }
  if (choice.content || !is_chunk) message["content"] = or_null(choice.content);
  for (const ToolCallDelta& call : choice.tool_calls)
    message["tool_calls"].push_back(tool_call_json(call, is_chunk));
  Json out = {{"index", choice.index}, {is_chunk ? "delta" : "message", std::move(message)}};
  out["logprobs"] = choice.logprobs ? chat_logprobs(*choice.logprobs) : Json(nullptr);
  out["finish_reason"] = or_null(choice.finish_reason);
  if (choice.finish_reason) out["stop_reason"] = choice.stop_reason;
  if (choice.token_ids) out["token_ids"] = *choice.token_ids;
  return out;
}

std::optional<std::string> text_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? std::optional(found->get<std::string>())
                                                     : std::nullopt;
}

int64_t integer_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::optional<std::vector<int32_t>> ids_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  for (const Json& id : *found) ids.push_back(id.is_number_integer() ? id.get<int32_t>() : -1);
  return ids;
}

const Json& object_member(const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kEmpty;
}

const Json& array_member(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kEmpty;
}

std::optional<Usage> usage_member(const Json& root) {
  const auto found = root.find("usage");
  if (found == root.end() || !found->is_object()) return std::nullopt;
  Usage usage;
  usage.prompt_tokens = integer_member(*found, "prompt_tokens");
  usage.completion_tokens = integer_member(*found, "completion_tokens");
  const Json& prompt = object_member(*found, "prompt_tokens_details");
  if (prompt.contains("cached_tokens")) usage.cached_tokens = integer_member(prompt, "cached_tokens");
  const Json& completion = object_member(*found, "completion_tokens_details");
  const auto detail = [&](const char* name) {
    return completion.contains(name) ? std::optional(integer_member(completion, name)) : std::nullopt;
  };
  usage.reasoning_tokens = detail("reasoning_tokens");
  usage.accepted_prediction_tokens = detail("accepted_prediction_tokens");
  usage.rejected_prediction_tokens = detail("rejected_prediction_tokens");
  return usage;
}

std::vector<ToolCallDelta> read_calls(const Json& message) {
  std::vector<ToolCallDelta> calls;
  for (const Json& entry : array_member(message, "tool_calls")) {
    if (!entry.is_object()) continue;
    ToolCallDelta call;
    call.index =
        entry.contains("index") ? integer_member(entry, "index") : static_cast<int64_t>(calls.size());
    call.id = text_member(entry, "id").value_or("");
    const Json& function = object_member(entry, "function");
    call.name = text_member(function, "name").value_or("");
    call.arguments = text_member(function, "arguments").value_or("");
    calls.push_back(std::move(call));
  }
  return calls;
}

TokenLogprob read_logprob(const Json& entry) {
  TokenLogprob out;
  out.token = text_member(entry, "token").value_or("");
  for (const Json& byte : array_member(entry, "bytes")) {
    if (byte.is_number_integer()) out.bytes.push_back(static_cast<char>(byte.get<int>()));
  }
  const auto value = entry.find("logprob");
  if (value != entry.end() && value->is_number()) out.logprob = value->get<double>();
  return out;
}

std::optional<std::vector<PositionLogprobs>> read_chat_logprobs(const Json& choice) {
  const Json& logprobs = object_member(choice, "logprobs");
  if (!logprobs.contains("content")) return std::nullopt;
  std::vector<PositionLogprobs> out;
  for (const Json& entry : array_member(logprobs, "content")) {
    if (!entry.is_object()) continue;
    PositionLogprobs position{read_logprob(entry), {}};
    for (const Json& top : array_member(entry, "top_logprobs")) {
      if (top.is_object()) position.top.push_back(read_logprob(top));
    }
    out.push_back(std::move(position));
  }
  return out;
}

std::optional<std::vector<PositionLogprobs>> read_completion_logprobs(const Json& choice) {
  const Json& logprobs = object_member(choice, "logprobs");
  if (!logprobs.contains("tokens")) return std::nullopt;
  const Json& tokens = array_member(logprobs, "tokens");
  const Json& values = array_member(logprobs, "token_logprobs");
  const Json& tops = array_member(logprobs, "top_logprobs");
  std::vector<PositionLogprobs> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    PositionLogprobs position;
    if (tokens[i].is_string()) position.chosen.token = tokens[i].get<std::string>();
    if (i < values.size() && values[i].is_number()) position.chosen.logprob = values[i].get<double>();
    if (i < tops.size() && tops[i].is_object()) {
      for (auto it = tops[i].begin(); it != tops[i].end(); ++it) {
        if (it.value().is_number()) position.top.push_back({it.key(), "", it.value().get<double>()});
      }
    }
    out.push_back(std::move(position));
  }
  return out;
}

template <class Response>
Json parse_envelope(std::string_view text, Response& out) {
  Json root = parse_json(text, "the server's answer");
  if (!root.is_object()) throw Error("is not a JSON object", "the server's answer");
  out.id = text_member(root, "id").value_or("");
  out.created = integer_member(root, "created");
  out.model = text_member(root, "model").value_or("");
  out.usage = usage_member(root);
  return root;
}

Json stop_reason_of(const Json& choice) {
  const auto found = choice.find("stop_reason");
  return found != choice.end() ? *found : Json(nullptr);
}

}  // namespace

Json Usage::json() const {
  Json out = {{"prompt_tokens", prompt_tokens},
              {"total_tokens", prompt_tokens + completion_tokens},
              {"completion_tokens", completion_tokens}};
  if (cached_tokens) out["prompt_tokens_details"] = Json{{"cached_tokens", *cached_tokens}};
  Json details = Json::object();
  if (reasoning_tokens) details["reasoning_tokens"] = *reasoning_tokens;
  if (accepted_prediction_tokens) details["accepted_prediction_tokens"] = *accepted_prediction_tokens;
  if (rejected_prediction_tokens) details["rejected_prediction_tokens"] = *rejected_prediction_tokens;
  if (!details.empty()) out["completion_tokens_details"] = std::move(details);
  return out;
}

Json ChatResponse::json() const {
  Json out = {{"id", id},
              {"object", is_chunk ? "chat.completion.chunk" : "chat.completion"},
              {"created", created},
              {"model", model}};
  out["choices"] = Json::array();
  for (const ChatChoice& choice : choices) out["choices"].push_back(chat_choice(choice, is_chunk));
  if (usage) out["usage"] = usage->json();
  if (prompt_token_ids) out["prompt_token_ids"] = *prompt_token_ids;
  return out;
}

Json CompletionResponse::json() const {
  Json out = {{"id", id}, {"object", "text_completion"}, {"created", created}, {"model", model}};
  out["choices"] = Json::array();
  for (const CompletionChoice& choice : choices) {
    Json entry = {{"index", choice.index}, {"text", choice.text}};
    entry["logprobs"] =
        choice.logprobs ? completion_logprobs(*choice.logprobs, choice.text_offset) : Json(nullptr);
    entry["finish_reason"] = or_null(choice.finish_reason);
    if (choice.finish_reason) entry["stop_reason"] = choice.stop_reason;
    if (choice.token_ids) entry["token_ids"] = *choice.token_ids;
    if (choice.prompt_token_ids) entry["prompt_token_ids"] = *choice.prompt_token_ids;
    out["choices"].push_back(std::move(entry));
  }
  if (usage) out["usage"] = usage->json();
  return out;
}

ChatResponse parse_chat_response(std::string_view text) {
  ChatResponse out;
  const Json root = parse_envelope(text, out);
  out.prompt_token_ids = ids_member(root, "prompt_token_ids");
  for (const Json& choice : array_member(root, "choices")) {
    if (!choice.is_object()) continue;
    ChatChoice entry;
    entry.index = integer_member(choice, "index");
    const bool is_delta = choice.contains("delta");
    out.is_chunk = out.is_chunk || is_delta;
    const Json& message = object_member(choice, is_delta ? "delta" : "message");
    entry.role = text_member(message, "role");
    entry.content = text_member(message, "content");
    entry.reasoning = text_member(message, "reasoning_content");
    if (!entry.reasoning) entry.reasoning = text_member(message, "reasoning");
    entry.tool_calls = read_calls(message);
    entry.logprobs = read_chat_logprobs(choice);
    entry.finish_reason = text_member(choice, "finish_reason");
    entry.stop_reason = stop_reason_of(choice);
    entry.token_ids = ids_member(choice, "token_ids");
    out.choices.push_back(std::move(entry));
  }
  out.is_chunk = out.is_chunk || text_member(root, "object").value_or("") == "chat.completion.chunk";
  return out;
}

CompletionResponse parse_completion_response(std::string_view text) {
  CompletionResponse out;
  const Json root = parse_envelope(text, out);
  for (const Json& choice : array_member(root, "choices")) {
    if (!choice.is_object()) continue;
    CompletionChoice entry;
    entry.index = integer_member(choice, "index");
    entry.text = text_member(choice, "text").value_or("");
    entry.logprobs = read_completion_logprobs(choice);
    entry.finish_reason = text_member(choice, "finish_reason");
    entry.stop_reason = stop_reason_of(choice);
    entry.token_ids = ids_member(choice, "token_ids");
    entry.prompt_token_ids = ids_member(choice, "prompt_token_ids");
    out.choices.push_back(std::move(entry));
  }
  return out;
}

}  // namespace spark::api
