// Tensors read from disk by whoever copies them: every byte, in any order, with little staging memory,
// directly or through the page cache, and files that end too early.
#include "engine/checkpoint/tensor_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "common/error.h"
#include "engine/checkpoint/synthetic.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine {
namespace {

struct StreamWay {
  bool direct;
  bool io_uring;
};

class TensorStreamTest : public testing::TestWithParam<StreamWay> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, folder_->path());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  TensorStreamTest() : checkpoint_(folder_->path()) {
    for (const auto& shard : checkpoint_.shards()) {
      for (const StoredTensor& tensor : shard->header().tensors) {
        parts_.push_back({tensor.name, 0, tensor.bytes});
      }
    }
  }

  TensorStreamOptions options(size_t staging, size_t batch) const {
    return {.staging_bytes = staging,
            .batch_bytes = batch,
            .piece_bytes = size_t{1} << 16,
            .direct = GetParam().direct,
            .queue = {.use_io_uring = GetParam().io_uring, .depth = 8, .threads = 2}};
  }

  void expect_part(TensorStream& stream, const TensorPart& part) const {
    const StagedBytes staged = stream.take(part.name);
    const auto expected = checkpoint_.tensor(part.name).bytes.subspan(
        static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin));
    ASSERT_EQ(staged.bytes.size(), expected.size()) << part.name;
    EXPECT_TRUE(std::equal(staged.bytes.begin(), staged.bytes.end(), expected.begin())) << part.name;
  }

  static TemporaryFolder* folder_;
  Checkpoint checkpoint_;
  std::vector<TensorPart> parts_;
};
TemporaryFolder* TensorStreamTest::folder_ = nullptr;

TEST_P(TensorStreamTest, InOrder) {
  TensorStream stream(checkpoint_, parts_, options(8 << 20, 1 << 20));
  for (const TensorPart& part : parts_) expect_part(stream, part);
  EXPECT_GE(stream.bytes_read(), checkpoint_.total_bytes());
  EXPECT_LT(stream.bytes_read(), checkpoint_.total_bytes() * 2);
}

TEST_P(TensorStreamTest, InAnyOrderWithLittleMemory) {
  std::vector<TensorPart> shuffled = parts_;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(4));
  TensorStream stream(checkpoint_, parts_, options(1 << 19, 1 << 17));
  for (const TensorPart& part : shuffled) expect_part(stream, part);
}

TEST_P(TensorStreamTest, HoldingEverythingGoesBeyondTheStaging) {
  TensorStream stream(checkpoint_, parts_, options(1 << 19, 1 << 17));
  std::vector<StagedBytes> held;
  for (const TensorPart& part : parts_) held.push_back(stream.take(part.name));
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto expected = checkpoint_.tensor(parts_[i].name).bytes;
    EXPECT_TRUE(std::equal(held[i].bytes.begin(), held[i].bytes.end(), expected.begin()));
  }
}

TEST_P(TensorStreamTest, PartsOfTensors) {
  std::mt19937 random(9);
  std::vector<TensorPart> some;
  for (const TensorPart& part : parts_) {
    const uint64_t begin = random() % (part.end + 1);
    some.push_back({part.name, begin, begin + random() % (part.end - begin + 1)});
  }
  TensorStream stream(checkpoint_, some, options(4 << 20, 1 << 20));
  for (const TensorPart& part : some) expect_part(stream, part);
}

TEST_P(TensorStreamTest, PartsOutliveTheStream) {
  StagedBytes kept;
  {
    TensorStream stream(checkpoint_, parts_, options(4 << 20, 1 << 20));
    kept = stream.take(parts_.back().name);
  }
  const auto expected = checkpoint_.tensor(parts_.back().name).bytes;
  EXPECT_TRUE(std::equal(kept.bytes.begin(), kept.bytes.end(), expected.begin()));
}

TEST_P(TensorStreamTest, RefusesWhatIsNotThere) {
  EXPECT_THROW(TensorStream(checkpoint_, {{"no.such.tensor", 0, 1}}, options(1 << 20, 1 << 18)), Error);
  EXPECT_THROW(TensorStream(checkpoint_, {{parts_[0].name, 0, parts_[0].end + 1}}, options(1 << 20, 1 << 18)),
               Error);
  TensorStream stream(checkpoint_, {parts_[0]}, options(1 << 20, 1 << 18));
  EXPECT_THROW(stream.take(parts_[1].name), Error);
}

TEST_P(TensorStreamTest, AFileThatEndsEarly) {
  TemporaryFolder folder;
  write_synthetic_checkpoint(SyntheticPreset::kTiny, 1, folder.path());
  const Checkpoint checkpoint(folder.path());
  const auto [shard, entry] = checkpoint.stored(parts_.back().name);
  ASSERT_EQ(::truncate(shard->path().c_str(), static_cast<off_t>(entry->offset + entry->bytes / 2)), 0);
  TensorStream stream(checkpoint, {parts_.back()}, options(4 << 20, 1 << 20));
  try {
    stream.take(parts_.back().name);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find(shard->path()), std::string::npos) << error.describe();
    EXPECT_NE(error.describe().find("truncated"), std::string::npos) << error.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, TensorStreamTest,
                         testing::Values(StreamWay{true, true}, StreamWay{true, false},
                                         StreamWay{false, true}, StreamWay{false, false}),
                         [](const auto& way) {
                           return std::string(way.param.direct ? "direct" : "buffered") +
                                  (way.param.io_uring ? "_io_uring" : "_pread");
                         });

}  // namespace
}  // namespace spark::engine
