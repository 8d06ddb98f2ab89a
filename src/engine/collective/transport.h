// Messages between the ranks of a group: what the communicator and the replayed calls are made of.
//
//   transport.receive(1, from_rank_1);      // both only start
//   transport.send(1, to_rank_1);
//   transport.wait();                       // until all that was started is done
//
// Messages from one rank to another arrive in the order they were sent. The receiver knows the length. One
// thread uses a transport at a time; abort() may come from any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/error.h"

namespace spark::engine {

// A rank of the group has ended, or cannot be heard any more: nothing that needs the group can go on.
class RankLost : public Error {
 public:
  using Error::Error;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t ranks() const = 0;

  // The memory must stay as it is until wait() returns.
  virtual void send(int32_t to, std::span<const uint8_t> bytes) = 0;
  virtual void receive(int32_t from, std::span<uint8_t> bytes) = 0;

  // Throws RankLost after abort(), or when a connection breaks; nothing may be sent or received then.
  virtual void wait() = 0;

  // Ends every wait(), the one in progress and later ones, with RankLost(why). The first call counts.
  virtual void abort(const std::string& why) = 0;
};

}  // namespace spark::engine
