// Work that ranks can only finish together: when one fails alone, the others would wait for it for ever.
//
//   together(communicator, [&] { forward(); });
#pragma once

#include <exception>
#include <string>

#include "engine/collective/communicator.h"
#include "engine/collective/transport.h"

namespace spark::engine {

// With several ranks a failure of the work is the loss of this rank: RankLost.
template <typename Work>
void together(const Communicator& communicator, const Work& work) {
  if (communicator.ranks() == 1) return work();
  try {
    work();
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    throw RankLost("rank " + std::to_string(communicator.rank()) +
                   " failed in the middle of a step: " + error.what());
  }
}

}  // namespace spark::engine
