// What a server answers, for both sides: chat completions and completions, whole or as stream events.
//
//   std::string event = sse_data(json_text(chunk.json()));        // server
//   ChatResponse chunk = parse_chat_response(event.data);         // client: tolerant, for any
//   OpenAI-compatible server
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"

namespace spark::api {

// Values of finish_reason.
inline constexpr const char* kFinishStop = "stop";      // end of sequence, a stop string or a stop token
inline constexpr const char* kFinishLength = "length";  // max_tokens, or the context is full
inline constexpr const char* kFinishToolCalls = "tool_calls";  // the end of an answer that calls tools

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::optional<int64_t> cached_tokens;     // prompt tokens taken from the prefix cache
  std::optional<int64_t> reasoning_tokens;  // of the completion
  // Drafts that became part of the completion, and drafts computed in vain; OpenAI's names.
  std::optional<int64_t> accepted_prediction_tokens;
  std::optional<int64_t> rejected_prediction_tokens;

  Json json() const;
};

struct TokenLogprob {
  std::string token;   // its text; bytes that are no UTF-8 by themselves become U+FFFD
  std::string bytes;   // the exact bytes
  double logprob = 0;  // natural logarithm, of the model's unmodified distribution
};

struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // likeliest first
};

// A call of a tool, or what a stream event adds to one: the first event of a call has id and name, the others
// more of the arguments.
struct ToolCallDelta {
  int64_t index = 0;  // counts the calls of a choice
  std::string id;
  std::string name;
  std::string arguments;  // JSON text, or a piece of it
};

// One choice of a chat answer: a whole message, or what a stream event adds to it.
struct ChatChoice {
  int64_t index = 0;
  std::optional<std::string> role;
  std::optional<std::string> content;
  std::optional<std::string> reasoning;
  std::vector<ToolCallDelta> tool_calls = {};
  std::optional<std::vector<PositionLogprobs>> logprobs = {};
  std::optional<std::string> finish_reason;
  Json stop_reason;  // null, a stop string, or a stop token id
  std::optional<std::vector<int32_t>> token_ids;
};

struct ChatResponse {
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  bool is_chunk = false;  // a stream event
  std::vector<ChatChoice> choices;
  std::optional<Usage> usage;
  std::optional<std::vector<int32_t>> prompt_token_ids;

  Json json() const;
};

struct CompletionChoice {
  int64_t index = 0;
  std::string text;
  std::optional<std::vector<PositionLogprobs>> logprobs;
  int64_t text_offset = 0;  // of `text` within the whole answer, in characters; for logprobs.text_offset
  std::optional<std::string> finish_reason;
  Json stop_reason;
  std::optional<std::vector<int32_t>> token_ids;
  std::optional<std::vector<int32_t>> prompt_token_ids;
};

struct CompletionResponse {
  std::string id;
  int64_t created = 0;
  std::string model;
  std::vector<CompletionChoice> choices;
  std::optional<Usage> usage;

  Json json() const;
};

// Readers of the client's side. They take what is there and ignore what they do not know; throw Error when
// the text is no JSON object. A stream event that carries an error has neither choices nor usage: see
// parse_error.
ChatResponse parse_chat_response(std::string_view text);
CompletionResponse parse_completion_response(std::string_view text);

}  // namespace spark::api
