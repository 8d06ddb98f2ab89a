// Ranks as threads of one process: for tests, and for comparing splits without starting anything.
//
//   InProcessHub hub(3);
//   std::thread rank_1([&] { work(hub.transport(1)); });
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/transport.h"

namespace spark::engine {

class InProcessHub {
 public:
  explicit InProcessHub(int32_t ranks);
  ~InProcessHub();

  Transport& transport(int32_t rank);
  // As if a rank were gone: every rank's waits end.
  void abort(const std::string& why);

 private:
  class Endpoint;
  using Message = std::vector<uint8_t>;
  std::deque<Message>& queue(int32_t from, int32_t to);

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<std::string> aborted_;
  std::vector<std::deque<Message>> queues_;  // [from][to]
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace spark::engine
