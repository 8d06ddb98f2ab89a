// A model with something between it and the engine: every call goes through, and a test or a measurement
// overrides the one it wants to meddle with.
//
//   class Counted : public WrappedModel {
//     using WrappedModel::WrappedModel;
//     std::span<const float> run(std::span<const StepRow> rows) override { ++steps; return inner_.run(rows);
//     }
//   };
#pragma once

#include "engine/forward/step_model.h"

namespace spark::engine {

class WrappedModel : public StepModel {
 public:
  explicit WrappedModel(StepModel& inner) : inner_(inner) {}

  int32_t vocab_size() const override { return inner_.vocab_size(); }
  int32_t max_sequences() const override { return inner_.max_sequences(); }
  int32_t max_context() const override { return inner_.max_context(); }
  int32_t max_step_rows() const override { return inner_.max_step_rows(); }
  int32_t max_rollback() const override { return inner_.max_rollback(); }
  int32_t decoder_window() const override { return inner_.decoder_window(); }
  void open_sequence(int32_t slot) override { inner_.open_sequence(slot); }
  void close_sequence(int32_t slot) override { inner_.close_sequence(slot); }
  void prefetch(std::span<const int32_t> tokens, int32_t position) override {
    inner_.prefetch(tokens, position);
  }
  int32_t prefetch_lead() const override { return inner_.prefetch_lead(); }
  TableCounters table_counters() const override { return inner_.table_counters(); }
  int32_t start_sequence(int32_t slot, const SequenceStart& start) override {
    return inner_.start_sequence(slot, start);
  }
  bool has_room(std::span<const SequenceLength> lengths) const override { return inner_.has_room(lengths); }
  int32_t longest_sequence() const override { return inner_.longest_sequence(); }
  CacheOccupancy cache_occupancy() const override { return inner_.cache_occupancy(); }
  std::span<const float> run(std::span<const StepRow> rows) override { return inner_.run(rows); }
  int32_t max_drafts() const override { return inner_.max_drafts(); }
  Drafts draft(std::span<const DraftRequest> requests) override { return inner_.draft(requests); }

 protected:
  StepModel& inner_;
};

}  // namespace spark::engine
