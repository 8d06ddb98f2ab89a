// The communicator over a transport, for buffers that the host can address.
//
//   HostCommunicator communicator(transport);
//
// A small sum sends every rank's part to every other, one message each (one shot: the fewest hops). A large
// one is cut into one slice per rank: each rank adds up its slice and hands the result to the others. Both
// add in rank order and round once, so they give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/collective/communicator.h"
#include "engine/collective/transport.h"

namespace spark::engine {

// A sum with more bytes than this is cut into slices.
inline constexpr size_t kOneShotBytes = size_t{256} << 10;

class HostCommunicator final : public Communicator {
 public:
  // The transport outlives this.
  explicit HostCommunicator(Transport& transport, size_t one_shot_bytes = kOneShotBytes);

  int32_t rank() const override { return transport_.rank(); }
  int32_t ranks() const override { return transport_.ranks(); }
  bool recordable() const override { return false; }
  void sum_rows(uint16_t* x, int32_t rows, int32_t cols) override;
  void sum_own_rows(uint16_t* x, int32_t rows, int32_t cols) override;
  void sum_partials(const PartialSums& args) override;
  void gather_rows(std::span<const SpreadRows> arrays, int32_t rows) override;
  void gather_columns(const GatherColumns& args) override;
  void note(std::span<const uint8_t> call) override;
  std::string meet(std::string_view failure) override;

  uint64_t digest() const { return digest_; }

 private:
  void sum_at_once(std::span<uint16_t> x);
  // Sends each rank its slice of x, or all of it, and receives the others' parts of this rank's, in rank
  // order.
  template <typename T>
  std::span<const T> exchange_parts(std::span<const T> x, size_t slice, bool all_to_all);
  // Slice r of x is [r * slice, (r + 1) * slice), as far as x goes: adds up this rank's.
  void sum_own_slice(std::span<uint16_t> x, size_t slice);
  // In place: every rank gets all slices.
  void exchange_slices(std::span<uint8_t> x, size_t slice);

  Transport& transport_;
  const size_t one_shot_bytes_;
  std::vector<uint8_t> parts_;    // of the other ranks, in rank order
  std::vector<uint8_t> columns_;  // [ranks][rows][part_cols]
  uint64_t digest_ = 0;
};

// x[i] = round_bf16( sum over ranks of that rank's value ), FP32, rank 0 first. `parts` holds the values of
// the ranks other than `rank`, in rank order, x.size() each; x holds this rank's and takes the sum.
void add_in_rank_order(std::span<uint16_t> x, std::span<const uint16_t> parts, int32_t rank, int32_t ranks);

// A running digest: that of `bytes` after what `digest` stands for.
uint64_t extend_digest(uint64_t digest, std::span<const uint8_t> bytes);

}  // namespace spark::engine
