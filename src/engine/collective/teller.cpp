#include "engine/collective/teller.h"

#include <pthread.h>

#include "engine/collective/urgency.h"

namespace spark::engine {

Teller::Teller() : thread_([this] { run(); }) {}

Teller::~Teller() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Teller::tell(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  wake_.notify_one();
}

void Teller::run() {
  ::pthread_setname_np(::pthread_self(), "rank-events");
  hurry_this_thread();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !calls_.empty(); });
    if (calls_.empty()) return;
    const std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
    lock.lock();
  }
}

}  // namespace spark::engine
