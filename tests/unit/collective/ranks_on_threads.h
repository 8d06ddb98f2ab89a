// Runs a function once per rank, each on a thread of its own.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "engine/collective/in_process_transport.h"

namespace spark::engine {

// `work` gets its rank's transport. An exception of one rank ends the waits of all; the first is rethrown.
inline void on_ranks(int32_t ranks, const std::function<void(Transport&)>& work) {
  InProcessHub hub(ranks);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(hub.transport(rank));
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
        hub.abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

}  // namespace spark::engine
