// Calls that may take their time, one after the other on a thread of their own, for a thread that has none.
//
//   Teller teller;
//   teller.tell([] { log_error("rank 2 was lost"); });
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace spark::engine {

class Teller {
 public:
  Teller();
  // After the calls that were told before.
  ~Teller();
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  void tell(std::function<void()> call);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> calls_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace spark::engine
