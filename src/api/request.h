// What a client may ask: OpenAI's chat completions and completions with vLLM's extensions, tokenize and
// detokenize.
//
//   ChatRequest request = parse_chat_request(body);      // throws RequestError (400) naming every fault by
//   JSON path std::string body = request.json().dump();            // the same on the client's side
//
// Parsing is strict: wrong types, values out of range and unknown fields are refused. A field that would
// change the answer and is not supported (logit_bias, penalties, ...) is refused unless its value asks
// for nothing; fields that do not change the answer (user, metadata, ...) are accepted. null counts as
// absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/error_object.h"
#include "common/json.h"

namespace spark::api {

inline constexpr int64_t kMaxTopLogprobs = 20;
inline constexpr int64_t kMaxChoices = 128;  // n, and prompts x n of one request
inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxTools = 512;
inline constexpr size_t kMaxToolNameBytes = 128;
inline constexpr int64_t kDefaultCompletionTokens = 16;  // max_tokens of /v1/completions when absent

// How to draw and when to stop; common to both kinds of generation.
struct SamplingFields {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;        // (0, 1]
  int64_t top_k = 0;         // 0: all
  double min_p = 0.0;        // [0, 1], of the most likely token's probability
  std::optional<int64_t> seed;
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int64_t n = 1;
  // Log probability of each chosen token, and of this many likeliest ones (0..20) beside it.
  std::optional<int64_t> top_logprobs;
};

// How to hand the answer over.
struct DeliveryFields {
  bool stream = false;
  bool include_usage = false;               // a last event with the usage
  bool continuous_usage_stats = false;      // usage in every event
  bool return_token_ids = false;            // token ids beside the text
  bool return_tokens_as_token_ids = false;  // "token_id:N" for tokens in logprobs
  bool return_progress = false;             // llama.cpp's: events that say how far the prompt has been read
  std::string cache_salt;                   // prefixes are shared with requests of the same salt only
  std::string user;                         // tells clients behind one address apart, for fair queueing
  int64_t priority = 0;                     // accepted; all requests are equal
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

struct ChatMessage {
  std::string role;                       // system, user, assistant or tool ("developer" is read as system)
  std::vector<std::string> content;       // text parts; one for a plain string
  std::string reasoning = {};             // of an assistant turn
  std::vector<ToolCall> tool_calls = {};  // of an assistant turn
  std::string tool_call_id = {};          // of a tool's answer
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct ChatRequest {
  std::string model;  // empty: the served one
  std::vector<ChatMessage> messages;
  SamplingFields sampling;
  DeliveryFields delivery;
  std::optional<bool> thinking;                 // chat_template_kwargs.thinking or .enable_thinking
  std::optional<std::string> reasoning_effort;  // a name or a decimal number; "none" also turns thinking off
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::vector<Json> tools;  // the "function" object of each tool, as given
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;            // kNamed: the one to call
  bool parallel_tool_calls = true;  // false: the answer has one call at most

  Json json() const;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  std::string model;
  std::vector<Prompt> prompts;  // at least one
  SamplingFields sampling;
  DeliveryFields delivery;

  Json json() const;
};

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatRequest> input;  // a text, or messages to encode
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// `defaults` says what temperature, top_p, top_k and min_p are when the request does not.
ChatRequest parse_chat_request(std::string_view body, const SamplingFields& defaults = {});
CompletionRequest parse_completion_request(std::string_view body, const SamplingFields& defaults = {});
TokenizeRequest parse_tokenize_request(std::string_view body);
DetokenizeRequest parse_detokenize_request(std::string_view body);

}  // namespace spark::api
