#include "engine/collective/network_interface.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "common/descriptor.h"
#include "engine/collective/resolve.h"

namespace spark::engine {
namespace {

namespace fs = std::filesystem;

bool is_wildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool same_host(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                                                        &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr);
}

bool is_loopback(const sockaddr* address) {
  return address->sa_family == AF_INET &&
         (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
}

struct FreeInterfaces {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

std::string interface_with(const sockaddr* address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeInterfaces> list(first);
  for (const ifaddrs* each = list.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    // All of 127.0.0.0/8 is the loopback interface's, which only has 127.0.0.1.
    const bool both_loopback = is_loopback(address) && is_loopback(each->ifa_addr);
    if (!both_loopback && !same_host(address, each->ifa_addr)) continue;
    // A second address may have a label, "eth0:1".
    const std::string name = each->ifa_name;
    return name.substr(0, name.find(':'));
  }
  return {};
}

}  // namespace

std::optional<std::string> interface_towards(const std::string& host, uint16_t port, std::string& why) {
  const Addresses list = resolve(host, port, why);
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    if (is_wildcard(each->ai_addr)) return "";
    // Connecting a datagram socket only looks up the route.
    const Descriptor socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    auto* address = reinterpret_cast<sockaddr*>(&own);
    if (socket.open() && ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), address, &length) == 0) {
      return interface_with(address);
    }
    why = std::strerror(errno);
  }
  return std::nullopt;
}

std::string devices_of(const std::string& interface, const std::string& sys_class_net) {
  const fs::path folder = fs::path(sys_class_net) / interface;
  int port = 0;  // of a card whose interfaces share one device, from 0
  std::ifstream(folder / "dev_port") >> port;
  std::vector<std::string> cards;
  std::error_code none;
  for (const auto& card : fs::directory_iterator(folder / "device" / "infiniband", none)) {
    cards.push_back(card.path().filename());
  }
  std::sort(cards.begin(), cards.end());
  std::string devices = interface;
  for (const std::string& card : cards) devices += "," + card + ":" + std::to_string(port + 1);
  return devices;
}

}  // namespace spark::engine
