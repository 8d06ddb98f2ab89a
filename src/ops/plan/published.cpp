#include "ops/plan/published.h"

#include <array>
#include <cmath>

#include "common/table.h"
#include "common/units.h"

namespace spark::ops {
namespace {

constexpr const char* k4k = "config/cluster-4k.json";
constexpr const char* k64k = "config/cluster-64k.json";
constexpr const char* kTp4 = "config/cluster-tp4.json";
constexpr double kGi = 1024.0 * 1024 * 1024;
constexpr int64_t kShortContext = 200;  // a short prompt and half of 256 generated tokens

enum class Kind { kCapacity, kStep, kPrefill, kAvailableHead, kAvailableWorker, kGraphs, kVision, kCarveout };

struct Figure {
  const char* profile;
  Kind kind;
  const char* workload;  // of steps
  int64_t at;            // streams, prompt tokens
  double published;
  const char* role;
};

// Three and four nodes, promoted image; the four-kilobyte capacity comes from an earlier one.
constexpr std::array<Figure, 27> kFigures = {{
    {k4k, Kind::kCapacity, "", 0, 1350000, "other image"},
    {k64k, Kind::kCapacity, "", 0, 2845543, "fitted"},
    {kTp4, Kind::kCapacity, "", 0, 8580566, "fitted"},
    {kTp4, Kind::kStep, "prose", 1, 31.8, "fitted"},
    {kTp4, Kind::kStep, "prose", 2, 42.5, "fitted"},
    {kTp4, Kind::kStep, "prose", 4, 57.9, "fitted"},
    {kTp4, Kind::kStep, "prose", 8, 76.2, "fitted"},
    {kTp4, Kind::kStep, "prose", 16, 105.4, "fitted"},
    {kTp4, Kind::kStep, "code", 1, 34.8, "held out"},
    {k64k, Kind::kStep, "prose", 1, 38.21, "held out"},
    {k64k, Kind::kStep, "code", 1, 42.43, "held out"},
    {kTp4, Kind::kPrefill, "", 32768, 5836, "fitted"},
    {kTp4, Kind::kPrefill, "", 262144, 5471, "fitted"},
    {kTp4, Kind::kPrefill, "", 512000, 5072, "fitted"},
    {kTp4, Kind::kPrefill, "", 1048576, 4370, "fitted"},
    {k64k, Kind::kPrefill, "", 32768, 4306, "held out"},
    {k64k, Kind::kPrefill, "", 262144, 4034, "held out"},
    {k64k, Kind::kPrefill, "", 512000, 3743, "held out"},
    {k64k, Kind::kAvailableHead, "", 0, 5.99, "fitted"},
    {k64k, Kind::kAvailableWorker, "", 0, 7.03, "fitted"},
    {kTp4, Kind::kAvailableHead, "", 0, 19.35, "fitted"},
    {k64k, Kind::kGraphs, "", 0, 0.61, "fitted"},
    {kTp4, Kind::kGraphs, "", 0, 1.88, "fitted"},
    {k64k, Kind::kVision, "", 0, 0.90, "held out"},
    {kTp4, Kind::kVision, "", 0, 0.90, "held out"},
    {k64k, Kind::kCarveout, "", 0, 737.0 / 1024, "held out"},
    {kTp4, Kind::kCarveout, "", 0, 552.0 / 1024, "held out"},
}};

double part_gib(const PlanRequest& request, const std::string& start) {
  for (const MemoryPart& part : node_memory(request).parts) {
    if (part.name.starts_with(start)) return std::abs(part.worker) / kGi;
  }
  return 0;
}

Comparison compare(const Figure& figure, const PlanRequest& request, const SpeedModel& speed) {
  Comparison row{figure.profile, "", "", figure.published, 0, figure.role};
  const std::string at = std::to_string(figure.at);
  switch (figure.kind) {
    case Kind::kCapacity:
      row.figure = "cache capacity";
      row.unit = "tokens";
      row.predicted = static_cast<double>(cache_capacity(request).tokens);
      break;
    case Kind::kStep:
      row.figure = std::string("decode step, ") + figure.workload + ", " + at +
                   (figure.at == 1 ? " stream" : " streams");
      row.unit = "ms";
      row.predicted = 1000 * speed.step(*find_workload(figure.workload), figure.at, kShortContext).total_s();
      break;
    case Kind::kPrefill:
      row.figure = "prefill, prompt of " + format_count(static_cast<uint64_t>(figure.at));
      row.unit = "tok/s";
      row.predicted = speed.prefill(figure.at).tokens_per_s();
      break;
    case Kind::kAvailableHead:
    case Kind::kAvailableWorker:
      row.figure = figure.kind == Kind::kAvailableHead ? "least memory available, head"
                                                       : "least memory available, workers";
      row.unit = "GiB";
      row.predicted = node_memory(request).available(figure.kind == Kind::kAvailableHead) / kGi;
      break;
    case Kind::kGraphs:
      row.figure = "CUDA graphs";
      row.unit = "GiB";
      row.predicted = part_gib(request, "CUDA graphs");
      break;
    case Kind::kVision:
      row.figure = "vision tower";
      row.unit = "GiB";
      row.predicted = part_gib(request, "weights: vision");
      break;
    case Kind::kCarveout:
      row.figure = "weights in the display reserve";
      row.unit = "GiB";
      row.predicted = part_gib(request, "of these in the display reserve");
      break;
  }
  return row;
}

}  // namespace

std::vector<std::string> published_profiles() {
  return {k4k, k64k, kTp4};
}

std::vector<Comparison> compare_with_published(const std::map<std::string, PlanRequest>& requests) {
  std::map<std::string, SpeedModel> speeds;
  for (const auto& [profile, request] : requests) speeds.emplace(profile, request);
  std::vector<Comparison> rows;
  for (const Figure& figure : kFigures) {
    const auto request = requests.find(figure.profile);
    if (request != requests.end())
      rows.push_back(compare(figure, request->second, speeds.at(figure.profile)));
  }
  return rows;
}

std::string comparison_markdown(const std::vector<Comparison>& rows) {
  Table table({{"profile"},
               {"figure"},
               {"published", Align::kRight},
               {"plan", Align::kRight},
               {""},
               {"deviation", Align::kRight},
               {""}});
  for (const Comparison& row : rows) {
    const auto number = [&](double value) {
      return row.unit == "tokens" || row.unit == "tok/s" ? format_count(static_cast<uint64_t>(value))
                                                         : format_fixed(value, row.unit == "ms" ? 1 : 2);
    };
    const double percent = 100 * row.deviation();
    table.add({row.profile, row.figure, number(row.published), number(row.predicted), row.unit,
               (percent < 0 ? "" : "+") + format_fixed(percent, 1) + " %", row.role});
  }
  return table.markdown();
}

}  // namespace spark::ops
