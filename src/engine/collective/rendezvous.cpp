#include "engine/collective/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <set>
#include <thread>

#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"
#include "engine/collective/byte_stream.h"

namespace spark::engine {
namespace {

constexpr size_t kMaxStrangers = 64;  // connections that have not said who they are
constexpr int kTickMs = 100;
constexpr double kRetryS = 0.25;
constexpr double kReminderS = 10;
constexpr int kConnectMs = 2000;

struct Hello {
  RankSettings settings;
  std::vector<uint8_t> address;
};

std::vector<uint8_t> bytes_of(const ByteWriter& out) {
  return {out.bytes().begin(), out.bytes().end()};
}

std::vector<uint8_t> text_payload(const std::string& text) {
  ByteWriter out;
  out.text(text);
  return bytes_of(out);
}

std::vector<uint8_t> write_hello(const RankSettings& settings, const std::vector<uint8_t>& address) {
  ByteWriter out;
  out.number(settings.ranks);
  out.number(settings.rank);
  out.number(static_cast<uint32_t>(settings.settings.size()));
  for (const auto& [name, value] : settings.settings) {
    out.text(name);
    out.text(value);
  }
  out.block(address);
  return bytes_of(out);
}

Hello read_hello(std::span<const uint8_t> payload) {
  ByteReader in(payload);
  Hello hello;
  hello.settings.ranks = in.number<int32_t>();
  hello.settings.rank = in.number<int32_t>();
  const auto count = in.number<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    std::string name = in.text();
    hello.settings.settings.emplace_back(std::move(name), in.text());
  }
  const auto address = in.block();
  hello.address.assign(address.begin(), address.end());
  if (!in.at_end()) throw Error("goes on after its end", "a message between ranks");
  return hello;
}

// "300 s", "0.1 s"
std::string limit_of(double s) {
  std::string text = format_fixed(s, 3);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

// "rank 1, rank 3"
void add_name(std::string& names, int32_t rank) {
  names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
}

// Rank 0's side.
class Gathering {
 public:
  Gathering(const Descriptor& listener, const RankSettings& settings, const std::vector<uint8_t>& address,
            const RendezvousOptions& options)
      : listener_(listener), settings_(settings), options_(options) {
    meeting_.addresses.resize(static_cast<size_t>(settings.ranks));
    meeting_.addresses[0] = address;
  }

  Meeting run() {
    const double begin = monotonic_s();
    double remind_at = begin + kReminderS;
    while (missing() > 0) {
      if (options_.interrupted) {
        if (const std::string why = options_.interrupted(); !why.empty()) throw Error(why);
      }
      const double now = monotonic_s();
      if (now > begin + options_.timeout_s) fail_late();
      if (now > remind_at) {
        log_info("waiting for " + missing_names());
        remind_at = now + kReminderS;
      }
      wait();
    }
    welcome();
    return std::move(meeting_);
  }

 private:
  struct Stranger {
    FrameSocket socket;
    double since = 0;
  };

  size_t missing() const { return meeting_.addresses.size() - 1 - meeting_.connections.size(); }

  bool is_member(int32_t rank) const {
    return std::any_of(meeting_.connections.begin(), meeting_.connections.end(),
                       [&](const RankConnection& member) { return member.rank == rank; });
  }

  std::string missing_names() const {
    std::string names;
    for (int32_t rank = 1; rank < settings_.ranks; ++rank) {
      if (!is_member(rank)) add_name(names, rank);
    }
    return names;
  }

  // Those that never joined, or else did not stay: with the same time limit the others give up at this moment
  // too, and leave.
  [[noreturn]] void fail_late() const {
    std::string never, left;
    for (int32_t rank = 1; rank < settings_.ranks; ++rank) {
      if (!is_member(rank)) add_name(left_.contains(rank) ? left : never, rank);
    }
    const std::string within = " within " + limit_of(options_.timeout_s);
    const std::string away = left + " joined and left again";
    throw Error(never.empty() ? "not all ranks were there" + within + ": " + away
                              : never + " did not join" + within + (left.empty() ? "" : "; " + away),
                "rank 0",
                refusal_.empty()
                    ? "start them with the same --master-addr and --master-port, and see what they print"
                    : "the last refusal was: " + refusal_);
  }

  void wait() {
    std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) waits.push_back({stranger.socket.fd(), POLLIN, 0});
    for (const RankConnection& member : meeting_.connections)
      waits.push_back({member.socket.fd(), POLLIN, 0});
    ::poll(waits.data(), waits.size(), kTickMs);
    listen_to_strangers();
    drop_members_that_left();
    if (waits[0].revents != 0) accept();
  }

  void accept() {
    while (strangers_.size() < kMaxStrangers) {
      Descriptor accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!accepted.open()) return;
      strangers_.push_back({FrameSocket(std::move(accepted)), monotonic_s()});
    }
    // Full of connections that say nothing: the oldest makes room.
    strangers_.pop_front();
  }

  void listen_to_strangers() {
    for (auto it = strangers_.begin(); it != strangers_.end();) {
      const bool open = it->socket.read();
      const auto frame = it->socket.next();
      if (frame) {
        admit(std::move(it->socket), *frame);
        it = strangers_.erase(it);
      } else if (!open || !it->socket.fault().empty()) {
        log_debug("a connection from " + it->socket.peer() + " was no rank: " + it->socket.fault());
        if (it->socket.fault().find("version") != std::string::npos) refusal_ = it->socket.fault();
        it = strangers_.erase(it);
      } else if (monotonic_s() > it->since + options_.hello_timeout_s) {
        log_debug("a connection from " + it->socket.peer() + " did not say who it is");
        it = strangers_.erase(it);
      } else {
        ++it;
      }
    }
  }

  void admit(FrameSocket socket, const Frame& frame) {
    std::string why = "it did not begin with who it is";
    Hello hello;
    if (frame.kind == FrameKind::kHello) {
      try {
        hello = read_hello(frame.payload);
        why = objection(hello.settings);
      } catch (const Error& error) {
        why = error.describe();
      }
    }
    if (!why.empty()) {
      refusal_ = "rank " + std::to_string(hello.settings.rank) + " from " + socket.peer() + ": " + why;
      log_warning("refused " + refusal_);
      socket.send(FrameKind::kRefused, text_payload(why));
      return;
    }
    log_info("rank " + std::to_string(hello.settings.rank) + " of " + std::to_string(settings_.ranks) +
             " joined from " + socket.peer());
    meeting_.addresses[static_cast<size_t>(hello.settings.rank)] = hello.address;
    meeting_.connections.push_back({hello.settings.rank, std::move(socket)});
  }

  std::string objection(const RankSettings& theirs) const {
    if (std::string why = disagreement(settings_, theirs); !why.empty()) return why;
    if (theirs.rank < 1 || theirs.rank >= settings_.ranks) {
      return "there is no rank " + std::to_string(theirs.rank) + " to join as";
    }
    for (const RankConnection& member : meeting_.connections) {
      if (member.rank == theirs.rank) {
        return "rank " + std::to_string(theirs.rank) + " has joined already, from " + member.socket.peer();
      }
    }
    return {};
  }

  // One that ended before all were there may start again.
  void drop_members_that_left() {
    std::erase_if(meeting_.connections, [&](RankConnection& member) {
      if (member.socket.read() && !member.socket.next()) return false;
      log_warning("rank " + std::to_string(member.rank) + " left before all had joined");
      meeting_.addresses[static_cast<size_t>(member.rank)].clear();
      left_.insert(member.rank);
      return true;
    });
  }

  void welcome() {
    std::sort(meeting_.connections.begin(), meeting_.connections.end(),
              [](const RankConnection& a, const RankConnection& b) { return a.rank < b.rank; });
    ByteWriter out;
    for (const auto& address : meeting_.addresses) out.block(address);
    for (RankConnection& member : meeting_.connections) member.socket.send(FrameKind::kWelcome, out.bytes());
  }

  const Descriptor& listener_;
  const RankSettings& settings_;
  const RendezvousOptions& options_;
  std::list<Stranger> strangers_;
  std::string refusal_;
  std::set<int32_t> left_;  // had joined once
  Meeting meeting_;
};

Meeting read_welcome(const Frame& frame, FrameSocket socket, int32_t ranks) {
  ByteReader in(frame.payload);
  Meeting meeting;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto address = in.block();
    meeting.addresses.emplace_back(address.begin(), address.end());
  }
  meeting.connections.push_back({0, std::move(socket)});
  return meeting;
}

}  // namespace

Meeting gather_ranks(const Descriptor& listener, const RankSettings& settings,
                     const std::vector<uint8_t>& address, const RendezvousOptions& options) {
  return Gathering(listener, settings, address, options).run();
}

Meeting join_ranks(const std::string& master_address, uint16_t master_port, const RankSettings& settings,
                   const std::vector<uint8_t>& address, const RendezvousOptions& options) {
  const std::string where = master_address + ":" + std::to_string(master_port);
  const double begin = monotonic_s();
  double remind_at = begin + kReminderS;
  std::string why = "nobody answered";
  std::optional<FrameSocket> socket;
  while (monotonic_s() < begin + options.timeout_s) {
    if (options.interrupted) {
      if (const std::string reason = options.interrupted(); !reason.empty()) throw Error(reason);
    }
    if (monotonic_s() > remind_at) {
      log_info("rank " + std::to_string(settings.rank) + " waits for " +
               (socket ? "the other ranks" : "rank 0 at " + where + ": " + why));
      remind_at = monotonic_s() + kReminderS;
    }
    if (!socket) {
      Descriptor connected = connect_to(master_address, master_port, kConnectMs, why);
      if (!connected.open()) {
        std::this_thread::sleep_for(std::chrono::duration<double>(kRetryS));
        continue;
      }
      socket.emplace(std::move(connected));
      socket->send(FrameKind::kHello, write_hello(settings, address));
    }
    pollfd wait{socket->fd(), static_cast<short>(socket->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0};
    ::poll(&wait, 1, kTickMs);
    const bool open = socket->flush() && socket->read();
    if (const auto frame = socket->next()) {
      if (frame->kind == FrameKind::kWelcome) return read_welcome(*frame, std::move(*socket), settings.ranks);
      const std::string reason = frame->kind == FrameKind::kRefused ? ByteReader(frame->payload).text() : "";
      throw Error("rank 0 refused this rank: " + printable(reason), where,
                  "start every rank with the same release, checkpoint and flags, and each rank once");
    }
    if (!open || !socket->fault().empty()) {
      why = "it closed the connection";
      if (!socket->fault().empty()) why = socket->fault();
      socket.reset();
      std::this_thread::sleep_for(std::chrono::duration<double>(kRetryS));
    }
  }
  throw Error((socket ? "not all ranks joined within " : "rank 0 could not be joined within ") +
                  limit_of(options.timeout_s) + (socket ? "" : ": " + why),
              where, "is rank 0 running, with this --master-addr and --master-port?");
}

}  // namespace spark::engine
