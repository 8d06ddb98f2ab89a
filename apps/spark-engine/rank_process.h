// This process as one rank of a group, from joining to the end. With one rank it does nothing.
//
//   RankProcess ranks(flags, options);                          // joins; starts the machine's other ranks
//   options.communicator = ranks.communicator();
//   const auto model = ranks.load([&] { return load_model(options); });
//   if (!ranks.leads()) return ranks.follow(*model);            // until rank 0 stops
//   Service service(ranks.lead(*model), ...);
//   ranks.attach(server, service);                              // who is told when a rank is lost
//   ...
//   return ranks.finish();
//
// When a rank is lost, rank 0 answers every client with an error that says so and ends with exit code 1; the
// other ranks end at once. A rank that is told to stop asks rank 0, which lets requests finish and then stops
// everybody.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "child_ranks.h"
#include "engine/collective/rank_group.h"
#include "engine/forward/load_observer.h"
#include "engine/forward/ranked_model.h"
#include "engine/serve/http.h"
#include "engine/serve/service.h"
#include "flags.h"

namespace spark::app {

class RankProcess {
 public:
  // `load` is what the model will be loaded with: the ranks compare what matters of it.
  RankProcess(const EngineFlags& flags, const engine::LoadOptions& load);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  bool leads() const { return rank_ == 0; }
  // Null when this is the only rank.
  engine::Communicator* communicator();

  // Runs `work`; when it throws, the other ranks are told why before the exception goes on.
  template <typename Work>
  auto load(const Work& work) {
    try {
      return work();
    } catch (const Error& error) {
      tell_failure(error.describe());
      throw;
    } catch (const std::exception& error) {
      tell_failure(error.what());
      throw;
    }
  }

  // For the load: passes on what it is told to `observer`, and shows the other ranks that this one lives.
  engine::LoadObserver& watched(engine::LoadObserver& observer);

  // Ranks above 0: the exit code.
  int follow(engine::StepModel& model);

  // Rank 0: the model that drives all ranks, once all are ready.
  engine::StepModel& lead(engine::StepModel& model);
  void attach(engine::HttpServer& server, engine::Service& service);
  // The server has ended. With a rank lost so does this process.
  void detach();
  // After the last call on the model: ends the other ranks; the exit code.
  int finish();

 private:
  class LifeSigns;
  void join(const EngineFlags& flags, const engine::LoadOptions& load);
  void start_children(const EngineFlags& flags, uint16_t port);
  void tell_failure(const std::string& why);
  void on_lost(const engine::LostRank& lost);
  void on_stop_request(int32_t rank);

  const int32_t rank_;
  const int32_t ranks_;
  const double drain_timeout_s_;
  ChildRanks children_;
  Descriptor listener_;
  std::unique_ptr<engine::LeadingModel> leading_;
  std::unique_ptr<LifeSigns> life_signs_;

  std::mutex mutex_;
  engine::HttpServer* server_ = nullptr;
  engine::Service* service_ = nullptr;
  bool stop_requested_ = false;
  bool lost_ = false;
  std::unique_ptr<engine::RankGroup> group_;  // first to go: its threads call what is above
};

}  // namespace spark::app
