#include "bench/load/wave.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "api/metric_names.h"
#include "api/prometheus.h"
#include "common/clock.h"
#include "common/units.h"

namespace spark::bench {
namespace {

constexpr double kScrapeTimeout_s = 10;
constexpr auto kScrapeInterval = std::chrono::milliseconds(200);
constexpr auto kSettleInterval = std::chrono::milliseconds(25);
constexpr int kSettleScrapes = 40;

// Waits until nobody uses the service; its counters at that moment.
ServerCounters wait_idle(const HttpClient& client, double timeout_s) {
  const double deadline = monotonic_s() + timeout_s;
  for (;;) {
    const ServerCounters now = read_counters(client);
    if (now.running == 0 && now.waiting == 0) return now;
    if (monotonic_s() > deadline) {
      throw Error("the service stayed busy with other requests for " + format_fixed(timeout_s, 0) + " s",
                  "bench", "stop the other clients, or measure another service");
    }
    std::this_thread::sleep_for(kScrapeInterval);
  }
}

// Scrapes while a wave runs and keeps the highest number of requests seen.
class PeakWatcher {
 public:
  explicit PeakWatcher(const HttpClient& client) : thread_([this, &client] { watch(client); }) {}
  ~PeakWatcher() { stop(); }
  PeakWatcher(const PeakWatcher&) = delete;
  PeakWatcher& operator=(const PeakWatcher&) = delete;

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  double running() const { return running_; }
  double waiting() const { return waiting_; }
  double together() const { return together_; }

 private:
  void watch(const HttpClient& client) {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kScrapeInterval, [this] { return done_; })) {
      lock.unlock();
      try {
        const ServerCounters now = read_counters(client);
        running_ = std::max(running_, now.running);
        waiting_ = std::max(waiting_, now.waiting);
        together_ = std::max(together_, now.running + now.waiting);
      } catch (const Error&) {
        // A scrape that fails under load is no evidence of other traffic; the counters after the wave decide.
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  double running_ = 0;
  double waiting_ = 0;
  double together_ = 0;
  std::thread thread_;
};

std::vector<Receipt> run_streams(const HttpClient& client, const std::vector<std::string>& payloads,
                                 const StreamLimits& limits) {
  std::vector<Receipt> receipts(payloads.size());
  std::vector<std::jthread> threads;  // joined also when one cannot be started
  threads.reserve(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    threads.emplace_back([&, i] { receipts[i] = stream_chat(client, payloads[i], limits); });
  }
  threads.clear();
  return receipts;
}

// The counters move a moment after the last byte: scrapes until ours have, and nobody is at work. What is at
// work after that is not ours.
ServerCounters settled_counters(const HttpClient& client, double expected_finished) {
  ServerCounters now = read_counters(client);
  for (int i = 0; i < kSettleScrapes; ++i) {
    if (now.finished >= expected_finished && now.running + now.waiting == 0) break;
    std::this_thread::sleep_for(kSettleInterval);
    now = read_counters(client);
  }
  return now;
}

double gauge(const api::MetricsPage& page, const char* name) {
  if (const auto value = page.sum(name)) return *value;
  throw Error(std::string("has no ") + name + ", so nobody can tell whether the service is idle", "/metrics",
              "measure a service that exports vLLM's metrics");
}

}  // namespace

ServerCounters read_counters(const HttpClient& client) {
  const HttpReply reply = client.get("/metrics", kScrapeTimeout_s);
  if (!reply.error.empty()) {
    throw Unreachable("cannot be read: " + reply.error, "/metrics",
                      "is the service running at this address?");
  }
  if (!reply.ok()) throw Error("cannot be read: HTTP " + std::to_string(reply.status), "/metrics");
  const api::MetricsPage page = api::parse_metrics(reply.body);
  namespace metric = api::metric;
  ServerCounters counters;
  counters.running = gauge(page, metric::kRequestsRunning);
  counters.waiting = gauge(page, metric::kRequestsWaiting);
  counters.finished = gauge(page, metric::kRequestSuccess);
  counters.drafts = page.sum(metric::kDrafts).value_or(0);
  counters.draft_tokens = page.sum(metric::kDraftTokens).value_or(0);
  counters.accepted_tokens = page.sum(metric::kAcceptedTokens).value_or(0);
  counters.preemptions = page.sum(metric::kPreemptions).value_or(0);
  return counters;
}

Wave run_wave(const HttpClient& client, const std::string& label, const std::vector<std::string>& payloads,
              const WaveOptions& options, std::vector<DiscardedSample>& discarded) {
  const double streams = static_cast<double>(payloads.size());
  const auto count = [](const std::vector<Receipt>& receipts, auto what) {
    return static_cast<double>(std::count_if(receipts.begin(), receipts.end(), what));
  };
  std::string reason;
  for (int attempt = 1; attempt <= 1 + options.retries; ++attempt) {
    const ServerCounters before = wait_idle(client, options.idle_timeout_s);
    Wave wave;
    PeakWatcher peak(client);
    const double start_s = monotonic_s();
    wave.receipts = run_streams(client, payloads, options.stream);
    wave.wall_s = monotonic_s() - start_s;
    peak.stop();
    const double succeeded = count(wave.receipts, [](const Receipt& r) { return r.ok; });
    // A request that the service refused is in none of its counters; one that broke off may have ended or
    // not.
    const double refused = count(wave.receipts, [](const Receipt& r) { return r.refused; });
    const double broken = streams - succeeded - refused;
    const ServerCounters after = settled_counters(client, before.finished + succeeded);
    wave.delta.running = peak.running();
    wave.delta.waiting = peak.waiting();
    wave.delta.finished = after.finished - before.finished;
    wave.delta.drafts = after.drafts - before.drafts;
    wave.delta.draft_tokens = after.draft_tokens - before.draft_tokens;
    wave.delta.accepted_tokens = after.accepted_tokens - before.accepted_tokens;
    wave.delta.preemptions = after.preemptions - before.preemptions;
    const double others_finished = std::max(0.0, wave.delta.finished - succeeded - broken);
    const double others_at_work = std::max(0.0, after.running + after.waiting - broken);
    const double foreign = others_finished + others_at_work;
    if (wave.delta.finished < succeeded) {
      reason = "the service's counters do not account for it";
    } else if (foreign > 0 || peak.together() > streams) {
      reason = "overlapped with other traffic";
    } else {
      return wave;
    }
    discarded.push_back({label, attempt, reason, foreign});
  }
  throw Error("no attempt counts; the last one: " + reason, label,
              "stop the other clients of this service, and do not restart it meanwhile");
}

}  // namespace spark::bench
