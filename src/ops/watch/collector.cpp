#include "ops/watch/collector.h"

#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "common/error.h"

namespace spark::ops {
namespace {

// Longer than a login on a loaded node takes; what is later is reported as pending anyway.
constexpr double kCall_s = 12;
constexpr size_t kMaxAnswer = size_t{256} << 10;

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

WatchCollector::WatchCollector(const Site& site, const std::vector<const Node*>& nodes, const Remote& remote,
                               const CollectorOptions& options)
    : remote_(remote) {
  for (const Node* node : nodes) {
    Worker& worker = workers_.emplace_back();
    worker.node = remote_node(site.nodes, *node);
    worker.question.service = site.profile.service_name();
    worker.question.container = !site.profile.container.name.empty();
    worker.question.gpu = site.profile.host.hardware == "spark";
    worker.question.limit_s = std::clamp(options.interval_s / 2, 0.5, 5.0);
    if (!node->head) continue;
    worker.question.metrics_url = metrics_url(site.profile.deployment.ready_url);
    worker.question.api_key = api_key_source(site);
  }
  for (Worker& worker : workers_)
    worker.thread = std::jthread([this, &worker](const std::stop_token& stop) { serve(worker, stop); });
}

WatchCollector::~WatchCollector() {
  for (Worker& worker : workers_) worker.thread.request_stop();
  workers_.clear();
}

bool WatchCollector::all_idle() const {
  return std::none_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.busy; });
}

void WatchCollector::serve(Worker& worker, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&worker] { return worker.busy; })) {
    const WatchQuestion question = worker.question;
    lock.unlock();
    NodeSample sample = ask(worker.node, question, stop);
    lock.lock();
    if (sample.service.pid > 0) worker.question.known_pid = sample.service.pid;
    worker.sample = std::move(sample);
    worker.busy = false;
    changed_.notify_all();
  }
}

NodeSample WatchCollector::ask(const RemoteNode& node, const WatchQuestion& question,
                               std::stop_token stop) const {
  NodeSample failed{.node = node.name};
  try {
    RemoteCommand command;
    command.script = watch_script(question);
    command.timeout_s = kCall_s;
    command.max_output_bytes = kMaxAnswer;
    const RemoteResult result = remote_.run(node, command, std::move(stop));
    if (result.outcome == RemoteOutcome::kExited) return read_watch_answer(node.name, result.output);
    failed.problem = result.describe();
    failed.reachable = result.reached();
  } catch (const Error& error) {
    failed.problem = error.describe();
  }
  return failed;
}

WatchSample WatchCollector::look(double patience_s, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  for (Worker& worker : workers_) {
    if (worker.busy) continue;  // still at an earlier question
    worker.busy = true;
    worker.asked_s = monotonic_s();
  }
  changed_.notify_all();
  const auto patience = std::chrono::duration<double>(patience_s);
  changed_.wait_for(lock, std::move(stop), patience, [this] { return all_idle(); });
  WatchSample sample{.time_s = wall_clock_s(), .monotonic_s = monotonic_s(), .nodes = {}};
  for (const Worker& worker : workers_) {
    if (!worker.busy) {
      sample.nodes.push_back(worker.sample);
      continue;
    }
    NodeSample pending{.node = worker.node.name, .answer = WatchAnswer::kPending};
    pending.pending_s = monotonic_s() - worker.asked_s;
    sample.nodes.push_back(std::move(pending));
  }
  return sample;
}

}  // namespace spark::ops
