#include "engine/collective/resolve.h"

#include <sys/socket.h>

namespace spark::engine {

Addresses resolve(const std::string& host, uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int fault = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (fault != 0) why = ::gai_strerror(fault);
  return Addresses(fault == 0 ? list : nullptr);
}

}  // namespace spark::engine
