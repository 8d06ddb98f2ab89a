#include "api/sse.h"

#include "common/error.h"

namespace spark::api {

std::string sse_data(std::string_view one_line) {
  std::string out;
  out.reserve(one_line.size() + 8);
  out.append("data: ").append(one_line).append("\n\n");
  return out;
}

std::string sse_comment(std::string_view text) {
  return ": " + std::string(text) + "\n\n";
}

void SseReader::feed(std::string_view bytes, const std::function<void(const SseEvent&)>& deliver) {
  while (!bytes.empty()) {
    // "\r\n" is one line end, also when the two come apart.
    if (after_return_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_return_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + event_.data.size() > max_event_bytes_) {
      throw Error("an event is longer than " + std::to_string(max_event_bytes_) + " bytes", "event stream");
    }
    if (end == std::string_view::npos) return;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(deliver);
  }
}

void SseReader::end_line(const std::function<void(const SseEvent&)>& deliver) {
  std::string_view line = line_;
  if (at_start_ && line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) deliver(event_);
    event_.event.clear();
    event_.data.clear();
    has_data_ = false;
  } else if (line.front() != ':') {
    const size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
    if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    if (name == "data") {
      if (has_data_) event_.data += '\n';
      event_.data += value;
      has_data_ = true;
    } else if (name == "event") {
      event_.event = value;
    } else if (name == "id") {
      event_.id = value;
    }
  }
  line_.clear();
}

}  // namespace spark::api
