#include "engine/collective/in_process_transport.h"

#include <algorithm>

namespace spark::engine {

class InProcessHub::Endpoint final : public Transport {
 public:
  Endpoint(InProcessHub& hub, int32_t rank, int32_t ranks) : hub_(hub), rank_(rank), ranks_(ranks) {}

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return ranks_; }

  void send(int32_t to, std::span<const uint8_t> bytes) override {
    {
      const std::lock_guard lock(hub_.mutex_);
      hub_.queue(rank_, to).emplace_back(bytes.begin(), bytes.end());
    }
    hub_.arrived_.notify_all();
  }

  void receive(int32_t from, std::span<uint8_t> bytes) override { wanted_.push_back({from, bytes}); }

  void wait() override {
    std::unique_lock lock(hub_.mutex_);
    for (const Wanted& wanted : wanted_) {
      std::deque<Message>& queue = hub_.queue(wanted.from, rank_);
      hub_.arrived_.wait(lock, [&] { return hub_.aborted_ || !queue.empty(); });
      if (hub_.aborted_) throw RankLost(*hub_.aborted_);
      SPARK_CHECK(queue.front().size() == wanted.bytes.size());
      std::copy(queue.front().begin(), queue.front().end(), wanted.bytes.begin());
      queue.pop_front();
    }
    if (hub_.aborted_) throw RankLost(*hub_.aborted_);
    wanted_.clear();
  }

  void abort(const std::string& why) override { hub_.abort(why); }

 private:
  struct Wanted {
    int32_t from = 0;
    std::span<uint8_t> bytes;
  };
  InProcessHub& hub_;
  int32_t rank_;
  int32_t ranks_;
  std::vector<Wanted> wanted_;
};

InProcessHub::InProcessHub(int32_t ranks) : queues_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    endpoints_.push_back(std::make_unique<Endpoint>(*this, rank, ranks));
  }
}

InProcessHub::~InProcessHub() = default;

Transport& InProcessHub::transport(int32_t rank) {
  return *endpoints_.at(static_cast<size_t>(rank));
}

std::deque<InProcessHub::Message>& InProcessHub::queue(int32_t from, int32_t to) {
  return queues_[static_cast<size_t>(from) * endpoints_.size() + static_cast<size_t>(to)];
}

void InProcessHub::abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = why;
  }
  arrived_.notify_all();
}

}  // namespace spark::engine
