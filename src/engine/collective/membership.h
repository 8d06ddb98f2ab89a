// Who of the group is alive: a thread of its own, on the connections of the rendezvous, so that neither a
// long step nor an idle hour hides that a rank is gone.
//
//   Membership membership(rank, std::move(meeting.connections), {.lost = [](const LostRank& lost) { ... }});
//   membership.leave();      // the orderly end
//
// Every rank sends a sign of life to rank 0, and rank 0 to every rank, ten times a second. A connection that
// ends, or 0.6 s of silence, means that the rank is lost; rank 0 tells the others. All of that takes less
// than a second. Until a rank is heard for the first time it has longer: it may still be busy getting there.
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
  double beat_s = 0.1;
  double silence_s = 0.6;
  double first_silence_s = 5;  // of a rank that was never heard
  double leave_s = 2;          // how long leave() waits for the others
};

// Called on the membership's thread, each once.
struct MembershipEvents {
  std::function<void(const LostRank&)> lost = {};
  // Rank 0: another rank was told to stop, so all should.
  std::function<void(int32_t rank)> stop_requested = {};
};

class Membership {
 public:
  Membership(int32_t rank, std::vector<RankConnection> connections, MembershipEvents events,
             const MembershipOptions& options = {});
  // Without leave() the other ranks take this one for lost.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

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
