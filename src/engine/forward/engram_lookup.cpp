#include "engine/forward/engram_lookup.h"

#include <string>

#include "common/error.h"
#include "engine/forward/scratch.h"

namespace spark::engine {

EngramLookup::EngramLookup(Backend& backend, const Checkpoint& checkpoint, const model::ModelConfig& config,
                           std::vector<int32_t> classes, int32_t max_sequences, int32_t max_rows)
    : backend_(backend),
      hash_(config, config.engram_layer_ids.empty()
                        ? 0
                        : classes.at(static_cast<size_t>(config.engram_pad_token_id))),
      classes_(std::move(classes)),
      histories_(static_cast<size_t>(max_sequences)) {
  for (const int64_t layer : config.engram_layer_ids) {
    const std::string name = "layers." + std::to_string(layer) + ".engram.embed";
    const int64_t width = config.engram_width();
    tables_.push_back({.code_rows = checkpoint.rows(name + ".weight"),
                       .scale_rows = checkpoint.rows(name + ".scale"),
                       .codes = allocate_array<uint8_t>(backend, max_rows * width, "Engram rows"),
                       .scales = allocate_array<uint8_t>(backend, max_rows * width / 32, "Engram rows")});
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

void EngramLookup::fetch(std::span<const EngramRow> rows) {
  const size_t columns = static_cast<size_t>(hash_.columns());
  ids_.resize(rows.size() * columns);
  for (size_t table = 0; table < tables_.size(); ++table) {
    for (size_t i = 0; i < rows.size(); ++i) {
      row_ids(static_cast<int64_t>(table), rows[i], {ids_.data() + i * columns, columns});
    }
    const auto read = [&](const RowReader& reader, uint8_t* to) {
      staging_.resize(ids_.size() * reader.row_bytes());
      reader.read_rows(ids_, staging_);
      backend_.upload(to, staging_.data(), staging_.size());
    };
    read(tables_[table].code_rows, tables_[table].codes);
    read(tables_[table].scale_rows, tables_[table].scales);
  }
}

}  // namespace spark::engine
