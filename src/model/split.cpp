#include "model/split.h"

#include <algorithm>
#include <array>

namespace spark::model {
namespace {

// Vocabulary rows per rank are a multiple of this when there are several ranks.
constexpr int64_t kVocabularyMultiple = 64;

int64_t share(int64_t whole, int64_t ranks, int64_t multiple) {
  const int64_t even = (whole + ranks - 1) / ranks;
  return (even + multiple - 1) / multiple * multiple;
}

// Sizes of the whole model and of one rank, in the unit that a tensor is cut in.
struct Units {
  int64_t all = 0;
  int64_t rank = 0;
};

Units units_of(const RankSplit& split, SplitOver over) {
  switch (over) {
    case SplitOver::kNothing:
      break;
    case SplitOver::kGroups:
      return {split.all_groups, split.groups};
    case SplitOver::kExpertWidth:
      return {split.all_expert_width / kBlock, split.expert_width / kBlock};
    case SplitOver::kVocabulary:
      return {split.all_vocabulary, split.vocabulary};
    case SplitOver::kEngramOutput:
      return {split.all_engram_output / kBlock, split.engram_output / kBlock};
    case SplitOver::kMainOutput:
      return {split.all_main_output / kBlock, split.main_output / kBlock};
  }
  return {1, 1};
}

bool is_drafter(Component component) {
  return component >= Component::kDrafterAttention && component <= Component::kDrafterHeads;
}

}  // namespace

RankSplit split_for(const ModelConfig& config, int64_t ranks) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw Error("is " + std::to_string(ranks) + "; it must be between 1 and " + std::to_string(kMaxRanks),
                "tensor-parallel");
  }
  RankSplit split;
  split.ranks = ranks;
  split.all_groups = config.o_groups;
  split.all_expert_width = config.moe_intermediate_size;
  split.all_vocabulary = config.vocab_size;
  split.all_engram_output = config.engram_output();
  split.all_main_output = config.num_nextn_predict_layers > 0 ? config.hidden_size : 0;
  split.groups = share(config.o_groups, ranks, 1);
  split.heads = split.groups * (config.num_attention_heads / config.o_groups);
  split.expert_width = config.moe_intermediate_size / ranks;
  split.vocabulary = ranks == 1 ? config.vocab_size : share(config.vocab_size, ranks, kVocabularyMultiple);
  split.engram_output = share(split.all_engram_output, ranks, kBlock);
  split.main_output = share(split.all_main_output, ranks, kBlock);

  Faults faults;
  const std::string on = std::to_string(ranks) + " ranks";
  if (config.moe_intermediate_size % (ranks * kBlock) != 0) {
    faults.push_back({"moe_intermediate_size",
                      std::to_string(config.moe_intermediate_size) + " does not split into whole " +
                          std::to_string(kBlock) + "-blocks on " + on,
                      ""});
  }
  if (split.vocabulary * (ranks - 1) >= config.vocab_size) {  // every rank must have a best token of its own
    faults.push_back({"vocab_size",
                      std::to_string(config.vocab_size) + " leaves the last of " + on + " with padding only",
                      ""});
  }
  throw_if_any(faults, "tensor-parallel " + std::to_string(ranks), "choose another number of ranks");
  return split;
}

Slice slice_of(const TensorEntry& tensor, const RankSplit& split, int64_t rank) {
  SPARK_CHECK(rank >= 0 && rank < split.ranks);
  const int64_t extent = tensor.shape[tensor.split_axis];
  if (tensor.split_over == SplitOver::kNothing) return {tensor.split_axis, 0, extent, extent};
  const Units units = units_of(split, tensor.split_over);
  const int64_t per_unit = extent / units.all;
  const int64_t begin = std::min(rank * units.rank, units.all);
  const int64_t end = std::min(begin + units.rank, units.all);
  return {tensor.split_axis, begin * per_unit, end * per_unit, units.rank * per_unit};
}

std::vector<ComponentBytes> rank_bytes(const std::vector<TensorEntry>& tensors, const RankSplit& split) {
  std::array<ComponentBytes, kComponents> totals{};
  std::array<bool, kComponents> present{};
  for (const TensorEntry& tensor : tensors) {
    const auto at = static_cast<size_t>(tensor.component);
    present[at] = true;
    if (tensor.split_over == SplitOver::kNothing) {
      totals[at].replicated += tensor.bytes();
    } else {
      totals[at].split +=
          tensor.bytes() / tensor.shape[tensor.split_axis] * slice_of(tensor, split, 0).extent;
    }
  }
  std::vector<ComponentBytes> result;
  for (size_t i = 0; i < totals.size(); ++i) {
    totals[i].component = static_cast<Component>(i);
    if (present[i]) result.push_back(totals[i]);
  }
  return result;
}

RankMemory rank_memory(const std::vector<TensorEntry>& tensors, const RankSplit& split) {
  RankMemory memory;
  for (const ComponentBytes& part : rank_bytes(tensors, split)) {
    if (part.component == Component::kEngramTable) continue;
    int64_t bytes = part.split + part.replicated;
    if (part.component == Component::kHead) bytes = bytes / 4 * 3;  // 12 of 16 bits
    memory.total += bytes;
    if (is_drafter(part.component)) memory.drafter += bytes;
    if (part.component == Component::kRoutedExperts) memory.routed_experts += bytes;
    if (part.component == Component::kVision) memory.vision += bytes;
    if (part.component == Component::kEmbedding || part.component == Component::kHead) {
      memory.embedding_and_head += bytes;
    }
    if (part.component == Component::kAttention) {
      memory.attention_split += part.split;
      memory.attention_replicated += part.replicated;
    }
  }
  return memory;
}

CollectivePayloads collective_payloads(const ModelConfig& config) {
  constexpr int64_t kBf16Bytes = 2;
  constexpr int64_t kFp32Bytes = 4;
  CollectivePayloads payloads;
  payloads.embedding = kBf16Bytes * config.hidden_size;
  payloads.sublayer = kBf16Bytes * config.hidden_size;
  payloads.all_reduces = 2 * config.num_hidden_layers;
  payloads.engram_gather = kBf16Bytes * config.engram_output();
  payloads.logits = kFp32Bytes * config.vocab_size;
  payloads.greedy_per_rank = kFp32Bytes + 4;
  return payloads;
}

}  // namespace spark::model
