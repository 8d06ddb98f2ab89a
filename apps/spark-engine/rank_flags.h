// Which ranks of the group this process is and starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/collective/collective_dtype.h"

namespace spark::app {

// vLLM's flags: --nnodes machines with tensor_parallel_size / nnodes ranks each.
struct RankFlags {
  int32_t tensor_parallel_size = 1;
  int32_t nnodes = 1;
  int32_t node_rank = 0;
  std::string master_addr = "127.0.0.1";
  std::optional<uint16_t> master_port;  // absent: kDefaultMasterPort, or a free one when all ranks are here
  bool headless = false;
  double rendezvous_timeout_s = 300;
  double heartbeat_timeout_s = 0.5;
  int32_t spread_rows_above = 204;
  engine::CollectiveDtype collective_dtype = engine::CollectiveDtype::kAuto;
  // Set for processes that the first one of a machine starts: which of its ranks this is.
  std::optional<int32_t> local_rank;

  int32_t local_ranks() const { return tensor_parallel_size / nnodes; }
  int32_t rank() const { return node_rank * local_ranks() + local_rank.value_or(0); }
  bool starts_others() const { return local_ranks() > 1 && !local_rank; }
};

inline constexpr uint16_t kDefaultMasterPort = 29501;

}  // namespace spark::app
