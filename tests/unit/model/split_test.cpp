#include "model/split.h"

#include <gtest/gtest.h>

#include "common/units.h"
#include "unit/model/published_config.h"

namespace spark::model {
namespace {

std::string gb(int64_t bytes, int digits) {
  return format_fixed(static_cast<double>(bytes) / 1e9, digits);
}

TEST(RankSplit, ReproducesThePublishedWidths) {
  struct Row {
    int64_t ranks, heads, groups, expert_width, vocabulary, engram, main;
  };
  for (const Row& row : {Row{1, 64, 8, 2304, 129280, 25600, 5120}, Row{2, 32, 4, 1152, 64640, 12800, 2560},
                         Row{3, 24, 3, 768, 43136, 8544, 1728}, Row{4, 16, 2, 576, 32320, 6400, 1280}}) {
    const RankSplit split = split_for(published_config(), row.ranks);
    EXPECT_EQ(split.heads, row.heads);
    EXPECT_EQ(split.groups, row.groups);
    EXPECT_EQ(split.expert_width, row.expert_width);
    EXPECT_EQ(split.vocabulary, row.vocabulary);
    EXPECT_EQ(split.engram_output, row.engram);
    EXPECT_EQ(split.main_output, row.main);
  }
  EXPECT_EQ(split_for(published_config(), 3).padded_heads(), 72);
  EXPECT_EQ(split_for(published_config(), 3).padded_groups(), 9);
}

TEST(RankSplit, ReproducesThePublishedMemoryTable) {
  struct Row {
    int64_t ranks;
    const char *total, *routed, *attention_split, *attention_copy, *drafter, *vision, *embed_head;
  };
  const auto tensors = tensor_catalogue(published_config());
  for (const Row& row : {Row{1, "307.2", "288.8", "4.70", "0.37", "7.93", "0.97", "2.32"},
                         Row{2, "154.5", "144.4", "2.35", "0.37", "4.02", "0.97", "1.16"},
                         Row{3, "103.8", "96.3", "1.76", "0.37", "2.73", "0.97", "0.77"},
                         Row{4, "78.2", "72.2", "1.18", "0.37", "2.07", "0.97", "0.58"},
                         Row{8, "40.0", "36.1", "0.59", "0.37", "1.09", "0.97", "0.29"}}) {
    const RankSplit split = split_for(published_config(), row.ranks);
    RankMemory memory = rank_memory(tensors, split);
    // The published deployments cut the Markov head too; here every rank has all of it.
    const int64_t markov_rows = split.all_vocabulary - split.vocabulary;
    const int64_t markov_extra = markov_rows * published_config().dspark_markov_rank * 2;
    memory.total -= markov_extra;
    memory.drafter -= markov_extra;
    EXPECT_EQ(gb(memory.total, 1), row.total) << row.ranks;
    EXPECT_EQ(gb(memory.routed_experts, 1), row.routed) << row.ranks;
    EXPECT_EQ(gb(memory.attention_split, 2), row.attention_split) << row.ranks;
    EXPECT_EQ(gb(memory.attention_replicated, 2), row.attention_copy) << row.ranks;
    EXPECT_EQ(gb(memory.drafter, 2), row.drafter) << row.ranks;
    EXPECT_EQ(gb(memory.vision, 2), row.vision) << row.ranks;
    EXPECT_EQ(gb(memory.embedding_and_head, 2), row.embed_head) << row.ranks;
  }
}

TEST(RankSplit, SlicesTileEveryTensorAndKeepScaleBlocksWhole) {
  const auto tensors = tensor_catalogue(published_config());
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const RankSplit split = split_for(published_config(), ranks);
    for (const TensorEntry& tensor : tensors) {
      if (tensor.name.find("ffn.experts.") != std::string::npos &&
          tensor.name.find(".experts.0.") == std::string::npos) {
        continue;
      }
      int64_t at = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Slice slice = slice_of(tensor, split, rank);
        if (tensor.split_over == SplitOver::kNothing) {
          ASSERT_EQ(slice.end - slice.begin, tensor.shape[0]) << tensor.name;
          at = slice.end;
          continue;
        }
        ASSERT_EQ(slice.begin, at) << tensor.name;
        ASSERT_LE(slice.end - slice.begin, slice.extent) << tensor.name;
        at = slice.end;
      }
      ASSERT_EQ(at, tensor.shape[tensor.split_axis]) << tensor.name;
    }
  }
  const RankSplit split = split_for(published_config(), 3);
  for (const TensorEntry& tensor : tensors) {
    const Slice slice = slice_of(tensor, split, 2);
    if (tensor.name == "layers.0.attn.wq_b.weight") {
      EXPECT_EQ(slice.begin, 24576);
      EXPECT_EQ(slice.end, 32768);
      EXPECT_EQ(slice.extent, 12288);
    } else if (tensor.name == "layers.0.attn.wq_b.scale") {
      EXPECT_EQ(slice.begin, 768);
      EXPECT_EQ(slice.end, 1024);
    } else if (tensor.name == "layers.0.ffn.experts.0.w2.weight") {
      EXPECT_EQ(slice.axis, 1);
      EXPECT_EQ(slice.begin, 768);
      EXPECT_EQ(slice.end, 1152);
    } else if (tensor.name == "layers.0.ffn.experts.0.w2.scale") {
      EXPECT_EQ(slice.begin, 48);
      EXPECT_EQ(slice.end, 72);
    } else if (tensor.name == "layers.0.attn.attn_sink") {
      EXPECT_EQ(slice.begin, 48);
      EXPECT_EQ(slice.end, 64);
      EXPECT_EQ(slice.extent, 24);
    }
  }
}

TEST(RankSplit, RefusesWhatCannotBeCut) {
  ModelConfig config = published_config();
  config.moe_intermediate_size = 192;  // as in the golden checkpoint
  for (const int64_t ranks : {1, 2, 3}) EXPECT_EQ(split_for(config, ranks).expert_width, 192 / ranks);
  try {
    split_for(config, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find("192 does not split into whole 32-blocks on 4 ranks"), std::string::npos);
  }
  config.o_groups = 4;  // on three ranks the last one has padding only, which is allowed
  EXPECT_EQ(split_for(config, 3).padded_groups(), 6);
  config.vocab_size = 100;
  try {
    split_for(config, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find("100 leaves the last of 7 ranks"), std::string::npos) << error.describe();
  }
  EXPECT_THROW(split_for(config, 0), Error);
  EXPECT_THROW(split_for(config, 9), Error);
}

TEST(CollectivePayloads, MatchThePublishedTable) {
  const CollectivePayloads payloads = collective_payloads(published_config());
  EXPECT_EQ(payloads.embedding, 10240);
  EXPECT_EQ(payloads.sublayer, 10240);
  EXPECT_EQ(payloads.all_reduces, 80);
  EXPECT_EQ(payloads.engram_gather, 51200);
  EXPECT_EQ(payloads.logits, 4 * 129280);
  EXPECT_EQ(payloads.greedy_per_rank, 8);
}

}  // namespace
}  // namespace spark::model
