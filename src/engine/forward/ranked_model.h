// One StepModel made of the ranks of a group: rank 0 has the requests, and every call on its model is sent to
// the other ranks before it is made here.
//
//   LeadingModel model(decoder, communicator, transport);     // rank 0: the scheduler drives it
//   follow(decoder, communicator, transport);                 // the others: until rank 0 says stop
//
// The calls must be deterministic functions of what was called before, so that all ranks hold the same
// state. Every rank keeps a running digest of the calls, and all are compared at each step
// (Communicator::meet).
#pragma once

#include <functional>
#include <string>

#include "engine/collective/byte_stream.h"
#include "engine/collective/communicator.h"
#include "engine/collective/transport.h"
#include "engine/forward/step_calls.h"
#include "engine/forward/step_model.h"

namespace spark::engine {

class LeadingModel final : public StepModel {
 public:
  // All outlive this. `broken` is told why when a call finds the group fallen apart.
  LeadingModel(StepModel& local, Communicator& communicator, Transport& transport,
               std::function<void(const std::string& why)> broken = {})
      : local_(local), communicator_(communicator), transport_(transport), broken_(std::move(broken)) {}
  LeadingModel(const LeadingModel&) = delete;
  LeadingModel& operator=(const LeadingModel&) = delete;

  int32_t vocab_size() const override { return local_.vocab_size(); }
  int32_t max_sequences() const override { return local_.max_sequences(); }
  int32_t max_context() const override { return local_.max_context(); }
  int32_t max_step_rows() const override { return local_.max_step_rows(); }
  int32_t max_rollback() const override { return local_.max_rollback(); }
  int32_t decoder_window() const override { return local_.decoder_window(); }
  int32_t prefetch_lead() const override { return local_.prefetch_lead(); }
  TableCounters table_counters() const override { return local_.table_counters(); }
  int32_t longest_sequence() const override { return local_.longest_sequence(); }
  int32_t max_drafts() const override { return local_.max_drafts(); }
  bool has_room(std::span<const SequenceLength> lengths) const override { return local_.has_room(lengths); }
  CacheOccupancy cache_occupancy() const override { return local_.cache_occupancy(); }

  // Like the model's own; and RankLost when the group has fallen apart, except from close_sequence and
  // prefetch, which have nothing left to do then.
  void open_sequence(int32_t sequence) override;
  void close_sequence(int32_t sequence) override;
  void prefetch(std::span<const int32_t> tokens, int32_t position) override;
  int32_t start_sequence(int32_t sequence, const SequenceStart& start) override;
  std::span<const float> run(std::span<const StepRow> rows) override;
  Drafts draft(std::span<const DraftRequest> requests) override;

  // Ends follow() on the other ranks; waits until they have heard. Throws RankLost.
  void stop();

 private:
  void send(const StepCall& call);
  // Sends a call that must not throw.
  void send_if_whole(const StepCall& call);
  // Sends the call, then makes it here.
  template <typename Work>
  auto lead(const StepCall& call, const Work& work);

  StepModel& local_;
  Communicator& communicator_;
  Transport& transport_;
  const std::function<void(const std::string& why)> broken_;
  ByteWriter message_;
};

// Replays what rank 0 does. Returns when rank 0 stops; throws RankLost when the group falls apart, and Error
// when a message is broken.
void follow(StepModel& local, Communicator& communicator, Transport& transport);

}  // namespace spark::engine
