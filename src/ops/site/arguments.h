// A server's argument list, read back: names, values, positions.
//
//   ServerArguments arguments(profile.serve_args);
//   arguments.value("--max-model-len");           // "524288"
//   EngineSettings engine = read_engine_settings(profile, faults);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "ops/site/profile.h"

namespace spark::ops {

struct ServerArgument {
  std::string name;                  // "--port"; "" for a positional argument
  std::optional<std::string> value;  // nullopt: a bare switch
  size_t index = 0;                  // of the name (or the positional value) in the list
};

class ServerArguments {
 public:
  explicit ServerArguments(const std::vector<std::string>& words);

  const std::vector<ServerArgument>& all() const { return all_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // The last one counts, as for the server; nullopt when absent or bare.
  std::optional<std::string> value(std::string_view name) const;

 private:
  const ServerArgument* find(std::string_view name) const;
  std::vector<ServerArgument> all_;
};

// What tools need to know about the engine, whichever kind it is and however the profile states it. A value
// that the profile does not state is nullopt.
struct EngineSettings {
  std::string model_path;
  std::string served_model_name;
  std::string host;
  std::optional<int64_t> port;
  std::optional<int64_t> tensor_parallel_size;
  std::optional<int64_t> nnodes;
  std::optional<int64_t> max_model_len;
  std::optional<int64_t> max_num_seqs;
  std::optional<int64_t> max_num_batched_tokens;
  std::optional<int64_t> max_parallel_prefills;
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<int64_t> block_size;
  std::optional<int64_t> max_cudagraph_capture_size;
  std::optional<int64_t> draft_tokens;
  std::optional<int64_t> draft_tensor_parallel_size;
  std::optional<Json> speculative;  // the parsed --speculative-config, when it is an object
};

// Faults have paths such as "serve_args.--port".
EngineSettings read_engine_settings(const ClusterProfile& profile, Faults& faults);

}  // namespace spark::ops
