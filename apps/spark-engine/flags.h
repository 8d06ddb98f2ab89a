// The command line of spark-engine: vLLM's names where vLLM has the flag.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "engine/forward/load_model.h"
#include "engine/schedule/speculation_options.h"
#include "engine/serve/http.h"
#include "rank_flags.h"

namespace spark::app {

inline constexpr const char* kKeyVariable = "SPARK_API_KEY";

struct EngineFlags {
  engine::LoadOptions model;
  engine::HttpOptions http;
  RankFlags ranks;
  std::vector<std::string> arguments;     // as given, without the program's name
  std::vector<std::string> served_names;  // empty: the folder's name
  std::vector<std::string> api_keys;
  Faults key_faults;                     // of those that cannot be used, with --check
  std::optional<int32_t> max_model_len;  // absent: kDefaultModelLen, or less if the model ends earlier
  std::optional<std::string> speculative_config;  // absent: as many drafts as the checkpoint offers
  int32_t parallel_prefills = 2;
  double max_token_gap_ms = 0;
  size_t max_queued = 256;
  size_t engram_cache_mib = 256;
  bool engram_page_cache = false;
  double drain_timeout_s = 30;
  std::string generation_config = "auto";  // "auto", "vllm" or a folder
  bool check_only = false;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

inline constexpr int32_t kDefaultModelLen = 8192;
inline constexpr int32_t kLeastModelLen = 2;  // a token of a prompt, one of an answer

// Reads the flags, the file of --config, the key file and the environment variable SPARK_API_KEY. nullopt:
// print nothing more and exit with `exit_code` (--help, --version, flags that make no sense). Throws Error
// for a file that cannot be used; with --check, keys that cannot be are listed with all else.
std::optional<EngineFlags> parse_flags(int argc, char** argv, int& exit_code);

}  // namespace spark::app
