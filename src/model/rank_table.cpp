#include "model/rank_table.h"

#include <functional>
#include <vector>

#include "common/table.h"
#include "common/units.h"
#include "model/split.h"
#include "model/tensors.h"

namespace spark::model {
namespace {

std::vector<RankSplit> possible_splits(const ModelConfig& config, int64_t most) {
  std::vector<RankSplit> splits;
  for (int64_t ranks = 1; ranks <= most; ++ranks) {
    try {
      splits.push_back(split_for(config, ranks));
    } catch (const Error&) {
      // no column
    }
  }
  return splits;
}

Table table_for(const std::string& title, const std::vector<RankSplit>& splits) {
  std::vector<Table::Column> columns = {{title}};
  for (const RankSplit& split : splits) {
    columns.push_back({std::to_string(split.ranks) + (split.ranks == 1 ? " rank" : " ranks"), Align::kRight});
  }
  return Table(columns);
}

std::string sizes(const std::vector<RankSplit>& splits) {
  Table table = table_for("widths of a rank", splits);
  const auto add = [&](const std::string& name, const std::function<int64_t(const RankSplit&)>& part,
                       const std::function<int64_t(const RankSplit&)>& all) {
    std::vector<std::string> cells = {name + " (" + format_count(static_cast<uint64_t>(all(splits[0]))) +
                                      ")"};
    for (const RankSplit& split : splits) {
      const int64_t sum = part(split) * split.ranks;
      cells.push_back(
          format_count(static_cast<uint64_t>(part(split))) +
          (sum != all(split) ? " (" + format_count(static_cast<uint64_t>(sum)) + " in all)" : ""));
    }
    table.add(cells);
  };
  add(
      "output groups", [](auto& s) { return s.groups; }, [](auto& s) { return s.all_groups; });
  add(
      "query heads", [](auto& s) { return s.heads; },
      [](auto& s) { return s.all_groups * (s.heads / s.groups); });
  add(
      "expert width", [](auto& s) { return s.expert_width; }, [](auto& s) { return s.all_expert_width; });
  add(
      "vocabulary rows", [](auto& s) { return s.vocabulary; }, [](auto& s) { return s.all_vocabulary; });
  add(
      "Engram outputs", [](auto& s) { return s.engram_output; }, [](auto& s) { return s.all_engram_output; });
  if (splits[0].all_main_output > 0) {
    add(
        "drafter's main outputs", [](auto& s) { return s.main_output; },
        [](auto& s) { return s.all_main_output; });
  }
  return table.markdown();
}

std::string gigabytes(int64_t bytes) {
  return format_fixed(static_cast<double>(bytes) / 1e9, bytes < 100'000'000 ? 3 : 2);
}

std::string bytes(const ModelConfig& config, const std::vector<RankSplit>& splits) {
  Table table = table_for("GB of weights on a rank", splits);
  const std::vector<TensorEntry> tensors = tensor_catalogue(config);
  std::vector<std::vector<ComponentBytes>> parts;
  for (const RankSplit& split : splits) parts.push_back(rank_bytes(tensors, split));
  std::vector<int64_t> totals(splits.size(), 0);
  for (size_t row = 0; row < parts[0].size(); ++row) {
    const ComponentBytes& whole = parts[0][row];
    const bool is_cut = whole.split > 0;
    const char* how = is_cut && whole.replicated > 0 ? "cut and copied" : is_cut ? "cut" : "copied";
    std::vector<std::string> cells = {std::string(name_of(whole.component)) + ": " + how};
    if (whole.component == Component::kEngramTable) cells[0] += ", stays on disk";
    if (whole.component == Component::kVision) cells[0] += ", not loaded";
    for (size_t i = 0; i < splits.size(); ++i) {
      const int64_t sum = parts[i][row].split + parts[i][row].replicated;
      cells.push_back(gigabytes(sum));
      const bool is_loaded =
          whole.component != Component::kEngramTable && whole.component != Component::kVision;
      if (is_loaded) totals[i] += sum;
    }
    table.add(cells);
  }
  std::vector<std::string> cells = {"loaded"};
  for (const int64_t total : totals) cells.push_back(gigabytes(total));
  table.add(cells);
  return table.markdown();
}

}  // namespace

std::string rank_tables_markdown(const ModelConfig& config, int64_t most) {
  const std::vector<RankSplit> splits = possible_splits(config, most);
  return sizes(splits) + "\n" + bytes(config, splits);
}

}  // namespace spark::model
