// Who of the group is alive: a thread of its own (the watcher), on the connections of the rendezvous, so that
// neither a long step nor an idle hour hides that a rank is gone.
//
//   Membership membership(rank, std::move(meeting.connections), {.lost = [](const LostRank& lost) { ... }});
//   membership.leave();      // the orderly end
//
// Every rank sends a sign of life to rank 0, and rank 0 to every rank, twenty times a second. A connection
// that ends, or half a second of silence, means that the rank is lost; rank 0 tells the others. Until a rank
// is heard for the first time it has longer: it may still be busy getting there.
//
// The watcher does nothing that may have to wait: no allocation once it runs, no lock that is held for longer
// than a system call (and that one lends its priority), no event of the owner's, no log. It asks for
// real-time scheduling. Where it is held up all the same, the time it was held up is nobody's silence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/collective/rendezvous.h"

namespace spark::engine {

struct LostRank {
  int32_t rank = 0;
  std::string why;
  // "rank 2 was lost: its connection ended"
  std::string describe() const;
};

struct MembershipOptions {
  double beat_s = 0.05;
  double silence_s = 0.5;
  double first_silence_s = 5;  // of a rank that was never heard
  double leave_s = 2;          // how long leave() waits for the others
  double end_s = 5;            // after a loss, until `overdue`
};

// Each is called once. `lost` and `stop_requested` may take their time: they have a thread for themselves.
struct MembershipEvents {
  std::function<void(const LostRank&)> lost = {};
  // Rank 0: another rank was told to stop, so all should.
  std::function<void(int32_t rank)> stop_requested = {};
  // A rank was lost `end_s` ago and this membership still exists: whatever should have ended it hangs. On the
  // watcher's thread.
  std::function<void()> overdue = {};
};

class Membership {
 public:
  Membership(int32_t rank, std::vector<RankConnection> connections, MembershipEvents events,
             const MembershipOptions& options = {});
  // Without leave() the other ranks take this one for lost.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // A sign of life from a thread that works, where the watcher's is late: on a machine without a processor to
  // spare the working threads get what this process is given, and the watcher can wait for seconds. Cheap
  // when none is due; any thread, any time.
  void beat();
  // Not rank 0: asks rank 0 to end the group in good order.
  void request_stop();
  // This rank cannot go on: the others take it for lost, for this reason. Ends as if another rank were lost.
  void fail(const std::string& why);
  // Says that the connections will end now and that this is right; waits until the others say so too.
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spark::engine
