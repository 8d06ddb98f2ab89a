// One rank of a running group: joined, connected, watched.
//
//   RankGroup group({.settings = {.rank = 0, .ranks = 3, .settings = {...}}, .listener = &listener,
//                    .events = {.lost = [](const LostRank& lost) { ... }}});
//   load_model({..., .communicator = &group.communicator()});
//   group.ready();                  // every rank has come this far
//   ...
//   group.leave();                  // in good order; without it the others take this rank for lost
//
// When a rank is lost, everything that waits for the group ends with RankLost, then `events.lost` is called.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/collective/host_communicator.h"
#include "engine/collective/membership.h"
#include "engine/collective/ucx_transport.h"

namespace spark::engine {

struct RankGroupOptions {
  RankSettings settings;
  const Descriptor* listener = nullptr;  // of rank 0, whose address the others are given
  std::string master_address = "127.0.0.1";
  uint16_t master_port = 0;
  UcxOptions transport;
  RendezvousOptions rendezvous;
  MembershipOptions membership;
  MembershipEvents events;  // called on threads of the group
};

class RankGroup {
 public:
  // Waits for the other ranks. Throws Error when they do not come, or do not fit.
  explicit RankGroup(RankGroupOptions options);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int32_t rank() const { return transport_.rank(); }
  int32_t ranks() const { return transport_.ranks(); }
  Transport& transport() { return transport_; }
  Communicator& communicator() { return communicator_; }

  // Returns when all ranks have called it. Throws RankLost.
  void ready();
  // A sign of life from whoever works outside of waits for the group: membership.h.
  void beat() { membership_->beat(); }
  // This rank cannot go on: all others end too, for this reason.
  void fail(const std::string& why) { membership_->fail(why); }
  // Not rank 0: asks rank 0 to end the group in good order.
  void request_stop() { membership_->request_stop(); }
  void leave() { membership_->leave(); }

 private:
  UcxTransport transport_;
  HostCommunicator communicator_;
  std::unique_ptr<Membership> membership_;  // first to go: it calls the transport
};

}  // namespace spark::engine
