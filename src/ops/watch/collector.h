// Asks the nodes of a site, again and again, what watch_script() asks. One thread per node, so that a node
// that hangs delays nobody: it is reported as pending, and asked again when its question has ended.
//
//   WatchCollector collector(site, nodes, remote, {.interval_s = 5});
//   WatchSample sample = collector.look(4.0, stop);     // whatever is known after 4 s at the latest
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "ops/remote/remote.h"
#include "ops/site/site.h"
#include "ops/watch/sample.h"
#include "ops/watch/script.h"

namespace spark::ops {

struct CollectorOptions {
  double interval_s = 5;  // between looks; commands on a node get half of it
};

class WatchCollector {
 public:
  // `remote` must outlive it.
  WatchCollector(const Site& site, const std::vector<const Node*>& nodes, const Remote& remote,
                 const CollectorOptions& options);
  // Cancels what runs and waits for it.
  ~WatchCollector();
  WatchCollector(const WatchCollector&) = delete;
  WatchCollector& operator=(const WatchCollector&) = delete;

  // In the order of `nodes`. Returns early when all have answered or `stop` is requested.
  WatchSample look(double patience_s, std::stop_token stop = {});

 private:
  struct Worker {
    RemoteNode node;
    WatchQuestion question;
    bool busy = false;
    double asked_s = 0;  // monotonic
    NodeSample sample;   // the last answer
    std::jthread thread;
  };

  void serve(Worker& worker, std::stop_token stop);
  NodeSample ask(const RemoteNode& node, const WatchQuestion& question, std::stop_token stop) const;
  bool all_idle() const;

  const Remote& remote_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Worker> workers_;  // after the mutex: their threads end first
};

}  // namespace spark::ops
