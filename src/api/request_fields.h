// Reading the parts that all requests share. Internal to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"

namespace spark::api {

inline constexpr size_t kMaxFaultsListed = 8;  // in the answer to one request

// Parses a body into an object without null members; throws RequestError.
Json parse_body(std::string_view body);
void drop_nulls(Json& object);

enum class Route { kChat, kCompletion };

SamplingFields read_sampling(const JsonReader& root, Route route, const SamplingFields& defaults);
DeliveryFields read_delivery(const JsonReader& root);
void write_sampling(const SamplingFields& fields, Route route, Json& root);
void write_delivery(const DeliveryFields& fields, Json& root);

// Refuses every member of `root` that is neither in `known`, nor harmless, nor a known feature asked for with
// the value that means "do nothing".
void refuse_unsupported(const JsonReader& root, const std::vector<std::string>& known, Route route);
// The same for a nested object, where nothing unknown is harmless; the first unknown member is a fault.
void refuse_unknown(const JsonReader& object, const std::vector<std::string>& known);
std::vector<std::string> shared_field_names(Route route);

// The members that make a chat prompt; the tokenize route takes them, too.
ChatRequest read_chat(const JsonReader& root);
std::vector<std::string> chat_field_names();
void drop_chat_nulls(Json& root);  // in the nested objects

// tools, tool_choice and parallel_tool_calls; the calls of an assistant's message.
void read_tools(const JsonReader& root, ChatRequest& request);
std::vector<ToolCall> read_tool_calls(const JsonReader& calls);
void write_tools(const ChatRequest& request, Json& root);
Json tool_calls_json(const std::vector<ToolCall>& calls);

// A list of token ids; at most one fault is recorded.
std::vector<int32_t> read_token_ids(const JsonReader& list);

// `text` cut to a length fit for a message.
std::string clipped(std::string_view text, size_t limit = 100);

}  // namespace spark::api
