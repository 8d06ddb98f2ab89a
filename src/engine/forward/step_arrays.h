// The per-row arrays of a step (StepRows), gathered on the host and moved to the backend in one upload.
//
//   StepArrays arrays(backend, 512);
//   arrays.clear();
//   arrays.add({.token = 17, .position = 4, .sequence = 0});   // rows of a sequence one after the other
//   const StepRows step = arrays.upload();
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/backend.h"

namespace spark::engine {

struct StepArrayRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;
  int32_t window_start = 0;
  bool is_image = false;
  int32_t override_row = -1;  // row of the injected embeddings, -1: the table's
  int32_t window_end = -1;    // drafter rows only
};

class StepArrays {
 public:
  StepArrays(Backend& backend, int32_t max_rows);

  void clear() { rows_.clear(); }
  void add(const StepArrayRow& row) { rows_.push_back(row); }
  int32_t size() const { return static_cast<int32_t>(rows_.size()); }
  const std::vector<StepArrayRow>& rows() const { return rows_; }

  // The arrays' addresses depend only on the number of rows.
  StepRows upload();
  const int32_t* override_rows() const { return field(kOverrideRow); }
  const int32_t* window_end() const { return field(kWindowEnd); }

 private:
  enum Field { kToken, kPosition, kSequence, kFirstRow, kLastRow, kWindowStart, kOverrideRow, kWindowEnd };
  static constexpr size_t kFields = 8;
  const int32_t* field(Field f) const { return device_ + static_cast<size_t>(f) * rows_.size(); }
  void set_sequence_bounds();

  Backend& backend_;
  int32_t max_rows_;
  std::vector<StepArrayRow> rows_;
  std::vector<int32_t> host_;  // [kFields][rows], then is_image as bytes
  int32_t* device_ = nullptr;
};

}  // namespace spark::engine
