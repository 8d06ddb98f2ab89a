// Rows of tables for steps: joined reads, the bounded cache, reading ahead, io_uring and pread alike, and
// files that end too early.
#include "engine/checkpoint/table_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "common/error.h"
#include "engine/checkpoint/read_extents.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine {
namespace {

using model::Dtype;

TEST(Extents, JoinWhatIsNearAndKeepTheirSize) {
  const std::vector<WantedBytes> wanted = {{0, 256},
                                           {256, 256},               // beside it
                                           {512 + kExtentGap, 256},  // as far as is joined
                                           {100000, 8},              // too far
                                           {100008 + kExtentGap + 1, 8}};
  const auto extents = plan_extents(wanted);
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_EQ(extents[0].offset, 0u);
  EXPECT_EQ(extents[0].bytes, 768 + kExtentGap);
  EXPECT_EQ(extents[0].count, 3u);
  EXPECT_EQ(extents[1].offset, 100000u);
  EXPECT_EQ(extents[2].first, 4u);
  std::vector<WantedBytes> run;
  for (uint64_t i = 0; i < 1000; ++i) run.push_back({i * 256, 256});
  size_t next = 0;
  for (const Extent& extent : plan_extents(run)) {
    EXPECT_LE(extent.bytes, kMaxExtentBytes);
    EXPECT_EQ(extent.first, next);
    next += extent.count;
  }
  EXPECT_EQ(next, run.size());
  EXPECT_TRUE(plan_extents({}).empty());
}

TEST(RowCache, KeepsWhatIsAskedForAndNeverMoreThanItsPlaces) {
  RowCache cache(8, 4);
  std::mt19937 random(3);
  std::vector<int64_t> present;
  for (int i = 0; i < 20000; ++i) {
    const int64_t row = random() % 40;
    if (const uint8_t* record = cache.find(row)) {
      EXPECT_EQ(record[0], static_cast<uint8_t>(row)) << "row " << row;
      continue;
    }
    uint8_t* record = cache.insert(row);
    ASSERT_NE(record, nullptr);
    record[0] = static_cast<uint8_t>(row);
  }
  int found = 0;
  for (int64_t row = 0; row < 40; ++row) found += cache.find(row) != nullptr ? 1 : 0;
  EXPECT_EQ(found, 8);
}

TEST(RowCache, ReservedRowsAreNeitherSeenNorEvicted) {
  RowCache cache(2, 1);
  ASSERT_TRUE(cache.reserve(10));
  ASSERT_TRUE(cache.reserve(11));
  EXPECT_FALSE(cache.reserve(12));
  EXPECT_EQ(cache.insert(13), nullptr);
  EXPECT_EQ(cache.find(10), nullptr);
  EXPECT_TRUE(cache.is_reserved(10));
  *cache.fill(10) = 77;
  cache.drop(11);
  ASSERT_NE(cache.find(10), nullptr);
  EXPECT_EQ(*cache.find(10), 77);
  EXPECT_FALSE(cache.is_reserved(11));
  EXPECT_NE(cache.insert(13), nullptr);
  RowCache none(0, 8);
  EXPECT_EQ(none.find(1), nullptr);
  EXPECT_EQ(none.insert(1), nullptr);
}

constexpr int64_t kRows = 20000;

uint8_t byte_of(int64_t row, size_t part, size_t i) {
  return static_cast<uint8_t>(row * 7 + row / 251 + static_cast<int64_t>(part * 31 + i));
}

// A table of two tensors in one file.
struct Way {
  bool direct;
  bool io_uring;
};

class TableReaderTest : public testing::TestWithParam<Way> {
 protected:
  TableReaderTest() {
    const std::vector<TensorSpec> specs = {{"codes", Dtype::kF8E4m3, {kRows, 256}},
                                           {"scales", Dtype::kF8E8m0, {kRows, 8}}};
    SafetensorsWriter writer(path(), specs);
    for (const TensorSpec& spec : writer.order()) {
      const size_t part = spec.name == "codes" ? 0 : 1;
      const size_t width = static_cast<size_t>(spec.shape[1]);
      std::vector<uint8_t> bytes;
      for (int64_t row = 0; row < kRows; ++row) {
        for (size_t i = 0; i < width; ++i) bytes.push_back(byte_of(row, part, i));
      }
      writer.append(bytes);
    }
    writer.finish();
    file_ = std::make_unique<SafetensorsFile>(path());
  }

  std::string path() const { return (folder_ / "table.safetensors").string(); }

  std::unique_ptr<TableReader> open(size_t cache_rows) const {
    std::vector<RowReader> parts = {file_->rows(*file_->find("codes")), file_->rows(*file_->find("scales"))};
    const TableReaderOptions options{
        .cache_bytes = cache_rows * 264,
        .direct = GetParam().direct,
        .queue = {.use_io_uring = GetParam().io_uring, .depth = 64, .threads = 4}};
    auto table = std::make_unique<TableReader>(std::move(parts), options);
    EXPECT_TRUE(GetParam().io_uring || std::string(table->method()) == "pread");
    return table;
  }

  // Runs a step and checks every byte.
  void expect_rows(TableReader& table, const std::vector<int64_t>& ids) {
    std::vector<uint8_t> codes(ids.size() * 256), scales(ids.size() * 8);
    table.begin(ids, std::vector<std::span<uint8_t>>{codes, scales});
    table.finish();
    for (size_t k = 0; k < ids.size(); ++k) {
      for (size_t i = 0; i < 256; ++i) ASSERT_EQ(codes[k * 256 + i], byte_of(ids[k], 0, i)) << ids[k];
      for (size_t i = 0; i < 8; ++i) ASSERT_EQ(scales[k * 8 + i], byte_of(ids[k], 1, i)) << ids[k];
    }
  }

  std::vector<int64_t> some(size_t count) {
    std::vector<int64_t> ids(count);
    for (int64_t& id : ids) id = static_cast<int64_t>(random_() % kRows);
    return ids;
  }

  TemporaryFolder folder_;
  std::unique_ptr<SafetensorsFile> file_;
  std::mt19937 random_{8};
};

TEST_P(TableReaderTest, GivesTheBytesWhateverIsCached) {
  for (const size_t cache_rows : {size_t{0}, size_t{1}, size_t{50}, size_t{100000}}) {
    const auto table = open(cache_rows);
    for (const size_t count : {1, 2, 300, 0, 1000, 20000}) {
      std::vector<int64_t> ids = some(count);
      if (count > 10) ids[7] = ids[3];
      expect_rows(*table, ids);
      if (count <= cache_rows) expect_rows(*table, ids);
    }
    expect_rows(*table, {0, kRows - 1, 0, 1});
  }
}

TEST_P(TableReaderTest, Counts) {
  const auto table = open(1000);
  expect_rows(*table, {5, 6, 7, 9000, 6});
  TableCounters counters = table->counters();
  EXPECT_EQ(counters.misses, 5u);
  EXPECT_EQ(counters.hits, 0u);
  EXPECT_EQ(counters.reads, 4u) << "three neighbours in one read, one row by itself; codes and scales";
  EXPECT_GE(counters.bytes, 4u * 264u);
  expect_rows(*table, {6, 9000, 10});
  counters = table->counters();
  EXPECT_EQ(counters.hits, 2u);
  EXPECT_EQ(counters.misses, 6u);
  EXPECT_GT(counters.wait_s, 0.0);
}

TEST_P(TableReaderTest, WhatIsReadAheadIsThere) {
  const auto table = open(20000);
  const std::vector<int64_t> ids = some(9000);
  table->prefetch(ids);
  expect_rows(*table, ids);  // while it is being read
  table->wait_for_prefetches();
  const TableCounters after = table->counters();
  EXPECT_EQ(after.hits + after.awaited + after.misses, ids.size());
  const std::vector<int64_t> more = some(500);
  table->prefetch(more);
  table->wait_for_prefetches();
  expect_rows(*table, more);
  EXPECT_EQ(table->counters().misses, after.misses) << "no row was left to the step";
  EXPECT_GT(table->counters().prefetched, 0u);
}

TEST_P(TableReaderTest, ReadingAheadIntoASmallCacheHarmsNothing) {
  const auto table = open(100);
  for (int i = 0; i < 30; ++i) {
    const std::vector<int64_t> ids = some(300);
    table->prefetch(ids);
    expect_rows(*table, ids);
  }
}

TEST_P(TableReaderTest, AFileThatEndsEarlyFailsTheStepAndNoOther) {
  const auto table = open(1000);
  expect_rows(*table, {1, 2, 3});
  const uint64_t codes_end = table->rows() * 256;
  ASSERT_EQ(::truncate(path().c_str(), static_cast<off_t>(codes_end / 2)), 0);
  std::vector<uint8_t> codes(2 * 256), scales(2 * 8);
  const std::vector<int64_t> late = {kRows - 1, 4};
  const std::vector<std::span<uint8_t>> out = {codes, scales};
  table->begin(late, out);
  try {
    table->finish();
    FAIL() << "half of the file is gone";
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find("table.safetensors"), std::string::npos) << error.describe();
    EXPECT_NE(error.describe().find("truncated"), std::string::npos) << error.describe();
  }
  EXPECT_EQ(table->counters().failures, 1u);
  expect_rows(*table, {3, 1});  // what is cached is as good as before
  // Reading ahead what is gone ends, and the step says so.
  table->prefetch(late);
  table->wait_for_prefetches();
  table->begin(late, out);
  EXPECT_THROW(table->finish(), Error);
  // A step that begins and never finishes leaves nothing behind.
  table->begin(late, out);
  expect_rows(*table, {2});
}

TEST_P(TableReaderTest, ARowOutsideTheTableIsAnError) {
  const auto table = open(10);
  std::vector<uint8_t> codes(256), scales(8);
  for (const int64_t row : {int64_t{-1}, kRows}) {
    EXPECT_THROW(table->begin(std::vector<int64_t>{row}, std::vector<std::span<uint8_t>>{codes, scales}),
                 Error);
  }
  table->prefetch(std::vector<int64_t>{-1, kRows, 5});
  table->wait_for_prefetches();
  EXPECT_EQ(table->counters().prefetched, 1u);
  expect_rows(*table, {5});
}

INSTANTIATE_TEST_SUITE_P(Ways, TableReaderTest,
                         testing::Values(Way{true, true}, Way{true, false}, Way{false, true},
                                         Way{false, false}),
                         [](const auto& way) {
                           return std::string(way.param.direct ? "direct" : "buffered") +
                                  (way.param.io_uring ? "_io_uring" : "_pread");
                         });

TEST(ReadQueue, MoreReadsThanItIsDeep) {
  TemporaryFolder folder;
  const std::string path = (folder / "bytes").string();
  std::vector<uint8_t> bytes(1 << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
  }
  const RandomAccessFile file(path);
  for (const bool io_uring : {true, false}) {
    const auto queue = make_read_queue({.use_io_uring = io_uring, .depth = 8, .threads = 3});
    for (int round = 0; round < 3; ++round) {
      std::vector<uint8_t> got(bytes.size());
      std::vector<FileRead> reads;
      for (size_t at = 0; at < bytes.size(); at += 1024) {
        reads.push_back({.file = &file, .offset = at, .to = std::span(got).subspan(at, 1024)});
      }
      queue->start(reads);
      queue->wait();
      EXPECT_EQ(got, bytes) << queue->method();
    }
    queue->start({});
    queue->wait();
  }
}

}  // namespace
}  // namespace spark::engine
