// The content of synthetic checkpoints' tensors.
//
//   SyntheticWeights weights(config, fluent_tokens, seed);
//   std::vector<uint8_t> bytes = weights.bytes(tensor);       // of any entry of tensor_catalogue(config)
//
// Plain random weights make a chaotic model: two correct computations that differ in the order of their sums
// drift apart, because one flipped rounding moves a code, which moves a selection, and nothing contracts the
// difference. These weights are random too, but
//   - sublayers write little compared with the residual state, and read from and write to half of the hidden
//   space;
//   - index queries and keys are made of the attention's own, so that entries near the selection's boundary
//   carry little
//     attention weight;
//   - all embeddings share a direction, which keeps the index heads' weights positive;
//   - the head favours one successor per token, and so does the drafter's Markov head, for usable greedy
//   margins;
//   - sinks, biases and stream mixing constants spread over O(1), so that a dropped term is seen;
//   - the head has exact zeros and exponents outside 112..126, Engram tables have rows of zeros, rows below
//   the
//     activation quantiser's floor and scales wider than needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/synthetic_random.h"
#include "model/config.h"
#include "model/tensors.h"

namespace spark::engine {

class SyntheticWeights {
 public:
  // `fluent_tokens` are those that greedy decoding should walk through, in one long cycle.
  SyntheticWeights(const model::ModelConfig& config, const std::vector<int32_t>& fluent_tokens,
                   uint64_t seed);

  // Little-endian content. Weight and scale of one matrix come from the same values; asking for both in a row
  // computes them once.
  std::vector<uint8_t> bytes(const model::TensorEntry& tensor);

 private:
  using Floats = std::vector<float>;

  struct Matrix {
    std::string name;  // without .weight or .scale
    std::vector<uint8_t> codes;
    std::vector<uint8_t> scales;
  };

  Floats values(const std::string& name, const std::string& role, int64_t rows, int64_t columns) const;
  Floats vocabulary_values(const std::string& name, const std::string& role, int64_t rows,
                           int64_t columns) const;
  Floats vector_values(const std::string& name, const std::string& role, int64_t size) const;

  Floats bells(const std::string& name, int64_t rows, int64_t columns, float deviation) const;
  Floats reading(const std::string& name, int64_t rows, float gain) const;     // [rows, hidden]
  Floats writing(const std::string& name, int64_t columns, float gain) const;  // [hidden, columns]
  Floats query_rows(const std::string& attention, int64_t head, int64_t from, int64_t count) const;
  Floats index_query(const std::string& name, const std::string& attention) const;
  Floats index_key(const std::string& name) const;
  Floats engram_projection(const std::string& name, int64_t columns) const;
  Floats main_projection(const std::string& name) const;
  Floats own_direction(int64_t token) const;

  void quantise(const model::TensorEntry& tensor, const std::string& name);
  void quantise_table(const std::string& name, int64_t rows, int64_t columns);

  model::ModelConfig config_;
  uint64_t seed_;
  Subspace subspace_;
  std::vector<int32_t> predecessor_;  // by token; -1: none
  Matrix latest_;
};

}  // namespace spark::engine
