#include "engine/forward/ranked_model.h"

#include "common/log.h"

namespace spark::engine {
namespace {

// No call is longer; a length beyond it is a broken message, not a reason to allocate.
constexpr uint64_t kMaxCallBytes = uint64_t{1} << 30;

struct CallHead {
  uint64_t bytes = 0;
};

std::span<const uint8_t> bytes_of(const CallHead& head) {
  return {reinterpret_cast<const uint8_t*>(&head), sizeof head};
}

}  // namespace

void LeadingModel::send(const StepCall& call) {
  message_.clear();
  write_call(message_, call);
  communicator_.note(message_.bytes());
  const CallHead head{message_.bytes().size()};
  for (int32_t rank = 1; rank < transport_.ranks(); ++rank) {
    transport_.send(rank, bytes_of(head));
    transport_.send(rank, message_.bytes());
  }
  transport_.wait();
}

template <typename Work>
auto LeadingModel::lead(const StepCall& call, const Work& work) {
  try {
    send(call);
    return work();
  } catch (const RankLost& lost) {
    if (broken_) broken_(lost.what());
    throw;
  }
}

void LeadingModel::open_sequence(int32_t sequence) {
  lead(OpenCall{sequence}, [&] { local_.open_sequence(sequence); });
}

void LeadingModel::send_if_whole(const StepCall& call) {
  try {
    lead(call, [] {});
  } catch (const RankLost& lost) {
    log_debug("a call was made on this rank only: " + std::string(lost.what()));
  }
}

void LeadingModel::close_sequence(int32_t sequence) {
  send_if_whole(CloseCall{sequence});
  local_.close_sequence(sequence);
}

void LeadingModel::prefetch(std::span<const int32_t> tokens, int32_t position) {
  send_if_whole(PrefetchCall{{tokens.begin(), tokens.end()}, position});
  local_.prefetch(tokens, position);
}

int32_t LeadingModel::start_sequence(int32_t sequence, const SequenceStart& start) {
  const StartCall call{
      sequence, {start.tokens.begin(), start.tokens.end()}, start.prompt_tokens, start.cache_salt};
  return lead(call, [&] { return local_.start_sequence(sequence, start); });
}

std::span<const float> LeadingModel::run(std::span<const StepRow> rows) {
  return lead(RunCall{{rows.begin(), rows.end()}}, [&] { return local_.run(rows); });
}

Drafts LeadingModel::draft(std::span<const DraftRequest> requests) {
  return lead(DraftCall{{requests.begin(), requests.end()}}, [&] { return local_.draft(requests); });
}

void LeadingModel::stop() {
  send(StopCall{});
  communicator_.meet({});
}

void follow(StepModel& local, Communicator& communicator, Transport& transport) {
  std::vector<uint8_t> message;
  for (;;) {
    CallHead head;
    transport.receive(0, {reinterpret_cast<uint8_t*>(&head), sizeof head});
    transport.wait();
    if (head.bytes > kMaxCallBytes) throw Error("has an impossible length", "a message between ranks");
    message.resize(head.bytes);
    transport.receive(0, message);
    transport.wait();
    communicator.note(message);
    const StepCall call = read_call(message);
    if (std::holds_alternative<StopCall>(call)) {
      communicator.meet({});
      return;
    }
    try {
      std::visit([&](const auto& each) { each.replay(local); }, call);
    } catch (const RankLost&) {
      throw;
    } catch (const Error& error) {
      // All ranks failed alike, or agreed that one had: rank 0 answers for it.
      log_debug(std::string("a call failed here as on rank 0: ") + error.what());
    }
  }
}

}  // namespace spark::engine
