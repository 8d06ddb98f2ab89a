#include "bench/load/request.h"

#include "api/error_object.h"
#include "api/json_text.h"
#include "api/request.h"
#include "api/response.h"
#include "api/sse.h"
#include "common/clock.h"
#include "common/hash.h"

namespace spark::bench {
namespace {

// A server may tell one token in two events, its reasoning and its answer apart; more events than this carry
// more tokens than were asked for.
int64_t most_events(int64_t max_tokens) {
  return 2 * max_tokens + 64;
}

int64_t characters(const std::string& text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

// Follows the events of one stream.
class StreamReader {
 public:
  StreamReader(Receipt& receipt, int64_t max_tokens) : receipt_(receipt), max_tokens_(max_tokens) {}

  Heard feed(std::string_view bytes, double time_s) {
    const int64_t before = text_events_;
    reader_.feed(bytes, [&](const api::SseEvent& event) {
      if (!ended_) take(event.data, time_s);
    });
    if (ended_) return Heard::kEnd;
    return text_events_ > before ? Heard::kProgress : Heard::kNothing;
  }

  void finish() {
    receipt_.output_sha256 = sha256_hex(text_).substr(0, 16);
    if (!receipt_.error.empty()) return;
    if (text_events_ == 0)
      receipt_.error = "the stream ended without a token";
    else if (!seen_usage_)
      receipt_.error = "the stream ended without a usage object";
    else if (receipt_.completion_tokens < 1 || receipt_.completion_tokens > max_tokens_)
      receipt_.error = "the usage object counts " + std::to_string(receipt_.completion_tokens) +
                       " tokens; at most " + std::to_string(max_tokens_) + " were asked for";
    else
      receipt_.ok = true;
  }

 private:
  void take(const std::string& data, double time_s) {
    if (data == api::kSseDone) {
      ended_ = true;
      return;
    }
    if (const auto error = api::parse_error(data, 200)) {
      fail(error->message);
      return;
    }
    const api::ChatResponse event = api::parse_chat_response(data);
    std::string piece;
    for (const api::ChatChoice& choice : event.choices) {
      if (choice.reasoning) {
        receipt_.reasoning_chars += characters(*choice.reasoning);
        piece += *choice.reasoning;
      }
      if (choice.content) {
        receipt_.content_chars += characters(*choice.content);
        piece += *choice.content;
      }
      if (choice.finish_reason) receipt_.finish_reason = *choice.finish_reason;
    }
    if (!piece.empty()) {
      if (text_events_++ == 0) receipt_.first_s = time_s;
      receipt_.last_s = time_s;
      text_ += piece;
      if (text_events_ > most_events(max_tokens_)) {
        fail("the stream does not end: " + std::to_string(text_events_) +
             " events with text, where at most " + std::to_string(max_tokens_) + " tokens were asked for");
      }
    }
    if (event.usage) {
      seen_usage_ = true;
      receipt_.prompt_tokens = event.usage->prompt_tokens;
      receipt_.completion_tokens = event.usage->completion_tokens;
    }
  }

  void fail(const std::string& why) {
    receipt_.error = why;
    ended_ = true;
  }

  Receipt& receipt_;
  int64_t max_tokens_;
  api::SseReader reader_;
  std::string text_;
  int64_t text_events_ = 0;
  bool ended_ = false;
  bool seen_usage_ = false;
};

std::string reply_error(const HttpReply& reply) {
  if (!reply.error.empty()) return reply.error;
  const auto error = api::parse_error(reply.body, static_cast<int>(reply.status));
  return "HTTP " + std::to_string(reply.status) + (error ? ": " + error->message : "");
}

}  // namespace

std::string chat_payload(const Case& item, const std::string& model, int stream) {
  api::ChatRequest request;
  request.model = model;
  request.messages.push_back({.role = "user", .content = {item.prompt}, .reasoning = {}});
  request.sampling.temperature = item.temperature;
  request.sampling.max_tokens = item.max_tokens;
  request.sampling.seed = item.temperature > 0 ? item.seed + stream : item.seed;
  if (item.fixed_length) {
    request.sampling.min_tokens = item.max_tokens;
    request.sampling.ignore_eos = true;
  }
  request.delivery.stream = true;
  request.delivery.include_usage = true;
  request.thinking = item.thinking;
  return api::json_text(request.json());
}

Receipt stream_chat(const HttpClient& client, const std::string& payload, const StreamLimits& limits) {
  Receipt receipt;
  StreamReader reader(receipt, limits.max_tokens);
  receipt.start_s = monotonic_s();
  try {
    const HttpReply reply =
        client.post_stream("/v1/chat/completions", payload, limits.stall_timeout_s,
                           [&](std::string_view bytes, double time_s) { return reader.feed(bytes, time_s); });
    receipt.refused = reply.error.empty() && reply.status >= 400 && reply.status < 500;
    if (!reply.ok()) receipt.error = reply_error(reply);
  } catch (const Error& error) {
    receipt.error = error.describe();
  }
  receipt.end_s = monotonic_s();
  reader.finish();
  return receipt;
}

}  // namespace spark::bench
