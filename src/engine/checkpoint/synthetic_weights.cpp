#include "engine/checkpoint/synthetic_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/error.h"
#include "engine/numeric/numeric.h"

namespace spark::engine {
namespace {

using model::Dtype;

// Shares of an embedding: the common direction and the token's own (squares add to one).
constexpr float kSharedPart = 0.6f;
constexpr float kOwnPart = 0.8f;

// Standard deviation of a projection's output for inputs of about unit size.
constexpr float kReadGain = 1.2f;
constexpr float kQueryGain = 1.3f;
constexpr float kAttentionWriteGain = 0.25f;
constexpr float kExpertWriteGain = 0.14f;
constexpr float kEngramWriteGain = 0.4f;
constexpr float kRouterGain = 1.5f;

// Logit of the favoured successor per unit of the token's own direction, and of everything else.
constexpr float kSuccessorGain = 0.65f;
constexpr float kContextGain = 1.0f;
constexpr float kMarkovGain = 5.0f;

bool ends_with(const std::string& text, const char* ending) {
  const size_t length = std::strlen(ending);
  return text.size() >= length && text.compare(text.size() - length, length, ending) == 0;
}

std::string without(const std::string& text, const char* ending) {
  return ends_with(text, ending) ? text.substr(0, text.size() - std::strlen(ending)) : text;
}

// What a tensor is for, whatever its layer, expert or form: "attn.wq_b", "w1", "hc_ffn_fn".
std::string role_of(const std::string& name) {
  std::string role = without(name, ".weight");
  if (role.rfind("layers.", 0) == 0 || role.rfind("mtp.", 0) == 0) {
    role = role.substr(role.find('.', role.find('.') + 1) + 1);
  }
  const size_t expert = role.find("experts.");
  return expert == std::string::npos ? role : role.substr(role.rfind('.') + 1);
}

template <typename T>
std::vector<uint8_t> as_bytes(const std::vector<T>& values) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

float root(int64_t value) {
  return std::sqrt(static_cast<float>(value));
}

// Where channel i of an index query or key comes from in a query or latent of the attention: the rotated tail
// keeps its place at the end, the rest is thinned evenly.
int64_t attention_channel(const model::ModelConfig& c, int64_t i) {
  const int64_t rotated = c.qk_rope_head_dim;
  const int64_t plain = c.index_head_dim - rotated;
  if (i >= plain) return c.head_dim - rotated + (i - plain);
  return i * (c.head_dim - rotated) / plain;
}

}  // namespace

SyntheticWeights::SyntheticWeights(const model::ModelConfig& config,
                                   const std::vector<int32_t>& fluent_tokens, uint64_t seed)
    : config_(config),
      seed_(seed),
      subspace_(seed, config.hidden_size),
      predecessor_(static_cast<size_t>(config.vocab_size), -1) {
  const CounterRandom random(seed, "successors");
  std::vector<std::pair<uint64_t, int32_t>> cycle;
  for (const int32_t token : fluent_tokens)
    cycle.emplace_back(random.bits(static_cast<uint64_t>(token)), token);
  std::sort(cycle.begin(), cycle.end());
  for (size_t i = 0; i < cycle.size(); ++i) {
    predecessor_[static_cast<size_t>(cycle[(i + 1) % cycle.size()].second)] = cycle[i].second;
  }
}

SyntheticWeights::Floats SyntheticWeights::bells(const std::string& name, int64_t rows, int64_t columns,
                                                 float deviation) const {
  const CounterRandom random(seed_, name);
  const float scale = deviation / kBellDeviation;
  Floats result(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<float>(random.bell(i)) * scale;
  return result;
}

SyntheticWeights::Floats SyntheticWeights::reading(const std::string& name, int64_t rows, float gain) const {
  const CounterRandom random(seed_, name);
  const auto width = static_cast<size_t>(config_.hidden_size);
  const float scale = gain / (subspace_.deviation() * root(config_.hidden_size));
  Floats result;
  result.reserve(static_cast<size_t>(rows) * width);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (const int32_t value : subspace_.draw(random, row * width))
      result.push_back(static_cast<float>(value) * scale);
  }
  return result;
}

SyntheticWeights::Floats SyntheticWeights::writing(const std::string& name, int64_t columns,
                                                   float gain) const {
  const CounterRandom random(seed_, name);
  const auto height = static_cast<size_t>(config_.hidden_size);
  const auto width = static_cast<size_t>(columns);
  const float scale = gain / (subspace_.deviation() * root(columns));
  Floats result(height * width);
  for (size_t column = 0; column < width; ++column) {
    const auto drawn = subspace_.draw(random, column * height);
    for (size_t row = 0; row < height; ++row)
      result[row * width + column] = static_cast<float>(drawn[row]) * scale;
  }
  return result;
}

// Rows [from, from + count) of one head's query projection: a part that all heads share and one of its own.
SyntheticWeights::Floats SyntheticWeights::query_rows(const std::string& attention, int64_t head,
                                                      int64_t from, int64_t count) const {
  constexpr float kCommon = 0.8f;
  constexpr float kOwn = 0.6f;
  const int64_t columns = config_.q_lora_rank;
  const CounterRandom common(seed_, attention + "wq_b.common");
  const CounterRandom own(seed_, attention + "wq_b");
  const float scale = kQueryGain / (kBellDeviation * root(columns));
  Floats result;
  for (int64_t i = from * columns; i < (from + count) * columns; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const float shared_part = static_cast<float>(common.bell(at)) * kCommon;
    const float own_part =
        static_cast<float>(own.bell(static_cast<uint64_t>(head * config_.head_dim * columns) + at)) * kOwn;
    result.push_back((shared_part + own_part) * scale);
  }
  return result;
}

SyntheticWeights::Floats SyntheticWeights::index_query(const std::string& name,
                                                       const std::string& attention) const {
  Floats result = bells(name, config_.index_width(), config_.q_lora_rank, 0.1f / root(config_.q_lora_rank));
  size_t at = 0;
  for (int64_t head = 0; head < config_.index_n_heads; ++head) {
    const int64_t source = head * config_.num_attention_heads / config_.index_n_heads;
    for (int64_t i = 0; i < config_.index_head_dim; ++i) {
      for (const float value : query_rows(attention, source, attention_channel(config_, i), 1))
        result[at++] += value;
    }
  }
  return result;
}

SyntheticWeights::Floats SyntheticWeights::index_key(const std::string& name) const {
  Floats result = bells(name, config_.index_head_dim, config_.head_dim, 0.1f / root(config_.head_dim));
  for (int64_t i = 0; i < config_.index_head_dim; ++i) {
    result[static_cast<size_t>(i * config_.head_dim + attention_channel(config_, i))] += 1.0f;
  }
  return result;
}

// Keys of the streams first, then the value, which alone is written to the streams.
SyntheticWeights::Floats SyntheticWeights::engram_projection(const std::string& name, int64_t columns) const {
  Floats result = bells(name + ".key", config_.stream_width(), columns, 1.0f / root(columns));
  const Floats value = writing(name + ".value", columns, kEngramWriteGain);
  result.insert(result.end(), value.begin(), value.end());
  return result;
}

// The mean of the aux states, disturbed a little.
SyntheticWeights::Floats SyntheticWeights::main_projection(const std::string& name) const {
  const int64_t columns = config_.main_proj_input();
  const auto targets = static_cast<int64_t>(config_.dspark_target_layer_ids.size());
  Floats result = bells(name, config_.hidden_size, columns, 0.3f / root(columns));
  for (int64_t row = 0; row < config_.hidden_size; ++row) {
    for (int64_t target = 0; target < targets; ++target) {
      result[static_cast<size_t>(row * columns + target * config_.hidden_size + row)] +=
          1.0f / static_cast<float>(targets);
    }
  }
  return result;
}

// A token's own part of its embedding, components of unit size.
SyntheticWeights::Floats SyntheticWeights::own_direction(int64_t token) const {
  return bells("token." + std::to_string(token), 1, config_.hidden_size, 1.0f);
}

// embed, head and the Markov tables: one row per token.
SyntheticWeights::Floats SyntheticWeights::vocabulary_values(const std::string& name, const std::string& role,
                                                             int64_t rows, int64_t columns) const {
  const auto width = static_cast<size_t>(columns);
  const bool is_head = role == "head";
  Floats result(static_cast<size_t>(rows) * width, 0.0f);
  const Floats context = is_head ? reading(name, rows, kContextGain) : Floats();
  const CounterRandom oddities(seed_, name + ".oddities");
  for (int64_t token = 0; token < rows; ++token) {
    float* row = result.data() + static_cast<size_t>(token) * width;
    const int32_t before = predecessor_[static_cast<size_t>(token)];
    if (role == "embed") {
      // The drafter's placeholder says nothing about what follows; its drafts rely on the Markov head.
      const float own_part = token == config_.dspark_noise_token_id ? 0.05f : kOwnPart;
      const Floats own = own_direction(token);
      for (size_t i = 0; i < width; ++i) {
        row[i] = static_cast<float>(subspace_.shared_direction()[i]) * kSharedPart + own[i] * own_part;
      }
    } else if (is_head) {
      const Floats own = before < 0 ? Floats(width, 0.0f) : own_direction(before);
      const float own_scale = kSuccessorGain / root(columns);
      const float context_scale = before < 0 ? 0.25f : 1.0f;  // what is not fluent stays unlikely
      const float* mixed = context.data() + static_cast<size_t>(token) * width;
      for (size_t i = 0; i < width; ++i) {
        row[i] = own[i] * own_scale + mixed[i] * context_scale;
        const uint64_t odd = oddities.bits(static_cast<uint64_t>(token) * width + i) >> 48;
        if (odd < 4) row[i] = 0.0f;
        if (odd >= 4 && odd < 12) row[i] *= 0x1p-16f;
        if (odd >= 12 && odd < 14) row[i] = row[i] < 0 ? -1.25f : 1.25f;
      }
    } else {
      const bool is_embedding = role == "markov_head.embed";
      const int64_t of = is_embedding ? token : before;
      if (of < 0) continue;
      const Floats direction = bells("markov." + std::to_string(of), 1, columns, 1.0f / root(columns));
      for (size_t i = 0; i < width; ++i) row[i] = direction[i] * (is_embedding ? 1.0f : kMarkovGain);
    }
  }
  return result;
}

SyntheticWeights::Floats SyntheticWeights::values(const std::string& name, const std::string& role,
                                                  int64_t rows, int64_t columns) const {
  const std::string attention = name.substr(0, name.find("attn.") + 5);
  if (role == "attn.wq_a" || role == "attn.wkv") return reading(name, rows, kReadGain);
  if (role == "attn.compressor.wgate") return reading(name, rows, kReadGain);
  if (role == "attn.compressor.wkv") {  // latents like the window's, so that queries fit both
    Floats result = reading(attention + "wkv", rows, 0.8f * kReadGain);
    const Floats own = reading(name, rows, 0.6f * kReadGain);
    for (size_t i = 0; i < result.size(); ++i) result[i] += own[i];
    return result;
  }
  if (role == "attn.wq_b") {
    Floats result;
    for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
      const Floats part = query_rows(attention, head, 0, config_.head_dim);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }
  if (role == "attn.indexer.wq_b") return index_query(name, attention);
  if (role == "attn.indexer.wk") return index_key(name);
  if (role == "attn.indexer.weights_proj" || role == "confidence_head.proj") {
    Floats result = bells(name, rows, columns, 0.3f / root(columns));
    const float scale = (role == "confidence_head.proj" ? 0.5f : 1.0f) /
                        (kSharedPart * static_cast<float>(config_.hidden_size));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < config_.hidden_size; ++i) {
        result[static_cast<size_t>(row * columns + i)] +=
            static_cast<float>(subspace_.shared_direction()[static_cast<size_t>(i)]) * scale;
      }
    }
    return result;
  }
  if (role == "attn.wo_b") return writing(name, columns, kAttentionWriteGain);
  if (role == "ffn.gate") return reading(name, rows, kRouterGain);
  if (role == "w1" || role == "w3") return reading(name, rows, kReadGain);
  if (role == "w2") return writing(name, columns, kExpertWriteGain);
  if (role == "engram.wkv") return engram_projection(name, columns);
  if (role == "main_proj") return main_projection(name);
  if (role == "hc_attn_fn" || role == "hc_ffn_fn") return bells(name, rows, columns, 0.7f / root(columns));
  if (role == "engram.q_weight" || role == "engram.k_weight") {
    Floats result = bells(name, rows, columns, 0.3f);
    for (float& value : result) value += 1.0f;
    return result;
  }
  if (role == "embed" || role == "head" || role.rfind("markov_head.", 0) == 0) {
    return vocabulary_values(name, role, rows, columns);
  }
  return bells(name, rows, columns, 1.0f / root(columns));  // attn.wo_a, the vision tower
}

SyntheticWeights::Floats SyntheticWeights::vector_values(const std::string& name, const std::string& role,
                                                         int64_t size) const {
  const CounterRandom random(seed_, name);
  Floats result(static_cast<size_t>(size));
  for (size_t i = 0; i < result.size(); ++i) result[i] = random.uniform(i);
  if (role.find("norm") != std::string::npos) {
    for (float& value : result) value = 1.0f + 0.25f * value;
  } else if (role == "hc_attn_scale" || role == "hc_ffn_scale") {
    for (float& value : result) value = 0.75f + 0.25f * value;
  } else if (role == "hc_attn_base" || role == "hc_ffn_base") {
    const auto streams = static_cast<size_t>(config_.hc_mult);
    for (size_t k = 0; k < streams; ++k)
      result[2 * streams + k * streams + k] += 1.5f;  // streams keep to themselves
  } else if (role == "ffn.gate.bias" || role == "ffn.gate.bias_vl") {
    for (float& value : result) value *= 0.4f;
  } else if (role.rfind("image_", 0) == 0) {
    const Floats own = bells(name + ".own", 1, size, kOwnPart);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = static_cast<float>(subspace_.shared_direction()[i]) * kSharedPart + own[i];
    }
  }
  return result;  // attn_sink and biases: -1 .. 1
}

void SyntheticWeights::quantise_table(const std::string& name, int64_t rows, int64_t columns) {
  constexpr int64_t kZeroRow = 5;
  const CounterRandom random(seed_, name + ".rows");
  Floats table = bells(name, rows, columns, 1.0f);
  const auto width = static_cast<size_t>(columns);
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t bits = random.bits(static_cast<uint64_t>(row));
    float scale = 0.5f + static_cast<float>(bits & 1023) * (1.0f / 1024);
    if ((bits >> 10) % 61 == 0) scale *= 0x1p-20f;  // below the activation quantiser's floor
    if (row == kZeroRow) scale = 0;
    float* values = table.data() + static_cast<size_t>(row) * width;
    for (size_t i = 0; i < width; ++i) values[i] *= scale;
  }
  quantise_fp8_rows32(table, latest_.codes, latest_.scales);
  for (size_t block = 0; block < latest_.scales.size(); ++block) {
    if (random.bits(static_cast<uint64_t>(rows) + block) % 3 != 0) continue;
    const uint8_t wider = ++latest_.scales[block];
    for (size_t i = block * kFp8Block; i < (block + 1) * kFp8Block; ++i) {
      latest_.codes[i] = float_to_e4m3(table[i] / ue8m0_to_float(wider));
    }
  }
}

void SyntheticWeights::quantise(const model::TensorEntry& tensor, const std::string& name) {
  if (latest_.name == name) return;
  const bool is_scale = tensor.dtype == Dtype::kF8E8m0;
  const bool is_table = ends_with(name, "engram.embed");
  const bool is_fp4 = name.find(".ffn.experts.") != std::string::npos;
  const int64_t rows = tensor.shape[0] * (is_scale && !is_table && !is_fp4 ? model::kBlock : 1);
  const int64_t columns = tensor.shape[1] * (is_scale ? model::kBlock : is_fp4 ? 2 : 1);
  const auto count = static_cast<size_t>(rows * columns);
  latest_.name = name;
  latest_.codes.assign(is_fp4 ? count / 2 : count, 0);
  latest_.scales.assign(is_table || is_fp4 ? count / kFp8Block : count / (kWeightTile * kWeightTile), 0);
  if (is_table) {
    quantise_table(name, rows, columns);
    return;
  }
  const Floats matrix = values(name, role_of(name), rows, columns);
  if (is_fp4) {
    quantise_fp4_rows32(matrix, latest_.codes, latest_.scales);
  } else {
    quantise_fp8_tiles32(matrix, static_cast<size_t>(rows), static_cast<size_t>(columns), latest_.codes,
                         latest_.scales);
  }
}

std::vector<uint8_t> SyntheticWeights::bytes(const model::TensorEntry& tensor) {
  switch (tensor.dtype) {
    case Dtype::kF8E8m0:
      quantise(tensor, without(tensor.name, ".scale"));
      return latest_.scales;
    case Dtype::kF8E4m3:
    case Dtype::kI8:
      quantise(tensor, without(tensor.name, ".weight"));
      return latest_.codes;
    default:
      break;
  }
  const std::string name = without(tensor.name, ".weight");
  const Floats floats = tensor.shape.size() == 1
                            ? vector_values(name, role_of(name), tensor.shape[0])
                            : values(name, role_of(name), tensor.shape[0], tensor.shape[1]);
  if (tensor.dtype == Dtype::kF32) return as_bytes(floats);
  SPARK_CHECK(tensor.dtype == Dtype::kBf16);
  std::vector<uint16_t> rounded;
  rounded.reserve(floats.size());
  for (const float value : floats) rounded.push_back(float_to_bf16(value));
  return as_bytes(rounded);
}

}  // namespace spark::engine
