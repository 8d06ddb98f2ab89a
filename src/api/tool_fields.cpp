// Tools in chat requests: what may be called, what must be, and what has been called.
#include <algorithm>
#include <set>

#include "api/request_fields.h"

namespace spark::api {
namespace {

// The name stands between quotes in the prompt and in the model's answer.
bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view("_-.:/").find(c) != std::string_view::npos;
         });
}

std::string read_tool_name(const JsonReader& field) {
  const std::string name = field.string();
  if (field.present() && field.json()->is_string() && !is_tool_name(name)) {
    field.fault("is \"" + clipped(name) + "\"",
                "use 1 to " + std::to_string(kMaxToolNameBytes) + " letters, digits and _ - . : /");
  }
  return name;
}

bool is_object(const JsonReader& reader) {
  if (!reader.present()) {
    reader.fault("is missing");
    return false;
  }
  if (!reader.json()->is_object()) reader.fault("must be an object");
  return reader.json()->is_object();
}

// {"type": "function", "function": {...}}; what both a tool and a choice of one are.
std::optional<JsonReader> read_function(const JsonReader& reader) {
  if (!is_object(reader)) return std::nullopt;
  const JsonReader type = reader.field("type");
  const std::string kind = type.string();
  if (type.present() && type.json()->is_string() && kind != "function")
    type.fault("is \"" + clipped(kind) + "\"", "only functions can be called");
  refuse_unknown(reader, {"type", "function"});
  JsonReader function = reader.field("function");
  if (!is_object(function)) return std::nullopt;
  return function;
}

void read_tool(const JsonReader& tool, std::set<std::string>& names, ChatRequest& request) {
  const auto function = read_function(tool);
  if (!function) return;
  const std::string name = read_tool_name(function->field("name"));
  if (!name.empty() && !names.insert(name).second)
    function->field("name").fault("is \"" + clipped(name) + "\", as that of another tool");
  function->field("description").optional_string();
  function->field("strict").optional_boolean();
  const JsonReader parameters = function->field("parameters");
  if (parameters.present() && !parameters.json()->is_object()) parameters.fault("must be an object");
  if (parameters.present() && has_huge_integer(*parameters.json()))
    parameters.fault("has an integer beyond 64 bits", "write it as a string, or in the description");
  refuse_unknown(*function, {"name", "description", "parameters", "strict"});
  request.tools.push_back(*function->json());
}

void read_tool_choice(const JsonReader& field, const std::set<std::string>& names, ChatRequest& request) {
  if (!field.present()) return;
  if (field.json()->is_string()) {
    const std::string choice = field.string();
    if (choice == "none" || choice == "auto") {
      request.tool_choice = choice == "none" ? ToolChoice::kNone : ToolChoice::kAuto;
      return;
    }
    if (choice != "required") {
      field.fault("is \"" + clipped(choice) + "\"",
                  "use none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}");
      return;
    }
    request.tool_choice = ToolChoice::kRequired;
    if (names.empty()) field.fault("requires a call, but there are no `tools`");
    return;
  }
  const auto function = read_function(field);
  if (!function) return;
  request.tool_choice = ToolChoice::kNamed;
  request.tool_name = read_tool_name(function->field("name"));
  refuse_unknown(*function, {"name"});
  if (!request.tool_name.empty() && names.count(request.tool_name) == 0)
    function->field("name").fault("is \"" + clipped(request.tool_name) + "\", which is none of the `tools`");
}

}  // namespace

void read_tools(const JsonReader& root, ChatRequest& request) {
  std::set<std::string> names;
  const JsonReader tools = root.field("tools");
  if (tools.present() && tools.json()->is_array() && tools.json()->size() > kMaxTools) {
    tools.fault("has " + std::to_string(tools.json()->size()) + " tools; at most " +
                std::to_string(kMaxTools) + " are allowed");
  } else if (tools.present()) {
    tools.each([&](const JsonReader& tool) { read_tool(tool, names, request); });
  }
  read_tool_choice(root.field("tool_choice"), names, request);
  request.parallel_tool_calls = root.field("parallel_tool_calls").optional_boolean().value_or(true);
  if (request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed) {
    const bool opens = request.add_generation_prompt && !request.continue_final_message;
    if (!opens) root.field("tool_choice").fault("requires a call, which `add_generation_prompt` begins");
  }
}

std::vector<ToolCall> read_tool_calls(const JsonReader& calls) {
  std::vector<ToolCall> out;
  if (!calls.present()) return out;
  calls.each([&](const JsonReader& call) {
    if (!is_object(call)) return;
    // "index" is what a client has left of the stream that it joined.
    refuse_unknown(call, {"id", "type", "function", "index"});
    const JsonReader type = call.field("type");
    if (type.present() && type.string() != "function") type.fault("must be \"function\"");
    const JsonReader function = call.field("function");
    if (!is_object(function)) return;
    refuse_unknown(function, {"name", "arguments"});
    out.push_back({call.field("id").string(), read_tool_name(function.field("name")),
                   function.field("arguments").string()});
  });
  return out;
}

Json tool_calls_json(const std::vector<ToolCall>& calls) {
  Json out = Json::array();
  for (const ToolCall& call : calls) {
    out.push_back({{"id", call.id},
                   {"type", "function"},
                   {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

void write_tools(const ChatRequest& request, Json& root) {
  for (const Json& function : request.tools)
    root["tools"].push_back({{"type", "function"}, {"function", function}});
  if (request.tool_choice == ToolChoice::kNone) root["tool_choice"] = "none";
  if (request.tool_choice == ToolChoice::kRequired) root["tool_choice"] = "required";
  if (request.tool_choice == ToolChoice::kNamed)
    root["tool_choice"] = {{"type", "function"}, {"function", {{"name", request.tool_name}}}};
  if (!request.parallel_tool_calls) root["parallel_tool_calls"] = false;
}

}  // namespace spark::api
