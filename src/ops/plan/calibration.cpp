#include "ops/plan/calibration.h"

#include <array>
#include <cmath>

namespace spark::ops {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMib = 1024.0 * 1024;

// Four nodes, prose, temperature 0: tokens per step (from tok/s, step time and the first token's time) less
// one, over the published share of accepted among verified drafts (0.369, 0.490, 0.502, 0.610). Sixteen
// streams: no share was published, the trend is continued.
constexpr std::array<VerifiedDrafts, 5> kProse = {{{1, 2.89}, {2, 2.35}, {4, 2.30}, {8, 1.85}, {16, 1.65}}};
// Code is accepted further: 2.7 tokens a step at one stream, nearly all drafts verified.
constexpr std::array<VerifiedDrafts, 2> kCode = {{{1, 3.6}, {16, 2.2}}};

constexpr std::array<Workload, 2> kWorkloads = {{
    {"prose", kProse, 2.1, "four-node reference run, prose, temperature 0"},
    {"code", kCode, 2.75,
     "four-node reference run, code, temperature 0; shares of verified drafts estimated"},
}};

constexpr Calibration kCalibration = {
    .stream_bytes_per_s = {"weight streaming rate", 236e9, "B/s",
                           "measured on GB10 for routed experts (peak 273 GB/s)"},
    .node_bytes =
        {"memory of a node that the kernel manages, page descriptors included", 121.69 * kGib, "B",
         "assumed: 128 GiB less firmware and display reserve; only its sum with the system share counts"},
    .fp8_flops_per_s = {"dense FP8 peak", 250e12, "FLOP/s",
                        "vendor's sparse FP4 figure over 4; native floors only"},
    .link_bytes_per_s = {"payload rate of one cable and direction, small messages", 22e9, "B/s",
                         "200 Gb/s less framing"},
    .direct_latency_s = {"one-shot all-reduce latency, triangle", 22e-6, "s", "assumed: one hop"},
    .ring_latency_s = {"one-shot all-reduce latency, ring of four", 35e-6, "s",
                       "fitted: collectives take about 11 % of a single-stream step on four nodes"},
    .nccl_latency_s = {"NCCL all-reduce latency", 80e-6, "s", "assumed"},
    .bulk_bytes_per_s = {"rate of one cable and direction, sequence-parallel prefill", 9.4e9, "B/s",
                         "published: 3.1 to 3.6 ms for a reduce-scatter of 84 MB on four nodes"},
    .routing_exponent = {"experts hit: r rows count as r to this power", 0.81, "",
                         "fitted to the four-node prose steps at 1 to 16 streams; three nodes held out"},
    .dense_flops_per_s = {"prefill rate of projections and experts, per rank", 36e12, "FLOP/s",
                          "fitted to four-node prefill at 32K; three nodes held out"},
    .score_flops_per_s = {"prefill rate of index scores, per rank", 27e12, "FLOP/s",
                          "fitted to four-node prefill at 32K to 1M; three nodes held out"},
    .system_bytes = {"system, driver, CUDA contexts, Python, NCCL, Engram readers", 12.03 * kGib, "B",
                     "fitted to the published minimum of MemAvailable on three and four nodes"},
    .workspace_bytes_per_row =
        {"activation workspace per batched token", 0.547 * kMib, "B",
         "fitted, with the system share, to three (4,096 rows) and four nodes (8,192)"},
    .graph_bytes_per_row = {"CUDA graphs per row of the captured sizes", 2.65 * kMib, "B",
                            "published: 0.61 GiB for 244 rows, 1.88 GiB for 700"},
    .api_server_bytes = {"API server, on the head", 1.04 * kGib, "B",
                         "published: the head's minimum of MemAvailable lies that far below the workers'"},
    .native_system_bytes = {"system, driver and CUDA context beside the native engine", 6 * kGib, "B",
                            "assumed; not measured on a Spark yet"},
    .page_descriptor_bytes = {"page descriptor", 64, "B", "Linux struct page on arm64"},
    .leaf_table_bytes = {"GPU leaf page table", 4096, "B", "packed, or on 4 KiB pages; else one whole page"},
    .leaf_table_covers_bytes = {"memory that one leaf table maps", 2 * kMib, "B", "NVIDIA unified memory"},
};

}  // namespace

std::vector<const Constant*> Calibration::all() const {
  return {&stream_bytes_per_s,      &node_bytes,          &fp8_flops_per_s,        &link_bytes_per_s,
          &direct_latency_s,        &ring_latency_s,      &nccl_latency_s,         &bulk_bytes_per_s,
          &routing_exponent,        &dense_flops_per_s,   &score_flops_per_s,      &system_bytes,
          &workspace_bytes_per_row, &graph_bytes_per_row, &api_server_bytes,       &native_system_bytes,
          &page_descriptor_bytes,   &leaf_table_bytes,    &leaf_table_covers_bytes};
}

const Calibration& calibration() {
  return kCalibration;
}

const Workload* find_workload(const std::string& name) {
  for (const Workload& workload : kWorkloads) {
    if (name == workload.name) return &workload;
  }
  return nullptr;
}

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Workload& workload : kWorkloads) names.emplace_back(workload.name);
  return names;
}

double verified_drafts(const Workload& workload, double streams) {
  const auto& points = workload.verified;
  if (streams <= points.front().streams) return points.front().drafts;
  for (size_t i = 1; i < points.size(); ++i) {
    if (streams > points[i].streams) continue;
    const double low = std::log2(points[i - 1].streams), high = std::log2(points[i].streams);
    const double share = (std::log2(streams) - low) / (high - low);
    return points[i - 1].drafts + share * (points[i].drafts - points[i - 1].drafts);
  }
  return points.back().drafts;
}

}  // namespace spark::ops
