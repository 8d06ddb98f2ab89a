// The calls of a StepModel that change it, as data: rank 0 sends each to the other ranks, which replay it.
//
// A call is a struct with its arguments, a `fields` that names them once for writing and reading, and a
// `replay` for the ranks that follow. To add one: write the struct, append it to StepCall, and forward the
// virtual function in LeadingModel (ranked_model.h).
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "engine/collective/byte_stream.h"
#include "engine/forward/step_model.h"

namespace spark::engine {

// The leader is done; so are the others.
struct StopCall {
  template <typename Archive>
  void fields(Archive&) {}
  void replay(StepModel&) const {}
};

struct OpenCall {
  int32_t sequence = 0;
  template <typename Archive>
  void fields(Archive& archive) {
    archive(sequence);
  }
  void replay(StepModel& model) const { model.open_sequence(sequence); }
};

struct StartCall {
  int32_t sequence = 0;
  std::vector<int32_t> tokens;
  int32_t prompt_tokens = 0;
  uint64_t cache_salt = 0;
  template <typename Archive>
  void fields(Archive& archive) {
    archive(sequence);
    archive(tokens);
    archive(prompt_tokens);
    archive(cache_salt);
  }
  void replay(StepModel& model) const {
    model.start_sequence(sequence,
                         {.tokens = tokens, .prompt_tokens = prompt_tokens, .cache_salt = cache_salt});
  }
};

struct CloseCall {
  int32_t sequence = 0;
  template <typename Archive>
  void fields(Archive& archive) {
    archive(sequence);
  }
  void replay(StepModel& model) const { model.close_sequence(sequence); }
};

struct PrefetchCall {
  std::vector<int32_t> tokens;
  int32_t position = 0;
  template <typename Archive>
  void fields(Archive& archive) {
    archive(tokens);
    archive(position);
  }
  void replay(StepModel& model) const { model.prefetch(tokens, position); }
};

struct RunCall {
  std::vector<StepRow> rows;
  template <typename Archive>
  void fields(Archive& archive) {
    archive.list(rows, [&](StepRow& row) {
      archive(row.sequence);
      archive(row.token);
      archive(row.position);
      archive(row.wants_logits);
      archive(row.encoder_only);
    });
  }
  void replay(StepModel& model) const { model.run(rows); }
};

struct DraftCall {
  std::vector<DraftRequest> requests;
  template <typename Archive>
  void fields(Archive& archive) {
    archive.list(requests, [&](DraftRequest& request) {
      archive(request.sequence);
      archive(request.anchor);
      archive(request.position);
      archive(request.filter.temperature);
      archive(request.filter.top_k);
      archive(request.filter.top_p);
      archive(request.filter.min_p);
      // Numbers nobody draws with need not travel.
      if (request.filter.temperature > 0) {
        for (double& uniform : request.uniforms) archive(uniform);
      }
    });
  }
  void replay(StepModel& model) const { model.draft(requests); }
};

using StepCall = std::variant<StopCall, OpenCall, StartCall, CloseCall, PrefetchCall, RunCall, DraftCall>;

void write_call(ByteWriter& out, const StepCall& call);
// Throws Error for bytes that are no call.
StepCall read_call(std::span<const uint8_t> bytes);

}  // namespace spark::engine
