// What the ranks of a tensor-parallel group exchange. The forward pass calls these at the places where a
// split width is joined again; with one rank they do nothing.
//
//   communicator.sum_rows(y, rows, hidden);                    // after the output projection and the experts
//   communicator.gather_columns(part, rows, part_width, all);  // after projections split by their outputs
//
// Buffers lie in the backend's memory; calls are ordered with its operations. Sums add the ranks' BF16 values
// in FP32 in rank order and round once, so a row's result depends on nothing but the row.
#pragma once

#include <cstdint>

namespace spark::engine {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t ranks() const = 0;

  // In place, BF16 [rows][cols].
  virtual void sum_rows(uint16_t* x, int32_t rows, int32_t cols) = 0;
  // all[r][rank * part_cols + c] = that rank's part[r][c]; `element_bytes` is 2 or 4.
  virtual void gather_columns(const void* part, int32_t rows, int32_t part_cols, int32_t element_bytes,
                              void* all) = 0;
};

// A group of one: nothing to exchange. gather_columns() must not be called, as `part` is `all` already.
class SoloCommunicator final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t ranks() const override { return 1; }
  void sum_rows(uint16_t*, int32_t, int32_t) override {}
  void gather_columns(const void*, int32_t, int32_t, int32_t, void*) override {}
};

}  // namespace spark::engine
