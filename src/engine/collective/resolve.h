// The addresses of a host such as "10.0.0.1" or "node1".
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

namespace spark::engine {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null, and `why` set, when there is none.
Addresses resolve(const std::string& host, uint16_t port, std::string& why);

}  // namespace spark::engine
