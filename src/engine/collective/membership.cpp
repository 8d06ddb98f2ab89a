#include "engine/collective/membership.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "engine/collective/byte_stream.h"

namespace spark::engine {

std::string LostRank::describe() const {
  return "rank " + std::to_string(rank) + " was lost: " + why;
}

class Membership::Impl {
 public:
  Impl(int32_t rank, std::vector<RankConnection> connections, MembershipEvents events,
       const MembershipOptions& options)
      : rank_(rank),
        events_(std::move(events)),
        options_(options),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const double now = monotonic_s();
    for (RankConnection& connection : connections) {
      peers_.push_back({connection.rank, std::move(connection.socket), now});
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake();
    thread_.join();
  }

  void request_stop() {
    {
      const std::lock_guard lock(mutex_);
      asks_to_stop_ = true;
    }
    wake();
  }

  void fail(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = why;
    }
    wake();
  }

  void leave() {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    wake();
    all_left_.wait_for(lock, std::chrono::duration<double>(options_.leave_s), [this] { return left_; });
  }

 private:
  struct Peer {
    int32_t rank = 0;
    FrameSocket socket;
    double heard = 0;
    bool is_new = true;  // not heard yet
    bool left = false;
  };

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }

  // Signs of life matter more than the work they speak for. Not every process may say so.
  static void ask_for_priority() {
    const sched_param least{.sched_priority = 1};
    // Of this thread; threads that it starts are as any other.
    if (::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &least) == 0) return;
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), -10);
  }

  double silence_of(const Peer& peer) const {
    return peer.is_new ? options_.first_silence_s : options_.silence_s;
  }

  void run() {
    ask_for_priority();
    double beat_at = monotonic_s();
    double looked = beat_at;
    while (take_wishes()) {
      if (monotonic_s() >= beat_at) {
        for (Peer& peer : peers_) {
          if (!peer.left) peer.socket.send(FrameKind::kAlive, {});
        }
        beat_at = monotonic_s() + options_.beat_s;
      }
      wait(beat_at);
      // When this thread itself did not run for a while, silence says nothing about the others.
      const double now = monotonic_s();
      const double stalled = now - looked - options_.beat_s;
      looked = now;
      for (Peer& peer : peers_) {
        if (stalled > options_.beat_s) peer.heard += stalled;
        if (!peer.left) listen(peer, now);
      }
    }
  }

  // Until something is heard, or a sign of life is due, one way or the other.
  void wait(double until) {
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      if (peer.left) continue;
      waits.push_back({peer.socket.fd(), POLLIN, 0});
      until = std::min(until, peer.heard + silence_of(peer));
    }
    const int ms = std::max(1, static_cast<int>((until - monotonic_s()) * 1000) + 1);
    ::poll(waits.data(), waits.size(), ms);
    uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }

  // False when the thread shall end.
  bool take_wishes() {
    std::unique_lock lock(mutex_);
    if (ending_) return false;
    if (asks_to_stop_ && !asked_to_stop_ && rank_ != 0) {
      asked_to_stop_ = true;
      for (Peer& peer : peers_) peer.socket.send(FrameKind::kStopRequest, {});
    }
    if (!failure_.empty() && !lost_) {
      if (rank_ != 0) {
        ByteWriter out;
        out.text(failure_);
        for (Peer& peer : peers_) peer.socket.send(FrameKind::kFailed, out.bytes());
      }
      const LostRank lost{rank_, failure_};
      lock.unlock();
      lose(lost);
      lock.lock();
    }
    if (leaving_ && !said_goodbye_) {
      said_goodbye_ = true;
      for (Peer& peer : peers_) peer.socket.send(FrameKind::kLeaving, {});
    }
    left_ = leaving_ && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.left; });
    if (left_) all_left_.notify_all();
    return true;
  }

  void listen(Peer& peer, double now) {
    const bool open = peer.socket.read();
    while (const auto frame = peer.socket.next()) {
      peer.heard = now;
      peer.is_new = false;
      take(peer, *frame);
      if (peer.left) return;
    }
    if (!open || !peer.socket.fault().empty()) {
      peer.left = true;
      if (!said_goodbye_)
        lose({peer.rank, peer.socket.fault().empty() ? "its connection ended" : peer.socket.fault()});
    } else if (now - peer.heard > silence_of(peer)) {
      char why[64];
      std::snprintf(why, sizeof why, "no sign of life for %.2f s", now - peer.heard);
      peer.left = true;
      lose({peer.rank, why});
    }
  }

  void take(Peer& peer, const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::kLeaving:
        peer.left = true;
        return;
      case FrameKind::kStopRequest:
        if (!stop_told_ && events_.stop_requested) events_.stop_requested(peer.rank);
        stop_told_ = true;
        return;
      case FrameKind::kFailed:
        if (rank_ == 0) take_failed(peer, frame);
        return;
      case FrameKind::kLost:
        if (rank_ != 0 && peer.rank == 0) take_lost(frame);
        return;
      default:
        return;
    }
  }

  void take_failed(const Peer& peer, const Frame& frame) {
    std::string why = "it failed";
    try {
      why = printable(ByteReader(frame.payload).text());
    } catch (const Error& error) {
      why += ", and its message was broken: " + error.describe();
    }
    lose({peer.rank, why});
  }

  void take_lost(const Frame& frame) {
    try {
      ByteReader in(frame.payload);
      const auto rank = in.number<int32_t>();
      const std::string why = printable(in.text());
      lose({rank, rank == rank_ ? "rank 0 gave up this rank: " + why : why});
    } catch (const Error& error) {
      lose({0, error.describe()});
    }
  }

  void lose(const LostRank& lost) {
    if (lost_) return;
    lost_ = true;
    if (rank_ == 0) {
      ByteWriter out;
      out.number(lost.rank);
      out.text(lost.why);
      for (Peer& peer : peers_) peer.socket.send(FrameKind::kLost, out.bytes());
    }
    if (events_.lost) events_.lost(lost);
  }

  const int32_t rank_;
  const MembershipEvents events_;
  const MembershipOptions options_;
  Descriptor wake_;
  std::vector<Peer> peers_;  // the thread's own, like the next
  bool asked_to_stop_ = false;
  bool said_goodbye_ = false;
  bool stop_told_ = false;
  bool lost_ = false;
  std::mutex mutex_;
  std::condition_variable all_left_;
  std::string failure_;
  bool asks_to_stop_ = false;
  bool leaving_ = false;
  bool left_ = false;
  bool ending_ = false;
  std::thread thread_;
};

Membership::Membership(int32_t rank, std::vector<RankConnection> connections, MembershipEvents events,
                       const MembershipOptions& options)
    : impl_(std::make_unique<Impl>(rank, std::move(connections), std::move(events), options)) {}
Membership::~Membership() = default;

void Membership::request_stop() {
  impl_->request_stop();
}
void Membership::fail(const std::string& why) {
  impl_->fail(why);
}
void Membership::leave() {
  impl_->leave();
}

}  // namespace spark::engine
