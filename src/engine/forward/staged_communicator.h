// Lets a communicator that works on the host serve a backend whose memory the host cannot address: rows are
// downloaded, exchanged and uploaded. Where the host can, or the communicator works on the device itself,
// calls pass through, behind what the backend has still to do; a rank alone has its backend round its sums.
//
//   StagedCommunicator communicator(inner, backend);
#pragma once

#include <vector>

#include "engine/collective/communicator.h"
#include "engine/kernels/backend.h"

namespace spark::engine {

class StagedCommunicator final : public Communicator {
 public:
  // Both outlive this.
  StagedCommunicator(Communicator& inner, Backend& backend)
      : inner_(inner),
        backend_(backend),
        staged_(!backend.host_memory() && !inner.recordable() && inner.ranks() > 1),
        stages_partials_(!backend.host_memory() && (staged_ || inner.ranks() == 1)) {}

  int32_t rank() const override { return inner_.rank(); }
  int32_t ranks() const override { return inner_.ranks(); }
  bool recordable() const override { return inner_.recordable(); }
  void sum_rows(uint16_t* x, int32_t rows, int32_t cols) override;
  void sum_own_rows(uint16_t* x, int32_t rows, int32_t cols) override;
  void sum_partials(const PartialSums& args) override;
  void gather_rows(std::span<const SpreadRows> arrays, int32_t rows) override;
  void gather_columns(const GatherColumns& args) override;
  void note(std::span<const uint8_t> call) override { inner_.note(call); }
  std::string meet(std::string_view failure) override { return inner_.meet(failure); }

 private:
  bool passes();

  Communicator& inner_;
  Backend& backend_;
  const bool staged_;
  const bool stages_partials_;  // one rank alone rounds them too, on the host
  std::vector<double> partials_;
  std::vector<uint16_t> rows_;
  std::vector<uint8_t> part_;
  std::vector<uint8_t> all_;
};

}  // namespace spark::engine
