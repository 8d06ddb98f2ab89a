// One sample: a wave of streams started together, while nobody else uses the service.
//
// The server's own counters tell whether the wave was alone: more finished requests than we sent, more
// running and waiting requests than our concurrency (looked at five times a second), or any at work when all
// of ours have ended, mean that someone else's work was measured; fewer finished than succeeded, that the
// service was restarted or is not the one that answered. Such a sample is discarded and repeated.
#pragma once

#include <string>
#include <vector>

#include "bench/load/request.h"

namespace spark::bench {

// The counters that the bench reads from /metrics. Those of speculation and preemption read as 0 when
// missing.
struct ServerCounters {
  double running = 0;
  double waiting = 0;
  double finished = 0;
  double drafts = 0;        // draft blocks verified, one per stream and step
  double draft_tokens = 0;  // tokens given to verification
  double accepted_tokens = 0;
  double preemptions = 0;
};

// Throws Error when the page cannot be read, or lacks what tells whether the service is idle; Unreachable
// when nothing answers.
ServerCounters read_counters(const HttpClient& client);

struct Wave {
  std::vector<Receipt> receipts;  // one per stream
  double wall_s = 0;
  ServerCounters delta;  // counters after minus before (running and waiting: peaks)
};

struct DiscardedSample {
  std::string label;
  int attempt = 0;
  std::string reason;
  double foreign = 0;  // requests of others that finished meanwhile or were still at work
};

struct WaveOptions {
  double idle_timeout_s = 300;
  StreamLimits stream;
  int retries = 3;
};

// Waits until the service is idle, runs one stream per payload, checks for overlap. Throws Error when the
// service stays busy or every attempt overlapped. `discarded` receives what was thrown away.
Wave run_wave(const HttpClient& client, const std::string& label, const std::vector<std::string>& payloads,
              const WaveOptions& options, std::vector<DiscardedSample>& discarded);

}  // namespace spark::bench
