// A TCP connection that carries frames between two ranks: joining, signs of life, parting. Never blocks;
// sending and reading frames without payload allocates nothing.
//
//   FrameSocket socket(std::move(descriptor));
//   socket.send(FrameKind::kAlive, {});
//   if (socket.read()) while (auto frame = socket.next()) ...   // false: the connection has ended
//
// A frame is: magic, protocol, kind, length, payload. Anything else on the wire ends the connection.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/descriptor.h"

namespace spark::engine {

enum class FrameKind : uint16_t {
  kHello = 1,    // to rank 0: settings and address
  kWelcome,      // from rank 0: every rank's address
  kRefused,      // from rank 0: why
  kAlive,        // twenty times a second
  kLost,         // from rank 0: which rank was lost, and why
  kStopRequest,  // to rank 0: this rank was told to stop
  kLeaving,      // the connection will end, and that is right
  kFailed,       // to rank 0: this rank cannot go on, and why
};

struct Frame {
  FrameKind kind = FrameKind::kAlive;
  std::vector<uint8_t> payload;
};

inline constexpr uint32_t kRankProtocol = 1;
inline constexpr size_t kMaxFrameBytes = size_t{256} << 10;

class FrameSocket {
 public:
  explicit FrameSocket(Descriptor descriptor);

  int fd() const { return descriptor_.get(); }
  // "192.168.1.2:41234"
  const std::string& peer() const { return peer_; }

  // Queues the frame and sends what the kernel takes; false when the connection is broken.
  bool send(FrameKind kind, std::span<const uint8_t> payload);
  bool flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // Reads what has arrived; false when the connection has ended or carries no frames. Frames that came before
  // that can still be had by next().
  bool read();
  std::optional<Frame> next();
  // Why read() was false.
  const std::string& fault() const { return fault_; }

 private:
  Descriptor descriptor_;
  std::string peer_;
  std::vector<uint8_t> unsent_;
  std::vector<uint8_t> unread_;
  std::string fault_;
};

// Sockets for an address such as "10.0.0.1" or "node1". Throw Error.
Descriptor listen_on(const std::string& address, uint16_t port);
uint16_t port_of(const Descriptor& listener);
// Not open, and `why` set, when nobody answers within the time.
Descriptor connect_to(const std::string& address, uint16_t port, int timeout_ms, std::string& why);

}  // namespace spark::engine
