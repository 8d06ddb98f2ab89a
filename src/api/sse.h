// Server-sent events: the writer's framing and an incremental reader.
//
//   socket.write(sse_data(json));  ...  socket.write(sse_data(kSseDone));
//
//   SseReader reader;
//   reader.feed(bytes, [&](const SseEvent& event) { if (event.data == kSseDone) ...; });
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace spark::api {

inline constexpr std::string_view kSseDone = "[DONE]";
inline constexpr std::string_view kSseMediaType = "text/event-stream";

std::string sse_data(std::string_view one_line);
// A comment: keeps idle connections open, and readers skip it.
std::string sse_comment(std::string_view text);

struct SseEvent {
  std::string event;  // empty: "message"
  std::string data;   // lines joined by '\n'
  std::string id;
};

// Reads a stream cut anywhere, with any of the three line ends. An event is delivered at the empty line that
// ends it; what stands after the last one is dropped, as the standard says.
class SseReader {
 public:
  explicit SseReader(size_t max_event_bytes = size_t{16} << 20) : max_event_bytes_(max_event_bytes) {}

  // Throws Error when an event grows past the limit.
  void feed(std::string_view bytes, const std::function<void(const SseEvent&)>& deliver);
  bool inside_event() const { return has_data_ || !line_.empty(); }

 private:
  void end_line(const std::function<void(const SseEvent&)>& deliver);

  size_t max_event_bytes_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_return_ = false;
  bool at_start_ = true;
};

}  // namespace spark::api
