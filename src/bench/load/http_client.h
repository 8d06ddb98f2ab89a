// The benchmark's HTTP client (libcurl): whole bodies, and streams whose bytes are stamped as they arrive.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

namespace spark::bench {

struct Endpoint {
  std::string base_url;  // "http://127.0.0.1:8000", no trailing slash
  std::string api_key;   // sent as a bearer token when not empty; never logged
};

struct HttpReply {
  long status = 0;    // 0: no reply
  std::string body;   // of a whole reply, or of a stream's error reply
  std::string error;  // transport failure, empty when there was a reply
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

// Called with each piece of a successful reply and the monotonic time at which it was read from the socket.
using OnData = std::function<void(std::string_view bytes, double time_s)>;

class HttpClient {
 public:
  explicit HttpClient(Endpoint endpoint, const std::atomic<bool>* cancelled = nullptr);

  HttpReply get(const std::string& path, double timeout_s) const;
  // Fails when nothing arrives for `stall_timeout_s`.
  HttpReply post_stream(const std::string& path, const std::string& json, double stall_timeout_s,
                        const OnData& on_data) const;

 private:
  Endpoint endpoint_;
  const std::atomic<bool>* cancelled_;
};

}  // namespace spark::bench
