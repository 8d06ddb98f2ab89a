#include "ops/guard/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "ops/guard/files.h"
#include "ops/guard/kernel.h"
#include "ops/guard/report.h"
#include "ops/guard/target.h"

namespace spark::ops {
namespace {

constexpr int64_t kKillPatienceMs = 30'000;
constexpr int64_t kLongestSleepMs = 10'000;  // well below the units' WatchdogSec

// Pages of the stack exist, and are locked, once they were written to.
void touch_stack() {
  volatile char pages[128 << 10];
  for (size_t i = 0; i < sizeof pages; i += 1024) pages[i] = 0;
}

void write_line(int fd, std::string_view text) {
  [[maybe_unused]] const auto ignored = ::write(fd, text.data(), text.size());
}

class Guard {
 public:
  Guard(const GuardOptions& options, const GuardHooks& hooks)
      : options_(options),
        hooks_(hooks),
        target_(options_),
        memory_(options_),
        control_(options_),
        file_(options_) {
    boot_.add(read_path("/proc/sys/kernel/random/boot_id").substr(0, 36));
    previous_.add(read_path(status_path(options_).c_str()));
  }

  int run() {
    if (!control_.open()) {
      return refuse(
          "cannot listen on its socket: another guard of this service runs, or the folder is not writable");
    }
    if (!file_.open()) return refuse("cannot write its status file");
    protect();
    catch_signals();
    begin_ms_ = next_ms_ = now_ms();
    while (true) {
      const GuardDecision decision = step();
      if (decision.verdict != GuardVerdict::kContinue) return leave(decision);
      if (hooks_.sampled != nullptr && !hooks_.sampled(hooks_.context)) return 0;
      // Samples keep their rhythm whatever a sample cost; a missed one is not made up for.
      next_ms_ = std::max(next_ms_ + options_.limits.interval_ms, now_ms());
      if (!pause()) return stopped();
    }
  }

 private:
  int refuse(const char* why) {
    FixedText<512> line("spark-guard: ");
    write_line(2, line.add(why).add(": ").add(options_.run_folder.view()).add("\n").view());
    return 1;
  }

  void protect() {
    touch_stack();
    const SelfProtection protection = protect_self();
    status_.locked = protection.locked;
    status_.oom_protected = protection.oom_protected;
    if (!protection.locked) say("warning: cannot lock its memory; set LimitMEMLOCK");
    if (!protection.oom_protected)
      say("warning: not protected from the OOM killer; set OOMScoreAdjust=-1000");
  }

  void catch_signals() {
    ::signal(SIGPIPE, SIG_IGN);  // whoever reads its messages may go away
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  GuardDecision step() {
    GuardObservation seen;
    const bool was_held = target_.held();
    seen.target = target_.look();
    if (!was_held && target_.held()) took_hold();
    memory_.sample(status_);
    seen.available_kib = status_.available_kib;
    ++status_.samples;
    status_.sampled_ms = now_ms();
    const GuardDecision decision = decide(mode_, seen, options_.limits, status_.sampled_ms - begin_ms_);
    mode_ = decision.mode;
    status_.state = mode_ == GuardMode::kWatching ? "watching" : "waiting";
    status_.pid = target_.pid();
    // The kill comes first, and telling about it after.
    if (decision.verdict == GuardVerdict::kContinue) {
      publish();
      if (status_.samples == 1) arm();
      supervisor_.tell("WATCHDOG=1");
    }
    return decision;
  }

  void took_hold() {
    status_.kind = target_.kind();
    status_.means = target_.means();
    if (adopt_previous(options_, previous_.view(), target_.pid(), boot_.view()))
      say("continues after a restart");
    say("watches");
  }

  void arm() {
    if (!options_.ready_file.empty()) {
      const Descriptor ready(
          ::open(options_.ready_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (!ready.open()) say("warning: cannot create the ready file");
    }
    supervisor_.tell("READY=1");
    if (hooks_.armed != nullptr) hooks_.armed(hooks_.context);
  }

  // Until the next sample is due. False: asked to stop.
  bool pause() {
    while (true) {
      const int64_t left = std::min(next_ms_ - now_ms(), kLongestSleepMs);
      pollfd waits[2 + ControlSocket::kEvents] = {{signals_.get(), POLLIN, 0}, {target_.event(), POLLIN, 0}};
      pollfd* const control = waits + 2;
      control_.watch(control, now_ms());
      const int ready = ::poll(waits, std::size(waits), static_cast<int>(std::max<int64_t>(left, 0)));
      if (ready > 0 && waits[0].revents != 0) return false;
      if (ready > 0) serve_control(control);
      if (ready > 0 && waits[1].revents != 0) return true;  // the service ended: look at once
      if (now_ms() >= next_ms_) return true;
      supervisor_.tell("WATCHDOG=1");
    }
  }

  void serve_control(const pollfd* events) {
    for (size_t i = 0; i < ControlSocket::kPeers; ++i) {
      ControlSocket::Switch wanted;
      if (!control_.receive(events, i, wanted)) continue;
      if (wanted.wanted) {
        options_.stage = wanted.stage;
        options_.limits.threshold_kib = wanted.threshold_kib;
        options_.limits.interval_ms = wanted.interval_ms;
        next_ms_ = std::min(next_ms_, now_ms() + wanted.interval_ms);
        say("switched");
      }
      publish();
      control_.answer(i, text_.view());
    }
    control_.admit(events, now_ms());
  }

  int leave(const GuardDecision& decision) {
    bool gone = true;
    if (decision.verdict == GuardVerdict::kKill) {
      gone = target_.kill(kKillPatienceMs);
      status_.state = gone ? "killed" : "kill-failed";
    } else {
      status_.state = decision.verdict == GuardVerdict::kEnded ? "ended" : "gave-up";
    }
    status_.reason = decision.reason;
    publish();
    say(decision.reason);
    return decision.verdict == GuardVerdict::kEnded ? 0 : 1;
  }

  // Told to stop (systemctl stop): the service is somebody else's business from now on.
  int stopped() {
    status_.state = "stopped";
    status_.reason = "asked-to-stop";
    publish();
    say("stopped on request");
    return 0;
  }

  void publish() {
    text_ = status_text(options_, status_, boot_.view());
    file_.write(text_);
  }

  // One line for the journal.
  void say(std::string_view what) {
    FixedText<512> line("spark-guard: ");
    line.add(options_.service.view()).add(": ").add(what).add(" (").add(status_.state);
    line.add(", phase ")
        .add(guard_stage_name(options_.stage))
        .add(", means ")
        .add(status_.means)
        .add(", available ");
    line.add_number(status_.available_kib)
        .add(" KiB, threshold ")
        .add_number(options_.limits.threshold_kib)
        .add(" KiB)\n");
    write_line(2, line.view());
  }

  GuardOptions options_;
  const GuardHooks& hooks_;
  GuardMode mode_ = GuardMode::kWaiting;
  GuardStatus status_;
  FixedText<64> boot_;
  StatusText previous_;  // of an earlier guard of this service
  GuardTarget target_;
  MemorySource memory_;
  ControlSocket control_;
  StatusFile file_;
  Supervisor supervisor_;
  Descriptor signals_;
  StatusText text_;
  int64_t begin_ms_ = 0;
  int64_t next_ms_ = 0;  // when the next sample is due
};

int ask(const GuardOptions& options, std::string_view request) {
  const std::string_view answer = ask_socket(socket_path(options).view(), request, 2000);
  if (!answer.empty()) {
    write_line(1, answer);
    return 0;
  }
  write_line(2, "spark-guard: no guard of this service answers on its socket\n");
  return 1;
}

}  // namespace

int run_guard(const GuardOptions& options, const GuardHooks& hooks) {
  Guard guard(options, hooks);
  return guard.run();
}

int print_guard_status(const GuardOptions& options) {
  return ask(options, "status\n");
}

int switch_guard(const GuardOptions& options) {
  FixedText<128> request("switch ");
  request.add(guard_stage_name(options.stage)).add(" ").add_number(options.limits.threshold_kib).add(" ");
  request.add_number(options.limits.interval_ms).add("\n");
  return ask(options, request.view());
}

}  // namespace spark::ops
