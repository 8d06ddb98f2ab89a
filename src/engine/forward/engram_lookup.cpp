#include "engine/forward/engram_lookup.h"

#include <string>

#include "common/error.h"
#include "engine/forward/scratch.h"

namespace spark::engine {

EngramLookup::EngramLookup(Backend& backend, const Checkpoint& checkpoint, const model::ModelConfig& config,
                           std::vector<int32_t> classes, int32_t max_sequences, int32_t max_rows,
                           const TableReaderOptions& options)
    : backend_(backend),
      hash_(config, config.engram_layer_ids.empty()
                        ? 0
                        : classes.at(static_cast<size_t>(config.engram_pad_token_id))),
      classes_(std::move(classes)),
      histories_(static_cast<size_t>(max_sequences)) {
  for (const int64_t layer : config.engram_layer_ids) {
    const std::string name = "layers." + std::to_string(layer) + ".engram.embed";
    const int64_t width = config.engram_width();
    std::vector<RowReader> parts = {checkpoint.rows(name + ".weight"), checkpoint.rows(name + ".scale")};
    tables_.push_back({.reader = std::make_unique<TableReader>(std::move(parts), options),
                       .codes = allocate_array<uint8_t>(backend, max_rows * width, "Engram rows"),
                       .scales = allocate_array<uint8_t>(backend, max_rows * width / 32, "Engram rows"),
                       .staged_codes = {},
                       .staged_scales = {}});
  }
}

void EngramLookup::truncate(int32_t sequence, int32_t length) {
  std::vector<int32_t>& history = histories_[static_cast<size_t>(sequence)];
  SPARK_CHECK(static_cast<size_t>(length) <= history.size());
  history.resize(static_cast<size_t>(length));
}

void EngramLookup::append(int32_t sequence, int32_t token) {
  const int32_t token_class = tables_.empty() ? 0 : classes_[static_cast<size_t>(token)];
  histories_[static_cast<size_t>(sequence)].push_back(token_class);
}

void EngramLookup::append_dead(int32_t sequence) {
  histories_[static_cast<size_t>(sequence)].push_back(model::kDeadToken);
}

void EngramLookup::row_ids(int64_t table, const EngramRow& row, std::span<int64_t> ids) const {
  const std::vector<int32_t>& history = histories_[static_cast<size_t>(row.sequence)];
  hash_.row_ids(table, {history.data(), static_cast<size_t>(row.position) + 1}, ids);
}

int32_t EngramLookup::lead() const {
  return tables_.empty() ? 0 : static_cast<int32_t>(hash_.look_back()) - 1;
}

void EngramLookup::prefetch(std::span<const int32_t> tokens, int32_t position) {
  const size_t first = position == 0 ? 0 : static_cast<size_t>(lead());
  if (tables_.empty() || tokens.size() <= first) return;
  const size_t columns = static_cast<size_t>(hash_.columns());
  std::vector<int32_t> history;
  for (const int32_t token : tokens) history.push_back(classes_[static_cast<size_t>(token)]);
  std::vector<int64_t> ids((tokens.size() - first) * columns);
  for (size_t table = 0; table < tables_.size(); ++table) {
    for (size_t t = first; t < tokens.size(); ++t) {
      hash_.row_ids(static_cast<int64_t>(table), {history.data(), t + 1},
                    {ids.data() + (t - first) * columns, columns});
    }
    tables_[table].reader->prefetch(ids);
  }
}

void EngramLookup::begin_fetch(std::span<const EngramRow> rows) {
  const size_t columns = static_cast<size_t>(hash_.columns());
  ids_.resize(rows.size() * columns);
  for (size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    for (size_t t = 0; t < rows.size(); ++t) {
      row_ids(static_cast<int64_t>(i), rows[t], {ids_.data() + t * columns, columns});
    }
    table.staged_codes.resize(ids_.size() * table.reader->row_bytes(0));
    table.staged_scales.resize(ids_.size() * table.reader->row_bytes(1));
    table.reader->begin(ids_, std::vector<std::span<uint8_t>>{table.staged_codes, table.staged_scales});
  }
}

void EngramLookup::finish_fetch() {
  for (Table& table : tables_) {
    table.reader->finish();
    backend_.upload(table.codes, table.staged_codes.data(), table.staged_codes.size());
    backend_.upload(table.scales, table.staged_scales.data(), table.staged_scales.size());
  }
}

void EngramLookup::wait_for_prefetches() const {
  for (const Table& table : tables_) table.reader->wait_for_prefetches();
}

TableCounters EngramLookup::counters() const {
  TableCounters sum;
  for (const Table& table : tables_) sum += table.reader->counters();
  return sum;
}

}  // namespace spark::engine
