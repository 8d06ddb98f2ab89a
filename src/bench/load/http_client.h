// The benchmark's HTTP client (libcurl): whole bodies, and streams whose bytes are stamped as they arrive.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace spark::bench {

// Nothing answers at the service's address.
class Unreachable : public Error {
 public:
  using Error::Error;
};

struct Endpoint {
  std::string base_url;  // "http://127.0.0.1:8000"
  std::string api_key;   // sent as a bearer token when not empty; never logged
};

struct HttpReply {
  long status = 0;    // 0: no reply
  std::string body;   // of a whole reply, or of a stream's error reply
  std::string error;  // transport failure, empty when there was a reply
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

// What a piece of a stream was to who reads it. Bytes alone are no sign of life: a proxy's keep-alive
// comments come for ever.
enum class Heard {
  kNothing,   // the stall limit runs on
  kProgress,  // the stall limit begins anew
  kEnd,       // all that was wanted has come: the transfer ends here, whatever the server does
};

// Called with each piece of a successful reply and the monotonic time at which it was read from the socket.
using OnData = std::function<Heard(std::string_view bytes, double time_s)>;

class HttpClient {
 public:
  // A slash or "/v1" at the end of the address is dropped. Throws Error for an address that is no http:// or
  // https:// URL or holds a password or a query, and for a key that no header can carry.
  explicit HttpClient(Endpoint endpoint, const std::atomic<bool>* cancelled = nullptr);

  const std::string& base_url() const { return endpoint_.base_url; }
  HttpReply get(const std::string& path, double timeout_s) const;
  // Fails when `on_data` hears no progress for `stall_timeout_s`. What it throws ends the transfer and is
  // thrown on.
  HttpReply post_stream(const std::string& path, const std::string& json, double stall_timeout_s,
                        const OnData& on_data) const;

 private:
  Endpoint endpoint_;
  const std::atomic<bool>* cancelled_;
};

}  // namespace spark::bench
