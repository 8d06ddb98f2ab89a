#include "engine/collective/membership.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <new>
#include <random>
#include <string_view>
#include <thread>

#include "common/clock.h"
#include "engine/collective/byte_stream.h"
#include "engine/collective/urgency.h"

namespace {

// Allocations on threads whose name begins so are counted while this is set.
std::atomic<const char*> g_counted_threads{nullptr};
std::atomic<int64_t> g_allocations{0};

void* counted(std::size_t size) {
  if (const char* names = g_counted_threads.load(); names != nullptr) {
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    if (std::string_view(name).starts_with(names)) ++g_allocations;
  }
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace spark::engine {
namespace {

constexpr const char* kHere = "127.0.0.1";

RankSettings settings_of(int32_t rank, int32_t ranks = 3) {
  return {
      .rank = rank,
      .ranks = ranks,
      .settings = {{"the release", "1"}, {"the checkpoint's fingerprint", "abc"}, {"--max-num-seqs", "8"}}};
}

std::vector<uint8_t> address_of(int32_t rank) {
  return std::vector<uint8_t>(20, static_cast<uint8_t>(rank));
}

RendezvousOptions quick(double timeout_s = 10) {
  return {.timeout_s = timeout_s, .hello_timeout_s = 0.5};
}

// A group's meetings, by rank.
std::vector<Meeting> meet(int32_t ranks, const std::function<void(uint16_t port)>& meanwhile = {}) {
  const Descriptor listener = listen_on(kHere, 0);
  const uint16_t port = port_of(listener);
  std::vector<std::future<Meeting>> joins;
  std::future<Meeting> gather = std::async(std::launch::async, [&] {
    return gather_ranks(listener, settings_of(0, ranks), address_of(0), quick());
  });
  if (meanwhile) meanwhile(port);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    joins.push_back(std::async(std::launch::async, [=] {
      return join_ranks(kHere, port, settings_of(rank, ranks), address_of(rank), quick());
    }));
  }
  std::vector<Meeting> meetings;
  meetings.push_back(gather.get());
  for (auto& join : joins) meetings.push_back(join.get());
  return meetings;
}

std::string refusal(const RankSettings& settings) {
  const Descriptor listener = listen_on(kHere, 0);
  std::atomic<bool> done{false};
  RendezvousOptions options = quick();
  options.interrupted = [&] { return done ? std::string("the test is over") : std::string(); };
  std::future<void> gather = std::async(std::launch::async, [&] {
    EXPECT_THROW(gather_ranks(listener, settings_of(0), address_of(0), options), Error);
  });
  std::string what = "no refusal";
  try {
    join_ranks(kHere, port_of(listener), settings, address_of(1), quick(2));
  } catch (const Error& error) {
    what = error.what();
  }
  done = true;
  gather.get();
  return what;
}

TEST(Rendezvous, EveryRankLearnsEveryAddress) {
  const auto meetings = meet(3);
  for (const Meeting& meeting : meetings) {
    ASSERT_EQ(meeting.addresses.size(), 3U);
    for (int32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(meeting.addresses[static_cast<size_t>(rank)], address_of(rank));
    }
  }
  ASSERT_EQ(meetings[0].connections.size(), 2U);
  EXPECT_EQ(meetings[0].connections[0].rank, 1);
  EXPECT_EQ(meetings[0].connections[1].rank, 2);
}

TEST(Rendezvous, RefusesRanksThatDoNotFit) {
  EXPECT_NE(refusal(settings_of(1, 4)).find("the number of ranks is 4, on rank 0 3"), std::string::npos);
  EXPECT_NE(refusal(settings_of(5)).find("there is no rank 5"), std::string::npos);
  EXPECT_NE(refusal(settings_of(0)).find("there is no rank 0 to join as"), std::string::npos);
  RankSettings other = settings_of(1);
  other.settings[1].second = "xyz";
  other.settings[2].second = "16";
  const std::string both = refusal(other);
  EXPECT_NE(both.find("the checkpoint's fingerprint is xyz, on rank 0 abc"), std::string::npos) << both;
  EXPECT_NE(both.find("--max-num-seqs is 16, on rank 0 8"), std::string::npos) << both;
  other = settings_of(1);
  other.settings.emplace_back("--new\n\x1b[31m", "1");
  EXPECT_NE(refusal(other).find("--new??[31m is 1, on rank 0 missing"), std::string::npos);
}

TEST(Rendezvous, RefusesARankThatHasJoined) {
  const Descriptor listener = listen_on(kHere, 0);
  const uint16_t port = port_of(listener);
  auto gather = std::async(std::launch::async,
                           [&] { return gather_ranks(listener, settings_of(0), address_of(0), quick()); });
  auto first = std::async(std::launch::async,
                          [=] { return join_ranks(kHere, port, settings_of(1), address_of(1), quick()); });
  auto second = std::async(std::launch::async,
                           [=] { return join_ranks(kHere, port, settings_of(1), address_of(1), quick()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  auto third = std::async(std::launch::async,
                          [=] { return join_ranks(kHere, port, settings_of(2), address_of(2), quick()); });
  gather.get();
  third.get();
  int refused = 0;
  for (auto* join : {&first, &second}) {
    try {
      join->get();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 has joined already"), std::string::npos)
          << error.what();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 1);
}

TEST(Rendezvous, ARankMayStartAgainBeforeAllAreThere) {
  const auto meetings = meet(3, [](uint16_t port) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(join_ranks(kHere, port, settings_of(1), address_of(1), quick(0.3)), Error);
    }
  });
  EXPECT_EQ(meetings.size(), 3U);
}

TEST(Rendezvous, SaysWhoIsMissingWhenTimeIsUp) {
  const Descriptor listener = listen_on(kHere, 0);
  try {
    gather_ranks(listener, settings_of(0), address_of(0), quick(0.3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1, rank 2 did not join within 0.3 s");
  }
  try {
    join_ranks(kHere, 1, settings_of(1), address_of(1), quick(0.4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 could not be joined"), std::string::npos);
    EXPECT_NE(error.describe().find("--master-addr"), std::string::npos);
  }
}

// With the same time limit the others give up at the same moment: who came is not who is missing.
TEST(Rendezvous, TellsWhoLeftFromWhoNeverCame) {
  const auto fault_of = [](int32_t ranks) {
    const Descriptor listener = listen_on(kHere, 0);
    auto gather = std::async(std::launch::async, [&] {
      return gather_ranks(listener, settings_of(0, ranks), address_of(0), quick(1.5));
    });
    EXPECT_THROW(join_ranks(kHere, port_of(listener), settings_of(2, ranks), address_of(2), quick(0.3)),
                 Error);
    auto last = std::async(std::launch::async, [&] {
      return ranks == 4
                 ? join_ranks(kHere, port_of(listener), settings_of(1, ranks), address_of(1), quick(0.3))
                 : Meeting{};
    });
    std::string what;
    try {
      gather.get();
    } catch (const Error& error) {
      what = error.what();
    }
    try {
      last.get();
    } catch (const Error&) {
    }
    return what;
  };
  EXPECT_EQ(fault_of(3), "rank 1 did not join within 1.5 s; rank 2 joined and left again");
  EXPECT_EQ(fault_of(4), "rank 3 did not join within 1.5 s; rank 1, rank 2 joined and left again");
}

// Garbage, half messages, silence, floods: the ranks still meet.
TEST(Rendezvous, StrangersDoNoHarm) {
  std::mt19937 random(7);
  const auto meetings = meet(3, [&](uint16_t port) {
    std::string why;
    std::vector<Descriptor> open;
    for (int i = 0; i < 150; ++i) {
      Descriptor stranger = connect_to(kHere, port, 1000, why);
      ASSERT_TRUE(stranger.open()) << why;
      std::vector<uint8_t> bytes;
      if (i % 5 == 1) bytes.assign({'G', 'E', 'T', ' ', '/', '\r', '\n', '\r', '\n', 0, 0, 0, 0, 0, 0, 0, 0});
      if (i % 5 > 1) {
        ByteWriter out;
        out.number(uint32_t{0x4B525053});
        out.number(i % 5 == 2 ? kRankProtocol + 1 : kRankProtocol);
        out.number(static_cast<uint16_t>(random() % 12));
        out.number(uint16_t{0});
        out.number(i % 5 == 3 ? uint32_t{0xFFFFFFFF} : static_cast<uint32_t>(random() % 64));
        for (uint32_t n = random() % 100; n > 0; --n) out.number(static_cast<uint8_t>(random()));
        bytes.assign(out.bytes().begin(), out.bytes().end());
      }
      [[maybe_unused]] const auto sent = ::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (i % 3 == 0) open.push_back(std::move(stranger));
      if (i % 50 == 49) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    }
    std::thread([strangers = std::move(open)]() mutable {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      strangers.clear();
    }).detach();
  });
  EXPECT_EQ(meetings.size(), 3U);
}

struct Watched {
  std::atomic<int32_t> lost_rank{-1};
  std::atomic<double> lost_at{0};
  std::atomic<int> stops{0};
  std::string why;

  MembershipEvents events() {
    return {.lost =
                [this](const LostRank& lost) {
                  why = lost.describe();
                  lost_at = monotonic_s();
                  lost_rank = lost.rank;
                },
            .stop_requested = [this](int32_t) { ++stops; }};
  }
  bool wait(double seconds = 3) const {
    const double until = monotonic_s() + seconds;
    while (lost_rank < 0 && monotonic_s() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return lost_rank >= 0;
  }
};

class Group {
 public:
  explicit Group(int32_t ranks, const MembershipOptions& options = {}) : watched(static_cast<size_t>(ranks)) {
    auto meetings = meet(ranks);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      members.push_back(std::make_unique<Membership>(rank, std::move(meetings[at].connections),
                                                     watched[at].events(), options));
    }
  }
  std::vector<Watched> watched;
  std::vector<std::unique_ptr<Membership>> members;
};

TEST(Membership, NobodyIsLostWhileAllLive) {
  Group group(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  for (const Watched& watched : group.watched) EXPECT_EQ(watched.lost_rank, -1) << watched.why;
  // All leave, at about the same time.
  std::vector<std::thread> leaving;
  for (auto& member : group.members) leaving.emplace_back([&] { member->leave(); });
  for (std::thread& thread : leaving) thread.join();
  group.members.clear();
  for (const Watched& watched : group.watched) EXPECT_EQ(watched.lost_rank, -1) << watched.why;
}

TEST(Membership, ARankThatEndsIsLostAtOnceForAll) {
  for (const size_t gone : {size_t{0}, size_t{2}}) {
    Group group(3);
    const double begin = monotonic_s();
    group.members[gone].reset();
    for (size_t rank = 0; rank < 3; ++rank) {
      if (rank == gone) continue;
      ASSERT_TRUE(group.watched[rank].wait());
      EXPECT_EQ(group.watched[rank].lost_rank, static_cast<int32_t>(gone));
      EXPECT_LT(group.watched[rank].lost_at - begin, 1.0);
      EXPECT_NE(group.watched[rank].why.find("its connection "), std::string::npos);
    }
  }
}

TEST(Membership, ASilentRankIsLostWithinASecond) {
  auto meetings = meet(3);
  // Rank 2 says one thing, keeps its connection open and says nothing more.
  std::vector<Watched> watched(2);
  Membership rank_0(0, std::move(meetings[0].connections), watched[0].events());
  Membership rank_1(1, std::move(meetings[1].connections), watched[1].events());
  meetings[2].connections[0].socket.send(FrameKind::kAlive, {});
  const double begin = monotonic_s();
  for (Watched& each : watched) {
    ASSERT_TRUE(each.wait());
    EXPECT_EQ(each.lost_rank, 2);
    EXPECT_LT(each.lost_at - begin, 1.0);
    EXPECT_NE(each.why.find("rank 2 was lost: no sign of life for 0."), std::string::npos) << each.why;
  }
}

// A machine may be busy when a rank has just joined: its first sign of life may be late.
TEST(Membership, ARankThatWasNeverHeardHasLonger) {
  auto meetings = meet(2);
  Watched watched;
  const double begin = monotonic_s();
  Membership rank_0(0, std::move(meetings[0].connections), watched.events(), {.first_silence_s = 1.5});
  while (monotonic_s() < begin + 1.2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(watched.lost_rank, -1) << watched.why;
  ASSERT_TRUE(watched.wait());
  EXPECT_EQ(watched.lost_rank, 1);
  EXPECT_GE(watched.lost_at - begin, 1.5);
  EXPECT_NE(watched.why.find("no sign of life for 1."), std::string::npos) << watched.why;
}

// Calls of the owner may hang, in a log whose reader hangs or on a lock: signs of life go on all the same.
TEST(Membership, AnEventThatHangsSilencesNobody) {
  auto meetings = meet(2);
  Watched leader, follower;
  MembershipEvents events = leader.events();
  std::promise<void> release;
  events.stop_requested = [&](int32_t) {
    ++leader.stops;
    release.get_future().wait();
  };
  Membership rank_0(0, std::move(meetings[0].connections), events);
  Membership rank_1(1, std::move(meetings[1].connections), follower.events());
  rank_1.request_stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(leader.stops, 1);
  EXPECT_EQ(leader.lost_rank, -1) << leader.why;
  EXPECT_EQ(follower.lost_rank, -1) << follower.why;
  release.set_value();
}

// The end of the process is the owner's work, and can hang.
TEST(Membership, SaysWhenTheEndAfterALossIsOverdue) {
  auto meetings = meet(2);
  std::promise<void> release;
  std::atomic<double> overdue_at{0};
  MembershipEvents events;
  events.lost = [&](const LostRank&) { release.get_future().wait(); };
  events.overdue = [&] { overdue_at = monotonic_s(); };
  Membership rank_0(0, std::move(meetings[0].connections), events, {.end_s = 0.3});
  const double begin = monotonic_s();
  meetings[1].connections.clear();
  while (overdue_at == 0 && monotonic_s() < begin + 5) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(overdue_at - begin, 0.3);
  release.set_value();
}

TEST(Membership, TheWatcherAllocatesNothingOnceItRuns) {
  Group group(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  g_allocations = 0;
  g_counted_threads = "rank-watch-";
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  g_counted_threads = nullptr;
  EXPECT_EQ(g_allocations, 0);
  // That these threads are counted at all: a loss has words.
  g_counted_threads = "rank-watch-";
  group.members[2].reset();
  ASSERT_TRUE(group.watched[0].wait());
  g_counted_threads = nullptr;
  EXPECT_GT(g_allocations, 0);
}

// Threads of this process by the name that they gave themselves.
pid_t thread_named(const std::string& name) {
  DIR* threads = ::opendir("/proc/self/task");
  pid_t found = 0;
  while (const dirent* entry = ::readdir(threads)) {
    std::string is;
    std::getline(std::ifstream("/proc/self/task/" + std::string(entry->d_name) + "/comm"), is);
    if (is == name) found = std::atoi(entry->d_name);
  }
  ::closedir(threads);
  return found;
}

constexpr double kHoldUpS = 2;
std::atomic<double> hold_up_s = kHoldUpS;  // read by the handler

// A thread that gets no processor: the handler keeps it from everything else.
void hold_up(const std::string& name, double seconds = kHoldUpS) {
  hold_up_s = seconds;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    const double until = monotonic_s() + hold_up_s;
    while (monotonic_s() < until) ::usleep(10000);
  };
  ::sigaction(SIGUSR1, &action, nullptr);
  const pid_t thread = thread_named(name);
  ASSERT_GT(thread, 0);
  ASSERT_EQ(::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR1), 0);
}

// What happened on a machine without a processor to spare: the group of processes as a whole was given some,
// and its working threads took it; the watcher waited for seconds.
TEST(Membership, AWorkingThreadSpeaksForAWatcherThatIsHeldUp) {
  for (const size_t starved : {size_t{0}, size_t{2}}) {
    Group group(3, {.silence_s = 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    hold_up("rank-watch-" + std::to_string(starved));
    // That this thread works must not hang on what else the machine does.
    std::thread([&] {
      hurry_this_thread();
      const double until = monotonic_s() + kHoldUpS + 0.5;
      while (monotonic_s() < until) {
        group.members[starved]->beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }).join();
    for (const Watched& watched : group.watched) EXPECT_EQ(watched.lost_rank, -1) << watched.why;
  }
}

TEST(Membership, ARankThatIsGivenUpSaysThatItsWatcherDidNotRun) {
  Group group(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  hold_up("rank-watch-1");
  for (const Watched& watched : group.watched) {
    ASSERT_TRUE(watched.wait());
    EXPECT_EQ(watched.lost_rank, 1);
  }
  EXPECT_NE(group.watched[1].why.find("its watching thread had not run for "), std::string::npos)
      << group.watched[1].why;
}

// Nobody is there to tell rank 0 that it was given up: the others end.
TEST(Membership, ALeaderThatWasGivenUpBlamesItself) {
  Group group(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  hold_up("rank-watch-0");
  ASSERT_TRUE(group.watched[1].wait());
  EXPECT_EQ(group.watched[1].lost_rank, 0);
  group.members[1].reset();
  ASSERT_TRUE(group.watched[0].wait());
  EXPECT_EQ(group.watched[0].lost_rank, 0);
  EXPECT_NE(group.watched[0].why.find("rank 0 was lost: its watching thread had not run for "),
            std::string::npos)
      << group.watched[0].why;
  EXPECT_NE(group.watched[0].why.find("rank 1 has given it up"), std::string::npos);
}

// The others count from its last sign of life, up to a beat before its own last look: what it measures of a
// stall that made them give it up may be less than the silence.
TEST(Membership, ALeaderThatStoodStillForAlmostTheSilenceBlamesItself) {
  Group group(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  hold_up("rank-watch-0", 0.45);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  group.members[1].reset();
  ASSERT_TRUE(group.watched[0].wait());
  EXPECT_EQ(group.watched[0].lost_rank, 0) << group.watched[0].why;
}

// A machine that stands still for a while is no reason to take others for dead.
TEST(Membership, TimeInWhichTheProcessDidNotRunIsNobodysSilence) {
  const pid_t child = ::fork();
  if (child == 0) {
    Group group(3);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    for (const Watched& watched : group.watched) {
      if (watched.lost_rank != -1) ::_exit(1);
    }
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Membership, AFailingRankSaysWhy) {
  Group group(3);
  group.members[1]->fail("the disk broke");
  for (Watched& watched : group.watched) {
    ASSERT_TRUE(watched.wait());
    EXPECT_EQ(watched.lost_rank, 1);
    EXPECT_NE(watched.why.find("the disk broke"), std::string::npos) << watched.why;
  }
}

TEST(Membership, RankZeroHearsThatAnotherWasToldToStop) {
  Group group(3);
  group.members[2]->request_stop();
  const double until = monotonic_s() + 2;
  while (group.watched[0].stops == 0 && monotonic_s() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(group.watched[0].stops, 1);
  for (const Watched& watched : group.watched) EXPECT_EQ(watched.lost_rank, -1);
}

}  // namespace
}  // namespace spark::engine
