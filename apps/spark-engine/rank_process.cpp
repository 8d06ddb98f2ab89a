#include "rank_process.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "../signal_watch.h"
#include "common/clock.h"
#include "common/log.h"
#include "engine/checkpoint/fingerprint.h"
#include "engine/collective/network_interface.h"
#include "engine/collective/urgency.h"
#include "exit_codes.h"

namespace spark::app {
namespace {

// With a rank lost: for the answers that say so, and until this process ends whatever it still does. Rank 0
// has clients to tell, which takes as long as what its step computes until it next needs another rank.
constexpr double kFailureDrainS = 1;
constexpr double kLeaderEndS = 5;
constexpr double kFollowerEndS = 0.3;
// At the end: for ranks that this process started.
constexpr double kChildrenEndS = 5;
// Waiting for messages: spinning is only for machines with a core for each rank.
constexpr double kSpinUs = 50;
constexpr double kNoSpinUs = 2;
constexpr double kLookForWayS = 0.25;

// What changes what a rank computes, or which calls it can take.
engine::RankSettings rank_settings(const EngineFlags& flags, const engine::LoadOptions& load) {
  const engine::CacheLimits& limits = load.limits;
  return {.rank = flags.ranks.rank(),
          .ranks = flags.ranks.tensor_parallel_size,
          .settings = {{"the release", SPARK_VERSION},
                       {"the checkpoint's fingerprint", engine::checkpoint_fingerprint(flags.model.folder)},
                       {"--nnodes", std::to_string(flags.ranks.nnodes)},
                       {"--backend", load.backend},
                       {"--spread-rows-above", std::to_string(load.spread_rows_above)},
                       {"--collective-dtype", engine::name_of(load.collective_dtype)},
                       {"--exact-prefill", load.exact_prefill ? "on" : "off"},
                       {"--max-model-len", std::to_string(limits.max_context)},
                       {"--kv-cache-memory-bytes", std::to_string(limits.budget_bytes)},
                       {"--enable-prefix-caching", limits.prefix_caching ? "on" : "off"},
                       {"--prefix-cache-retention-interval", std::to_string(limits.retention)},
                       {"--max-num-seqs", std::to_string(limits.max_sequences)},
                       {"--max-num-batched-tokens", std::to_string(limits.max_step_rows)}}};
}

// The network of the cluster is where rank 0 is; UCX would listen on all others too. Waits for a way to rank
// 0, as a machine that has just started may have none yet.
std::string devices_towards_leader(const RankFlags& ranks, uint16_t port) {
  const std::string where = ranks.master_addr + ":" + std::to_string(port);
  const double end = monotonic_s() + ranks.rendezvous_timeout_s;
  std::string why;
  for (;;) {
    if (const auto interface = engine::interface_towards(ranks.master_addr, port, why)) {
      if (!interface->empty()) return engine::devices_of(*interface);
      log_warning("messages between ranks are listened for on every network: " + ranks.master_addr +
                  " names none; give --master-addr one of rank 0's addresses, or set UCX_NET_DEVICES");
      return {};
    }
    if (monotonic_s() > end) throw Error("there is no way to rank 0: " + why, where, "see --master-addr");
    std::this_thread::sleep_for(std::chrono::duration<double>(kLookForWayS));
  }
}

}  // namespace

class RankProcess::LifeSigns : public engine::LoadObserver {
 public:
  LifeSigns(engine::RankGroup& group, engine::LoadObserver& next) : group_(group), next_(next) {}
  void on_phase(const std::string& name) override {
    group_.beat();
    next_.on_phase(name);
  }
  void on_weights(uint64_t done, uint64_t total) override {
    group_.beat();
    next_.on_weights(done, total);
  }

 private:
  engine::RankGroup& group_;
  engine::LoadObserver& next_;
};

RankProcess::RankProcess(const EngineFlags& flags, const engine::LoadOptions& load)
    : rank_(flags.ranks.rank()),
      ranks_(flags.ranks.tensor_parallel_size),
      drain_timeout_s_(flags.drain_timeout_s),
      children_(flags.arguments) {
  if (ranks_ > 1) join(flags, load);
}

RankProcess::~RankProcess() = default;

engine::Communicator* RankProcess::communicator() {
  return group_ == nullptr ? nullptr : &group_->communicator();
}

engine::LoadObserver& RankProcess::watched(engine::LoadObserver& observer) {
  if (group_ == nullptr) return observer;
  life_signs_ = std::make_unique<LifeSigns>(*group_, observer);
  return *life_signs_;
}

void RankProcess::join(const EngineFlags& flags, const engine::LoadOptions& load) {
  const RankFlags& ranks = flags.ranks;
  engine::RankGroupOptions options;
  options.settings = rank_settings(flags, load);
  options.master_address = ranks.master_addr;
  options.master_port = ranks.master_port.value_or(kDefaultMasterPort);
  if (leads()) {
    // A group within one machine needs no agreed port.
    const bool any_port = ranks.nnodes == 1 && !ranks.master_port;
    listener_ = engine::listen_on(ranks.master_addr, any_port ? 0 : options.master_port);
    options.master_port = engine::port_of(listener_);
    options.listener = &listener_;
  }
  if (ranks.starts_others()) start_children(flags, options.master_port);
  const bool has_cores = static_cast<int32_t>(std::thread::hardware_concurrency()) > ranks.local_ranks();
  options.transport = {.spin_us = has_cores ? kSpinUs : kNoSpinUs,
                       .shared_memory = ranks.local_ranks() > 1,
                       .network = ranks.nnodes > 1};
  if (ranks.nnodes > 1) options.transport.devices = devices_towards_leader(ranks, options.master_port);
  options.rendezvous.timeout_s = ranks.rendezvous_timeout_s;
  options.membership.silence_s = ranks.heartbeat_timeout_s;
  options.membership.first_silence_s =
      std::max(options.membership.first_silence_s, ranks.heartbeat_timeout_s);
  options.rendezvous.interrupted = [this] {
    const std::string ended = children_.ended();
    return ended.empty() ? ended : ended + " before all ranks had joined";
  };
  options.membership.end_s = leads() ? kLeaderEndS : kFollowerEndS;
  // Not even the log is waited for: its reader may be what hangs.
  options.events.overdue = [] { std::_Exit(kFailed); };
  options.events.lost = [this](const engine::LostRank& lost) { on_lost(lost); };
  options.events.stop_requested = [this](int32_t rank) { on_stop_request(rank); };
  group_ = std::make_unique<engine::RankGroup>(std::move(options));
  listener_.close();
}

void RankProcess::start_children(const EngineFlags& flags, uint16_t port) {
  for (int32_t local = 1; local < flags.ranks.local_ranks(); ++local) {
    children_.start(rank_ + local,
                    {"--local-rank", std::to_string(local), "--master-port", std::to_string(port)});
  }
}

void RankProcess::tell_failure(const std::string& why) {
  if (group_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return;  // the failure follows from that
  }
  group_->fail(why);
  // on_lost() ends this process.
  std::this_thread::sleep_for(std::chrono::duration<double>(kLeaderEndS));
}

// On a thread of the group.
void RankProcess::on_lost(const engine::LostRank& lost) {
  const std::string why = lost.rank == rank_ ? lost.why : lost.describe();
  // Clients wait for an answer and other ranks for this one's end: not behind what else the machine computes.
  engine::hurry_all_threads();
  log_error("rank " + std::to_string(rank_) + " ends: " + why);
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    if (service_ != nullptr) {
      server_->drain(kFailureDrainS);   // first, so that connections do not wait for their clients to close
      service_->fail(lost.describe());  // a client does not know which rank "it" is
      return;
    }
  }
  // Nobody waits for an answer, and there is nothing to save.
  children_.kill_all();
  std::_Exit(kFailed);
}

void RankProcess::on_stop_request(int32_t rank) {
  log_info("rank " + std::to_string(rank) + " was told to stop: finishing the requests in progress");
  const std::lock_guard lock(mutex_);
  stop_requested_ = true;
  if (server_ != nullptr) server_->drain(drain_timeout_s_);
}

int RankProcess::follow(engine::StepModel& model) {
  const SignalWatch signals(
      [this](int count) {
        if (count > 1) std::_Exit(kInterrupted);
        group_->request_stop();
      },
      SignalWatch::Until::kProcessEnds);
  load([&] {
    group_->ready();
    log_info("rank " + std::to_string(rank_) + " is ready");
    engine::follow(model, group_->communicator(), group_->transport());
  });
  group_->leave();
  const bool well = children_.wait(kChildrenEndS);
  log_info("rank " + std::to_string(rank_) + " stopped");
  return well ? 0 : kFailed;
}

engine::StepModel& RankProcess::lead(engine::StepModel& model) {
  if (group_ == nullptr) return model;
  load([&] { group_->ready(); });
  leading_ = std::make_unique<engine::LeadingModel>(model, group_->communicator(), group_->transport(),
                                                    [this](const std::string& why) { group_->fail(why); });
  log_info("all " + std::to_string(ranks_) + " ranks are ready");
  return *leading_;
}

void RankProcess::attach(engine::HttpServer& server, engine::Service& service) {
  const std::lock_guard lock(mutex_);
  server_ = &server;
  service_ = &service;
  if (stop_requested_) server.drain(drain_timeout_s_);
}

void RankProcess::detach() {
  const std::lock_guard lock(mutex_);
  if (lost_) {
    // Every client has its answer. What is left, like freeing a model, only delays the end.
    children_.kill_all();
    std::_Exit(kFailed);
  }
  server_ = nullptr;
  service_ = nullptr;
}

int RankProcess::finish() {
  if (group_ == nullptr) return 0;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return kFailed;
  }
  load([&] { leading_->stop(); });
  group_->leave();
  return children_.wait(kChildrenEndS) ? 0 : kFailed;
}

}  // namespace spark::app
