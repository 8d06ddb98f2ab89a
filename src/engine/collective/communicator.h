// What the ranks of a tensor-parallel group exchange. The forward pass calls these at the places where a
// split width is joined again; with one rank they do nothing.
//
//   communicator.sum_rows(y, rows, hidden);              // after the output projection and the experts
//   communicator.gather_columns({.part = part, ...});    // after projections split by their outputs
//   communicator.sum_own_rows(y, rows, hidden);          // steps of many rows: the residual streams are
//   spread communicator.gather_rows({{x, row_bytes}}, rows);    // over the ranks by rows, and joined where
//   all are read communicator.note(plan);                             // every rank was told to do the same
//   ... communicator.meet(failure);                          // ... and every rank is ready for it
//
// Buffers lie in the backend's memory; calls are ordered with its operations. Sums add the ranks' BF16 values
// in FP32 in rank order and round once, so a row's result depends on nothing but the row; sum_partials() adds
// what no rank has rounded in double, so that it does not depend on the number of ranks either. Everything
// throws RankLost (transport.h) when a rank of the group is gone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/numeric/partial_sums.h"

namespace spark::engine {

// all[r][rank * part_cols + c] = that rank's part[r][c], for all columns below all_cols: what a split pads
// beyond them is dropped.
struct GatherColumns {
  const void* part = nullptr;  // [rows][part_cols]
  int32_t rows = 0;
  int32_t part_cols = 0;
  int32_t all_cols = 0;
  int32_t element_bytes = 0;     // 2 or 4
  void* all = nullptr;           // [rows][all_cols]
  bool first_rank_only = false;  // the other ranks leave `all` as it is
};

// Rows that a rank owns while the rows of a step are spread over the ranks: as many each, the last ones less.
struct RowRange {
  int32_t first = 0;
  int32_t rows = 0;
};
constexpr RowRange own_rows(int32_t rows, int32_t rank, int32_t ranks) {
  const int32_t even = (rows + ranks - 1) / ranks;
  const int32_t first = even * rank < rows ? even * rank : rows;
  return {first, rows - first < even ? rows - first : even};
}

// An array [rows][row_bytes] of which each rank holds its own rows.
struct SpreadRows {
  void* rows = nullptr;
  int64_t row_bytes = 0;
};

// y = round_bf16( sum over ranks of their x ), in double, rank 0 first; one rank alone rounds as well. With
// several terms each is rounded so, and y is their sum in FP32 in order, rounded again.
struct PartialSums {
  const double* x = nullptr;  // [rows][terms][cols]
  int32_t rows = 0;
  int32_t terms = 1;
  int32_t cols = 0;
  uint16_t* y = nullptr;       // BF16 [rows][cols]
  bool own_rows_only = false;  // as sum_own_rows(): y's other rows are left as they are
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t ranks() const = 0;

  // Whether a device may record these calls with its operations and replay them (Backend::run_recorded). A
  // communicator that works on the host cannot be recorded.
  virtual bool recordable() const = 0;

  // In place, BF16 [rows][cols].
  virtual void sum_rows(uint16_t* x, int32_t rows, int32_t cols) = 0;
  // The same sums, of this rank's own rows only; the others are left as they are.
  virtual void sum_own_rows(uint16_t* x, int32_t rows, int32_t cols) = 0;
  virtual void sum_partials(const PartialSums& args) = 0;
  // In place: every rank gets all rows.
  virtual void gather_rows(std::span<const SpreadRows> arrays, int32_t rows) = 0;
  virtual void gather_columns(const GatherColumns& args) = 0;

  // Mixes what this rank was told to do into its running digest.
  virtual void note(std::span<const uint8_t> call) = 0;
  // Where all ranks meet before a step that they can only do together. `failure` says why this rank cannot,
  // and is empty when it can. Returns what the lowest rank that cannot has said, empty when all can: then,
  // and only then, every rank goes on. Throws RankLost when the digests differ.
  virtual std::string meet(std::string_view failure) = 0;
};

// A group of one: nothing to exchange. gather_columns() must not be called, as `part` is `all` already.
class SoloCommunicator final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t ranks() const override { return 1; }
  bool recordable() const override { return true; }
  void sum_rows(uint16_t*, int32_t, int32_t) override {}
  void sum_own_rows(uint16_t*, int32_t, int32_t) override {}
  void sum_partials(const PartialSums& args) override {
    add_partials({&args.x, 1}, args.rows, args.terms, args.cols, args.y);
  }
  void gather_rows(std::span<const SpreadRows>, int32_t) override {}
  void gather_columns(const GatherColumns&) override {}
  void note(std::span<const uint8_t>) override {}
  std::string meet(std::string_view failure) override { return std::string(failure); }
};

}  // namespace spark::engine
