// Every number that `spark plan` did not compute from the model: device ceilings, and constants fitted to the
// published measurements of the reference deployment (vLLM, TileLang kernels, GB10 nodes). One table; plans
// print the rows that they used.
//
//   const Calibration& c = calibration();
//   bytes / c.stream_bytes_per_s.value;
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spark::ops {

struct Constant {
  const char* name;
  double value;
  const char* unit;
  const char* source;  // where the value comes from: measured, published, fitted to what, or assumed
};

struct Calibration {
  // Device
  Constant stream_bytes_per_s;
  Constant node_bytes;
  Constant fp8_flops_per_s;
  Constant link_bytes_per_s;
  // Collectives
  Constant direct_latency_s;
  Constant ring_latency_s;
  Constant nccl_latency_s;
  Constant bulk_bytes_per_s;
  // Decode
  Constant routing_exponent;
  // Prefill
  Constant dense_flops_per_s;
  Constant score_flops_per_s;
  // Memory of a vLLM rank
  Constant system_bytes;
  Constant workspace_bytes_per_row;
  Constant graph_bytes_per_row;
  Constant api_server_bytes;
  // Memory of a native rank
  Constant native_system_bytes;
  // Pages
  Constant page_descriptor_bytes;
  Constant leaf_table_bytes;
  Constant leaf_table_covers_bytes;

  std::vector<const Constant*> all() const;
};

const Calibration& calibration();

// Drafts verified per stream and step for one text: adaptive verification shortens them as streams are added.
struct VerifiedDrafts {
  double streams;
  double drafts;
};

// Accepted tokens per stream and step follow from the same runs.
struct Workload {
  const char* name;
  std::span<const VerifiedDrafts> verified;  // ascending streams; interpolated over log2(streams)
  double tokens_per_step;
  const char* source;
};

const Workload* find_workload(const std::string& name);  // "prose", "code"; nullptr otherwise
std::vector<std::string> workload_names();
double verified_drafts(const Workload& workload, double streams);

}  // namespace spark::ops
