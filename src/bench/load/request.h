// One streamed request and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/cases/cases.h"
#include "bench/load/http_client.h"
#include "common/json.h"

namespace spark::bench {

// Every request leaves a receipt, failed ones too; nothing is retried silently. Times are seconds on the
// monotonic clock, taken when the bytes of the event were read from the socket.
struct Receipt {
  bool ok = false;       // HTTP 200, no error, a first token seen, a usage object
  bool refused = false;  // the service took the request for wrong (HTTP 4xx)
  double start_s = 0;
  double first_s = 0;  // first event that carried text (reasoning or content)
  double last_s = 0;   // last event that carried text
  double end_s = 0;    // end of the stream
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::string finish_reason;
  std::string output_sha256;  // first 16 hex digits, over reasoning and content
  int64_t reasoning_chars = 0;
  int64_t content_chars = 0;
  std::string error;
};

// The chat request of stream `stream` (0-based) of `streams`, as JSON text.
std::string chat_payload(const Case& item, const std::string& model, int stream);

// Every stream ends: what does not keep to these is a failed request.
struct StreamLimits {
  double stall_timeout_s = 300;  // without a token
  int64_t max_tokens =
      int64_t{1} << 32;  // as asked for; the default is more than any context, sums stay exact
};

// Reads to the end of the stream, or to its "[DONE]" or an error in it when the server leaves it open.
Receipt stream_chat(const HttpClient& client, const std::string& payload, const StreamLimits& limits);

}  // namespace spark::bench
