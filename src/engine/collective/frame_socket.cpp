#include "engine/collective/frame_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/collective/byte_stream.h"
#include "engine/collective/resolve.h"

namespace spark::engine {
namespace {

constexpr uint32_t kMagic = 0x4B525053;  // "SPRK"
constexpr size_t kHeadBytes = 16;        // magic, protocol, kind, 2 spare bytes, length
constexpr size_t kRoomBytes = size_t{16} << 10;
// A peer that takes nothing is silent too; its frames need not pile up.
constexpr size_t kMaxUnsent = size_t{1} << 20;

std::string system_fault(int number) {
  return std::strerror(number);
}

// A socket that connects to a free port of its own machine may be given just that port, and then talks to
// itself.
bool talks_to_itself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

std::string peer_name(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return std::string(host) + ":" + port;
}

}  // namespace

FrameSocket::FrameSocket(Descriptor descriptor)
    : descriptor_(std::move(descriptor)), peer_(peer_name(descriptor_.get())) {
  const int on = 1;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(fd(), F_SETFL, ::fcntl(fd(), F_GETFL) | O_NONBLOCK);
  // Room for signs of life, so that they need no memory.
  unsent_.reserve(kRoomBytes);
  unread_.reserve(kRoomBytes);
}

bool FrameSocket::send(FrameKind kind, std::span<const uint8_t> payload) {
  if (unsent_.size() > kMaxUnsent) return true;
  std::array<uint8_t, kHeadBytes> head{};
  const auto length = static_cast<uint32_t>(payload.size());
  std::memcpy(head.data(), &kMagic, 4);
  std::memcpy(head.data() + 4, &kRankProtocol, 4);
  std::memcpy(head.data() + 8, &kind, 2);
  std::memcpy(head.data() + 12, &length, 4);
  unsent_.insert(unsent_.end(), head.begin(), head.end());
  unsent_.insert(unsent_.end(), payload.begin(), payload.end());
  return flush();
}

bool FrameSocket::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  }
  return true;
}

bool FrameSocket::read() {
  uint8_t buffer[kRoomBytes];
  // Only as much as a frame can hold: whoever sends more waits until it was looked at.
  while (unread_.size() < kHeadBytes + kMaxFrameBytes) {
    const ssize_t got = ::recv(fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      unread_.insert(unread_.end(), buffer, buffer + got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return fault_.empty();
    fault_ = got == 0 ? "its connection ended" : "its connection broke: " + system_fault(errno);
    return false;
  }
  return fault_.empty();
}

std::optional<Frame> FrameSocket::next() {
  if (unread_.size() < kHeadBytes) return std::nullopt;
  ByteReader head({unread_.data(), kHeadBytes});  // holds no memory of its own
  const auto magic = head.number<uint32_t>();
  const auto protocol = head.number<uint32_t>();
  const auto kind = head.number<uint16_t>();
  head.number<uint16_t>();
  const auto length = head.number<uint32_t>();
  if (magic != kMagic) {
    fault_ = "it does not speak the protocol of ranks";
  } else if (protocol != kRankProtocol) {
    fault_ = "it speaks version " + std::to_string(protocol) + " of the protocol of ranks, this is version " +
             std::to_string(kRankProtocol) + ": install the same release everywhere";
  } else if (kind < static_cast<uint16_t>(FrameKind::kHello) ||
             kind > static_cast<uint16_t>(FrameKind::kFailed) || length > kMaxFrameBytes) {
    fault_ = "it sent what no rank sends";
  }
  if (!fault_.empty() && (magic != kMagic || protocol != kRankProtocol || length > kMaxFrameBytes)) {
    unread_.clear();
    return std::nullopt;
  }
  if (unread_.size() < kHeadBytes + length) return std::nullopt;
  const auto begin = unread_.begin() + kHeadBytes;
  Frame frame{static_cast<FrameKind>(kind), {begin, begin + length}};
  unread_.erase(unread_.begin(), begin + length);
  return frame;
}

Descriptor listen_on(const std::string& address, uint16_t port) {
  const std::string where = address + ":" + std::to_string(port);
  std::string why;
  const Addresses list = resolve(address, port, why);
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol));
    const int on = 1;
    if (socket.open()) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket.open() && ::bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(socket.get(), 128) == 0) {
      ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
      return socket;
    }
    why = system_fault(errno);
  }
  throw Error("rank 0 cannot listen for the other ranks: " + why, where,
              "choose an address of this machine with --master-addr and a free port with --master-port");
}

uint16_t port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char port[NI_MAXSERV];
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, port, sizeof port,
                    NI_NUMERICSERV) != 0) {
    throw Error("cannot tell which port rank 0 listens on");
  }
  return static_cast<uint16_t>(std::stoi(port));
}

Descriptor connect_to(const std::string& address, uint16_t port, int timeout_ms, std::string& why) {
  const Addresses list = resolve(address, port, why);
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol));
    if (!socket.open()) continue;
    int fault = ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (fault == EINPROGRESS) {
      pollfd wait{socket.get(), POLLOUT, 0};
      socklen_t length = sizeof fault;
      if (::poll(&wait, 1, timeout_ms) <= 0) {
        fault = ETIMEDOUT;
      } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &fault, &length) != 0) {
        fault = errno;
      }
    }
    if (fault == 0 && !talks_to_itself(socket.get())) return socket;
    if (fault == 0) fault = ECONNREFUSED;
    why = system_fault(fault);
  }
  return Descriptor();
}

}  // namespace spark::engine
