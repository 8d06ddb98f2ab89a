// A mutex whose owner runs at the priority of whoever waits for it: a thread with a deadline may share it
// with threads that have none, as long as they hold it briefly. For std::lock_guard.
#pragma once

#include <pthread.h>

namespace spark::engine {

class InheritingMutex {
 public:
  InheritingMutex() {
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    ::pthread_mutex_init(&mutex_, &attributes);
    ::pthread_mutexattr_destroy(&attributes);
  }
  ~InheritingMutex() { ::pthread_mutex_destroy(&mutex_); }
  InheritingMutex(const InheritingMutex&) = delete;
  InheritingMutex& operator=(const InheritingMutex&) = delete;

  void lock() { ::pthread_mutex_lock(&mutex_); }
  void unlock() { ::pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

}  // namespace spark::engine
