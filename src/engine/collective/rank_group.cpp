#include "engine/collective/rank_group.h"

namespace spark::engine {
namespace {

Meeting meet_ranks(const RankGroupOptions& options, const std::vector<uint8_t>& address) {
  if (options.settings.rank == 0) {
    SPARK_CHECK(options.listener != nullptr);
    return gather_ranks(*options.listener, options.settings, address, options.rendezvous);
  }
  return join_ranks(options.master_address, options.master_port, options.settings, address,
                    options.rendezvous);
}

UcxOptions with_beats(UcxOptions options, std::function<void()> at_work) {
  options.at_work = std::move(at_work);
  return options;
}

}  // namespace

RankGroup::RankGroup(RankGroupOptions options)
    : transport_(options.settings.rank, options.settings.ranks,
                 with_beats(options.transport,
                            [this] {
                              if (membership_ != nullptr) membership_->beat();
                            })),
      communicator_(transport_) {
  Meeting meeting = meet_ranks(options, transport_.address());
  MembershipEvents events = options.events;
  events.lost = [this, lost = std::move(events.lost)](const LostRank& rank) {
    transport_.abort(rank.describe());
    if (lost) lost(rank);
  };
  membership_ = std::make_unique<Membership>(options.settings.rank, std::move(meeting.connections),
                                             std::move(events), options.membership);
  transport_.connect(meeting.addresses);
}

RankGroup::~RankGroup() = default;

void RankGroup::ready() {
  const std::string failure = communicator_.meet({});
  if (!failure.empty()) throw RankLost(failure);
}

}  // namespace spark::engine
