#include "rank_flags.h"

#include "../flag_checks.h"
#include "flag_groups.h"
#include "model/split.h"

namespace spark::app {

void add_rank_flags(CLI::App& app, RankFlags& ranks) {
  using enum engine::CollectiveDtype;
  app.add_option("--tensor-parallel-size", ranks.tensor_parallel_size, "Ranks that share every layer")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, model::kMaxRanks));
  app.add_option("--nnodes", ranks.nnodes,
                 "Machines that serve together; each starts its share of the ranks itself")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, model::kMaxRanks));
  app.add_option("--node-rank", ranks.node_rank, "Which of the machines this is; 0 serves the API")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, model::kMaxRanks - 1));
  app.add_option("--master-addr", ranks.master_addr, "Address of machine 0, where the ranks meet")
      ->capture_default_str();
  app.add_option("--master-port", ranks.master_port, "Port there")
      ->default_str(std::to_string(kDefaultMasterPort) + ", or a free one with one machine")
      ->take_last()
      ->check(CLI::Range(1, 65535));
  app.add_flag("--headless", ranks.headless, "This machine serves no API, which holds for all but the first");
  app.add_option("--rendezvous-timeout", ranks.rendezvous_timeout_s,
                 "Seconds that ranks wait for one another at the start")
      ->capture_default_str()
      ->check(number_between(0.1, 86400));
  app.add_option("--heartbeat-timeout", ranks.heartbeat_timeout_s,
                 "Seconds without a sign of life after which a rank is lost; more where ranks share busy "
                 "processors with other work")
      ->capture_default_str()
      ->check(number_between(0.3, 86400));
  app.add_option("--spread-rows-above", ranks.spread_rows_above,
                 "Steps of more tokens than this spread their residual streams over the ranks")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  add_choice(app, "--collective-dtype", ranks.collective_dtype,
             {{"auto", kAuto}, {"bf16", kBf16}, {"fp64", kFp64}},
             "How the ranks' partial sums are added up: fp64 not rounded before, so that any number of "
             "ranks gives the same results; bf16 rounded, a quarter of the bytes; auto: fp64 where the "
             "backend can")
      ->default_str("auto");
  app.add_option("--local-rank", ranks.local_rank, "")->group("")->check(CLI::Range(1, 7));
}

void check_rank_flags(const RankFlags& ranks) {
  if (ranks.tensor_parallel_size % ranks.nnodes != 0) {
    throw CLI::ValidationError("--tensor-parallel-size",
                               std::to_string(ranks.tensor_parallel_size) + " ranks cannot be shared by " +
                                   std::to_string(ranks.nnodes) + " machines evenly");
  }
  if (ranks.node_rank >= ranks.nnodes) {
    throw CLI::ValidationError("--node-rank", "is " + std::to_string(ranks.node_rank) + "; with --nnodes " +
                                                  std::to_string(ranks.nnodes) + " the last machine is " +
                                                  std::to_string(ranks.nnodes - 1));
  }
  if (ranks.headless && ranks.node_rank == 0) {
    throw CLI::ValidationError(
        "--headless", "cannot hold for machine 0, which serves the API; give the others --node-rank too");
  }
  if (ranks.local_rank && *ranks.local_rank >= ranks.local_ranks()) {
    throw CLI::ValidationError("--local-rank",
                               "is " + std::to_string(*ranks.local_rank) + ", beyond this machine's ranks");
  }
}

}  // namespace spark::app
