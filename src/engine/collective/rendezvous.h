// How the ranks of a group find each other: rank 0 listens, the others join, and when all are there each
// learns the transport address of every other.
//
//   Descriptor listener = listen_on("10.0.0.1", 29501);                       // rank 0
//   Meeting meeting = gather_ranks(listener, settings, address, {});
//   Meeting meeting = join_ranks("10.0.0.1", 29501, settings, address, {});   // the others
//
// Whoever reaches the port can send anything: it is read within bounds and a time limit, and a connection
// that does not turn out to be a rank with the same settings is told why and closed. The port is no place for
// strangers all the same: ranks are not authenticated, so it belongs on the cluster's own network.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/collective/frame_socket.h"
#include "engine/collective/rank_settings.h"

namespace spark::engine {

struct RendezvousOptions {
  double timeout_s = 300;      // until all ranks have joined
  double hello_timeout_s = 5;  // of a connection, until it has said who it is
  // Looked at ten times a second; a text ends the wait with an Error that says so.
  std::function<std::string()> interrupted = {};
};

struct RankConnection {
  int32_t rank = 0;
  FrameSocket socket;
};

struct Meeting {
  std::vector<std::vector<uint8_t>> addresses;  // [ranks]
  std::vector<RankConnection> connections;      // rank 0: to every other rank; others: to rank 0
};

// Both throw Error when the time is up, saying which ranks are missing; join_ranks also when rank 0 refuses.
Meeting gather_ranks(const Descriptor& listener, const RankSettings& settings,
                     const std::vector<uint8_t>& address, const RendezvousOptions& options);
Meeting join_ranks(const std::string& master_address, uint16_t master_port, const RankSettings& settings,
                   const std::vector<uint8_t>& address, const RendezvousOptions& options);

}  // namespace spark::engine
