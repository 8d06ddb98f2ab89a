// One running call, and the loop that watches many of them. Callers want ops/remote/remote.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/child_process.h"
#include "ops/remote/remote.h"

namespace spark::ops {

class SshCall {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the client. One that cannot be started gives a finished call with outcome kUnreachable.
  SshCall(std::vector<std::string> client, const RemoteCall& call);
  SshCall(SshCall&&) = default;

  bool done() const { return done_; }
  Clock::time_point deadline() const { return deadline_; }
  const ChildProcess* process() const { return process_.get(); }
  bool wants_write() const { return !unsent_.empty(); }

  // Moves bytes that can be moved now, and finishes the call when its client has ended.
  void advance();
  // Ends it: the client dies, the node notices.
  void give_up(RemoteOutcome why);

  RemoteResult& result() { return result_; }

 private:
  void finish();
  void classify();

  std::string nonce_;
  std::string unsent_;
  size_t limit_ = 0;
  Clock::time_point begin_;
  Clock::time_point deadline_;
  std::unique_ptr<ChildProcess> process_;
  std::string output_;
  std::string error_;
  bool done_ = false;
  bool overflowed_ = false;
  RemoteResult result_;
};

// Returns when all are done. `finished` is called once for each.
void watch_calls(std::vector<SshCall>& calls, const std::stop_token& stop,
                 const std::function<void(size_t index)>& finished);

}  // namespace spark::ops
