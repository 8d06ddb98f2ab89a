// What `spark watch` runs on a node at every look: a short script that reads a few files and asks the
// container engine, systemd, nvidia-smi and, on the head, the API, all at once and each with a time limit. It
// changes nothing, needs no root and nothing of ours on the node. Its answer is read by sample.h.
#pragma once

#include <cstdint>
#include <string>

#include "ops/site/api_key.h"

namespace spark::ops {

struct WatchQuestion {
  std::string service = {};      // container or unit
  bool container = false;        // false: a unit is asked for first
  bool gpu = false;              // ask nvidia-smi
  std::string metrics_url = {};  // of the API, as the node sees it; empty: not asked
  ApiKeySource api_key = {};     // found anew at every look: it may be changed with a restart
  int64_t known_pid = 0;         // is this process still there?
  double limit_s = 2;            // per command
};

std::string watch_script(const WatchQuestion& question);

// "http://127.0.0.1:8000/v1/models" -> "http://127.0.0.1:8000/metrics"; empty when it is no HTTP address.
std::string metrics_url(const std::string& ready_url);

}  // namespace spark::ops
