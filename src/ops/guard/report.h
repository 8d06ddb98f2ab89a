// What a guard tells others: the status text (on its socket, and in a file that outlives it) and the control
// socket. Lines of "key=value", so that it is written and read without the heap.
//
//   state=watching          waiting, watching, killed, ended, gave-up
//   reason=                 of the last three: low-memory, memory-unreadable, service-ended, ...
//   service=dsv41  kind=container  means=cgroup  pid=4711
//   phase=steady  threshold_kib=3145728  interval_ms=2000
//   available_kib=9000000  minimum_kib=5400000  samples=1234  sampled_ms=93000   (monotonic clock)
//   pressure_full_avg10=0.00  swapped_in_pages=0  driver_errors=0
//   locked=1  oom_protected=1  boot=...  guard_pid=99
#pragma once

#include <poll.h>

#include "common/descriptor.h"
#include "ops/guard/options.h"

namespace spark::ops {

using StatusText = FixedText<2048>;

struct GuardStatus {
  const char* state = "waiting";
  const char* reason = "";
  const char* kind = "none";
  const char* means = "none";
  int64_t pid = 0;
  int64_t available_kib = -1;
  int64_t minimum_kib = -1;
  int64_t samples = 0;
  int64_t sampled_ms = 0;
  FixedText<16> pressure;        // "full avg10" of /proc/pressure/memory, as it stands there
  int64_t swapped_in_pages = 0;  // since the guard began; -1: cannot be read
  int64_t driver_errors = 0;     // NVIDIA out-of-memory lines in the kernel log since the guard began
  bool locked = false;
  bool oom_protected = false;
};

StatusText status_text(const GuardOptions& options, const GuardStatus& status, std::string_view boot);

// A file of fixed size that is written in place: no new page is needed when memory is gone.
class StatusFile {
 public:
  explicit StatusFile(const GuardOptions& options);
  bool open() const { return file_.open(); }
  void write(const StatusText& text);

 private:
  Descriptor file_;
};
PathText status_path(const GuardOptions& options);
PathText socket_path(const GuardOptions& options);

// One request per connection: "status" or "switch PHASE THRESHOLD_KIB INTERVAL_MS". Anything else is dropped.
// A switch is acknowledged by the status after it.
//
// Nothing here waits for a peer: the guard polls them together with its other events. A peer on a busy
// machine has five seconds from connecting to say something; of more peers that say nothing than there are
// places the oldest goes.
class ControlSocket {
 public:
  static constexpr size_t kPeers = 8;
  static constexpr size_t kEvents = kPeers + 1;
  static constexpr int64_t kPatienceMs = 5000;

  // Replaces a socket that nobody listens on. Not open when another guard of this service listens.
  explicit ControlSocket(const GuardOptions& options);
  ~ControlSocket();
  bool open() const { return listener_.open(); }

  // Drops whoever has said nothing for too long, and fills in kEvents to poll for; poll passes over places
  // without a peer.
  void watch(pollfd* events, int64_t now_ms);
  // After the poll, and after receive(): lets those in who wait at the door.
  void admit(const pollfd* events, int64_t now_ms);

  struct Switch {
    bool wanted = false;
    GuardStage stage = GuardStage::kStartup;
    int64_t threshold_kib = 0;
    int64_t interval_ms = 0;
  };
  // Reads peer `i` if it said something (its event is the poll's) and returns whether it is to be answered;
  // `wanted` is what it asks for.
  bool receive(const pollfd* events, size_t i, Switch& wanted);
  // Sends the status to peer `i` and closes.
  void answer(size_t i, std::string_view text);

 private:
  struct Peer {
    Descriptor socket;
    int64_t since_ms = 0;
  };
  PathText path_;
  Descriptor listener_;
  Peer peers_[kPeers];
};

// "steady 3145728 2000"; not wanted when it is malformed.
ControlSocket::Switch parse_switch(std::string_view words);

// Continues what a guard of the same service and boot did before it was restarted in the middle of it: its
// phase, threshold and interval, when it still was watching this process. `previous` is its last status text.
bool adopt_previous(GuardOptions& options, std::string_view previous, int64_t pid, std::string_view boot);

}  // namespace spark::ops
