#include "engine/collective/membership.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"
#include "engine/collective/byte_stream.h"
#include "engine/collective/inheriting_mutex.h"
#include "engine/collective/teller.h"
#include "engine/collective/urgency.h"

namespace spark::engine {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A working thread speaks for the watcher when that is so many beats late.
constexpr double kLateBeats = 1.5;
// A look that is so late was held up.
constexpr double kLateS = 0.02;
// Wishes that could not be read.
constexpr double kLookAgainS = 0.005;
// How long after a silence of rank 0 the ranks that took it for lost may still be ending.
constexpr double kGivenUpS = 1;
// For how long it is worth telling that the watcher was held up.
constexpr double kStallMemoryS = 10;

std::string seconds(double s) {
  return format_fixed(s, 2) + " s";
}

}  // namespace

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
    waits_.reserve(peers_.size() + 1);
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

  void beat() {
    const double now = monotonic_s();
    if (now >= late_at_.load(std::memory_order_relaxed)) send_beats(now);
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
    FrameSocket socket;  // what it sends is under sends_, the rest the watcher's
    double heard = 0;
    bool is_new = true;  // not heard yet
    bool left = false;   // written under sends_, by the watcher
  };

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }

  double silence_of(const Peer& peer) const {
    return peer.is_new ? options_.first_silence_s : options_.silence_s;
  }

  void send_beats(double now) {
    late_at_.store(now + kLateBeats * options_.beat_s, std::memory_order_relaxed);
    const std::lock_guard lock(sends_);
    for (Peer& peer : peers_) {
      if (!peer.left) peer.socket.send(FrameKind::kAlive, {});
    }
  }

  void send_all(FrameKind kind, std::span<const uint8_t> payload) {
    const std::lock_guard lock(sends_);
    for (Peer& peer : peers_) peer.socket.send(kind, payload);
  }

  void set_left(Peer& peer) {
    const std::lock_guard lock(sends_);
    peer.left = true;
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), ("rank-watch-" + std::to_string(rank_)).c_str());
    if (!hurry_this_thread()) {
      teller_.tell([] {
        log_info(
            "signs of life between ranks have no real-time priority here: on a machine that is busy with "
            "other "
            "work, allow RLIMIT_RTPRIO 1 or give --heartbeat-timeout more");
      });
    }
    keep_resident();
    double beat_at = monotonic_s();
    double looked = beat_at;
    while (take_wishes()) {
      const double now = monotonic_s();
      if (now >= beat_at) {
        send_beats(now);
        beat_at = now + options_.beat_s;
      }
      wait(beat_at);
      looked = listen_to_all(looked);
      if (monotonic_s() >= end_at_) {
        end_at_ = kNever;
        if (events_.overdue) events_.overdue();
      }
    }
  }

  // Until something is heard, or a sign of life is due, one way or the other.
  void wait(double until) {
    waits_.clear();
    waits_.push_back({wake_.get(), POLLIN, 0});
    for (const Peer& peer : peers_) {
      if (peer.left) continue;
      waits_.push_back({peer.socket.fd(), POLLIN, 0});
      until = std::min(until, peer.heard + silence_of(peer));
    }
    until = std::min(until, end_at_);
    const double now = monotonic_s();
    if (missed_wishes_) until = std::min(until, now + kLookAgainS);
    ::poll(waits_.data(), waits_.size(), std::max(1, static_cast<int>((until - now) * 1000) + 1));
    uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }

  // False when the thread shall end. Whoever has the lock may not be running: it is not waited for.
  bool take_wishes() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    missed_wishes_ = !lock.owns_lock();
    if (missed_wishes_) return true;
    if (ending_) return false;
    if (asks_to_stop_ && !asked_to_stop_ && rank_ != 0) {
      asked_to_stop_ = true;
      send_all(FrameKind::kStopRequest, {});
    }
    if (!failure_.empty() && !lost_) {
      if (rank_ != 0) {
        ByteWriter out;
        out.text(failure_);
        send_all(FrameKind::kFailed, out.bytes());
      }
      lose({rank_, failure_});
    }
    if (leaving_ && !said_goodbye_) {
      said_goodbye_ = true;
      send_all(FrameKind::kLeaving, {});
    }
    left_ = leaving_ && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.left; });
    if (left_) all_left_.notify_all();
    return true;
  }

  // The time of this look; `looked` is that of the last one, never more than a beat ago if this thread runs.
  double listen_to_all(double looked) {
    const double now = monotonic_s();
    const double stalled = now - looked;
    const bool held_up = stalled > options_.beat_s + kLateS;
    if (held_up && (stalled > stall_s_ || now > stall_at_ + kStallMemoryS)) note_stall(stalled, now);
    for (Peer& peer : peers_) {
      // While this thread did not run, nor might the others, on the same machine or a machine as busy.
      if (held_up) peer.heard += stalled;
      if (!peer.left) listen(peer, now);
    }
    return now;
  }

  // The longest of late, and why: only the time without a processor is counted by the kernel.
  void note_stall(double stalled, double now) {
    const double waited = waited_for_processor_s();
    stall_waited_s_ = std::min(stalled, waited - waited_before_s_);
    waited_before_s_ = waited;
    stall_s_ = stalled;
    stall_at_ = now;
  }

  void listen(Peer& peer, double now) {
    const bool open = peer.socket.read();
    while (const auto frame = peer.socket.next()) {
      peer.heard = now;
      peer.is_new = false;
      take(peer, *frame, now);
      if (peer.left) return;
    }
    if (!open || !peer.socket.fault().empty()) {
      set_left(peer);
      if (!said_goodbye_) lose(who_ended(peer, now));
    } else if (now - peer.heard > silence_of(peer)) {
      set_left(peer);
      lose({peer.rank, "no sign of life for " + seconds(now - peer.heard)});
    }
  }

  // The connection to `peer` has ended. After a silence of rank 0 that is what the others do, and not their
  // fault. They count from its last sign of life, which may be a beat older than its last look.
  LostRank who_ended(const Peer& peer, double now) const {
    const double silent_s = stall_s_ + options_.beat_s + kLateS;
    if (rank_ == 0 && silent_s > options_.silence_s && now < stall_at_ + kGivenUpS) {
      return {0, stall() + ", for which rank " + std::to_string(peer.rank) + " has given it up"};
    }
    return {peer.rank, peer.socket.fault().empty() ? "its connection ended" : peer.socket.fault()};
  }

  // A stopped process, or a machine without a processor for it.
  std::string stall() const {
    return "its watching thread had not run for " + seconds(stall_s_) + ", " + seconds(stall_waited_s_) +
           " of it for want of a processor";
  }

  void take(Peer& peer, const Frame& frame, double now) {
    switch (frame.kind) {
      case FrameKind::kLeaving:
        set_left(peer);
        return;
      case FrameKind::kStopRequest:
        if (!stop_told_ && events_.stop_requested) {
          teller_.tell([this, rank = peer.rank] { events_.stop_requested(rank); });
        }
        stop_told_ = true;
        return;
      case FrameKind::kFailed:
        if (rank_ == 0) take_failed(peer, frame);
        return;
      case FrameKind::kLost:
        if (rank_ != 0 && peer.rank == 0) take_lost(frame, now);
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

  void take_lost(const Frame& frame, double now) {
    try {
      ByteReader in(frame.payload);
      const auto rank = in.number<int32_t>();
      std::string why = printable(in.text());
      if (rank == rank_) {
        why = "rank 0 gave up this rank: " + why;
        if (now < stall_at_ + kStallMemoryS) why += "; " + stall();
      }
      lose({rank, why});
    } catch (const Error& error) {
      lose({0, error.describe()});
    }
  }

  void lose(const LostRank& lost) {
    if (lost_) return;
    lost_ = true;
    end_at_ = monotonic_s() + options_.end_s;
    if (events_.lost) teller_.tell([this, lost] { events_.lost(lost); });
    if (rank_ != 0) return;
    ByteWriter out;
    out.number(lost.rank);
    out.text(lost.why);
    send_all(FrameKind::kLost, out.bytes());
  }

  const int32_t rank_;
  const MembershipEvents events_;
  const MembershipOptions options_;
  Descriptor wake_;
  std::vector<Peer> peers_;
  InheritingMutex sends_;
  std::atomic<double> late_at_{0};  // when a sign of life is late enough for a working thread to send it
  // The watcher's own.
  std::vector<pollfd> waits_;
  double end_at_ = kNever;
  double stall_s_ = 0;  // how long the watcher did not run, the longest of late
  double stall_at_ = -kStallMemoryS;
  double stall_waited_s_ = 0;
  double waited_before_s_ = 0;
  bool missed_wishes_ = false;
  bool asked_to_stop_ = false;
  bool said_goodbye_ = false;
  bool stop_told_ = false;
  bool lost_ = false;
  // Wishes of other threads.
  std::mutex mutex_;
  std::condition_variable all_left_;
  std::string failure_;
  bool asks_to_stop_ = false;
  bool leaving_ = false;
  bool left_ = false;
  bool ending_ = false;
  Teller teller_;
  std::thread thread_;
};

Membership::Membership(int32_t rank, std::vector<RankConnection> connections, MembershipEvents events,
                       const MembershipOptions& options)
    : impl_(std::make_unique<Impl>(rank, std::move(connections), std::move(events), options)) {}
Membership::~Membership() = default;

void Membership::beat() {
  impl_->beat();
}
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
