// Sharded and single-file checkpoints, the report against an expected list, rows of tables.
#include "engine/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "common/error.h"
#include "common/file.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine {
namespace {

using model::Dtype;

// Every byte of a tensor is a function of its name and place, so that a mix-up shows.
std::vector<uint8_t> content(const TensorSpec& spec) {
  std::vector<uint8_t> bytes(tensor_bytes(spec));
  const size_t seed = std::hash<std::string>()(spec.name);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(seed + i * 7);
  return bytes;
}

void write_shard(const std::string& path, const std::vector<TensorSpec>& specs) {
  SafetensorsWriter writer(path, specs);
  for (const TensorSpec& spec : writer.order()) writer.append(content(spec));
  writer.finish();
}

const std::vector<TensorSpec> kFirst = {{"embed.weight", Dtype::kBf16, {6, 4}},
                                        {"layers.0.hc", Dtype::kF32, {3}}};
const std::vector<TensorSpec> kSecond = {{"table.weight", Dtype::kF8E4m3, {50, 16}},
                                         {"table.scale", Dtype::kF8E8m0, {50, 2}}};

std::vector<TensorSpec> all_specs() {
  std::vector<TensorSpec> all = kFirst;
  all.insert(all.end(), kSecond.begin(), kSecond.end());
  return all;
}

CheckpointIndex good_index() {
  CheckpointIndex index;
  index.total_size = 48 + 12 + 800 + 100;
  for (const TensorSpec& spec : kFirst) index.weight_map.emplace_back(spec.name, shard_name(1, 2));
  for (const TensorSpec& spec : kSecond) index.weight_map.emplace_back(spec.name, shard_name(2, 2));
  return index;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    write_shard(folder_ / shard_name(1, 2), kFirst);
    write_shard(folder_ / shard_name(2, 2), kSecond);
    write_index(format_checkpoint_index(good_index()));
  }

  void write_index(const std::string& text) { write_file_atomic(folder_ / kCheckpointIndexName, text); }

  std::string error() const {
    try {
      const Checkpoint checkpoint(folder_.path());
      return "no error";
    } catch (const Error& error) {
      return error.describe();
    }
  }

  void expect_error(const std::string& part) const {
    EXPECT_NE(error().find(part), std::string::npos) << error();
    EXPECT_NE(error().find("to fix:"), std::string::npos) << error();
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, OpensShardsAndFindsEveryTensor) {
  const Checkpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.size(), 4u);
  EXPECT_EQ(checkpoint.total_bytes(), 960u);
  EXPECT_EQ(checkpoint.shards().size(), 2u);
  checkpoint.check_against(all_specs());
  for (const TensorSpec& spec : all_specs()) {
    const TensorView view = checkpoint.tensor(spec.name);
    const std::vector<uint8_t> expected = content(spec);
    EXPECT_EQ(view.name, spec.name);
    EXPECT_EQ(view.dtype, spec.dtype);
    EXPECT_TRUE(std::equal(view.shape.begin(), view.shape.end(), spec.shape.begin(), spec.shape.end()));
    EXPECT_TRUE(std::equal(view.bytes.begin(), view.bytes.end(), expected.begin(), expected.end()));
  }
  EXPECT_EQ(checkpoint.tensor("table.scale").shard_path, folder_ / shard_name(2, 2));
  EXPECT_FALSE(checkpoint.contains("table"));
  EXPECT_THROW(checkpoint.tensor("table"), Error);
  EXPECT_THROW(checkpoint.rows("table"), Error);
}

TEST_F(CheckpointTest, ASingleFileIsACheckpointToo) {
  const TemporaryFolder folder;
  write_shard(folder / kCheckpointSingleName, all_specs());
  const Checkpoint checkpoint(folder.path());
  checkpoint.check_against(all_specs());
  EXPECT_EQ(checkpoint.total_bytes(), 960u);
}

TEST_F(CheckpointTest, FoldersWithoutACheckpoint) {
  const TemporaryFolder folder;
  const auto error_of = [](const std::string& path) {
    try {
      const Checkpoint checkpoint(path);
      return std::string("no error");
    } catch (const Error& error) {
      return error.describe();
    }
  };
  EXPECT_NE(error_of(folder.path()).find("holds neither model.safetensors.index.json nor model.safetensors"),
            std::string::npos);
  EXPECT_NE(error_of(folder.path() + "/none").find("No such file"), std::string::npos);
  EXPECT_NE(error_of(folder_ / kCheckpointIndexName).find("is not a folder"), std::string::npos);
  std::filesystem::create_directory(folder / kCheckpointIndexName);
  EXPECT_NE(error_of(folder.path()).find("is a folder, not a file"), std::string::npos);
}

TEST_F(CheckpointTest, EveryMissingAndDamagedShardInOneError) {
  std::filesystem::remove(folder_ / shard_name(1, 2));
  const std::string whole = read_file(folder_ / shard_name(2, 2));
  write_file_atomic(folder_ / shard_name(2, 2), whole.substr(0, whole.size() - 1));
  expect_error("2 faults");
  expect_error("model-00001-of-00002.safetensors: is named by the index but missing");
  expect_error("model-00002-of-00002.safetensors: holds 899 bytes of tensors; its header describes 900");
}

TEST_F(CheckpointTest, AdviceFitsWhatTheSystemRefuses) {
  // The index takes the last descriptor and gives it back; a shard keeps its own, so the second one fails.
  const int lowest = ::open("/dev/null", O_RDONLY);
  ::close(lowest);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit one = before;
  one.rlim_cur = static_cast<rlim_t>(lowest) + 1;
  ::setrlimit(RLIMIT_NOFILE, &one);
  const std::string said = error();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(said.find("model-00002-of-00002.safetensors: cannot be opened: Too many open files"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("ulimit -n"), std::string::npos) << said;
  EXPECT_EQ(said.find("copy or download"), std::string::npos) << said;
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  CheckpointIndex index = good_index();
  index.weight_map.emplace_back("ghost", shard_name(1, 2));  // listed, absent
  index.weight_map.erase(index.weight_map.begin());          // embed.weight: present, unlisted
  index.weight_map.back().second = shard_name(1, 2);
  index.weight_map[1].second = shard_name(1, 2);  // table.weight: elsewhere
  write_index(format_checkpoint_index(index));
  expect_error("3 faults");
  expect_error("model-00001-of-00002.safetensors: holds \"embed.weight\", which the index does not list");
  expect_error(
      "model-00001-of-00002.safetensors: lacks \"table.weight\", which the index puts there and model-00002");
  expect_error("model-00001-of-00002.safetensors: lacks \"ghost\", which the index puts there");
}

TEST_F(CheckpointTest, ATensorInTwoShardsIsNamed) {
  write_shard(folder_ / shard_name(1, 2), all_specs());
  expect_error("4 faults");
  expect_error(
      "model-00002-of-00002.safetensors: holds \"table.scale\", which model-00001-of-00002.safetensors holds "
      "too");
}

TEST_F(CheckpointTest, TotalSizeMustBeTheSum) {
  CheckpointIndex index = good_index();
  index.total_size = 961;
  write_index(format_checkpoint_index(index));
  expect_error("gives a total_size of 961 bytes; the shards hold 960");
  index.total_size.reset();
  write_index(format_checkpoint_index(index));
  EXPECT_EQ(error(), "no error");
}

TEST_F(CheckpointTest, IndexesThatAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is not valid JSON at byte"},
      {"[]", "must be an object, not an array"},
      {"{}", "has no \"weight_map\""},
      {"{\"weight_map\": 3}", "\"weight_map\" must be an object, not a number"},
      {"{\"weight_map\": null}", "\"weight_map\" must be an object, not null"},
      {"{\"weight_map\": {}, \"weight_map\": {}}", "has \"weight_map\" twice"},
      {"{\"weight_map\": {\"a\": 1}}", "the shard of \"a\" must be a string, not a number"},
      {"{\"weight_map\": {\"a\": {}}}", "the shard of \"a\" must be a string, not an object"},
      {"{\"weight_map\": {\"a\": [\"x\"]}}", "the shard of \"a\" must be a string, not an array"},
      {"{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "\"a\": stands twice in \"weight_map\""},
      {"{\"weight_map\": {\"a\": \"../x\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {\"a\": \"..\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {\"a\": \"\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {\"a\": \"b\\\\c\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {\"a\": \"b\\u0000c\"}}", "which is not the name of a file beside it"},
      {"{\"weight_map\": {}, \"metadata\": []}", "\"metadata\" must be an object, not an array"},
      {"{\"weight_map\": {}, \"metadata\": {\"total_size\": \"12\"}}",
       "\"total_size\" must be a whole number"},
      {"{\"weight_map\": {}, \"metadata\": {\"total_size\": -1}}", "\"total_size\" must be a whole number"},
      {"{\"weight_map\": {}, \"metadata\": {\"total_size\": 1.5}}", "\"total_size\" must be a whole number"},
      {"{\"weight_map\": {}, \"metadata\": {\"total_size\": 1, \"total_size\": 1}}",
       "has \"total_size\" twice"},
      {"{\"weight_map\": {}} x", "is not valid JSON at byte"},
      {"{\"weight_map\": {\"a\": \"none.safetensors\"}}",
       "none.safetensors: is named by the index but missing"},
      {"{\"weight_map\": {}, \"metadata\": {\"total_size\": 5}}", "gives a total_size of 5 bytes"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    write_index(text);
    expect_error(part);
  }
  write_index("{\"weight_map\": {}, \"x\": " + std::string(100000, '['));
  expect_error("is nested deeper than 64 levels");
}

TEST_F(CheckpointTest, OtherKeysOfTheIndexAreIgnored) {
  std::string text = format_checkpoint_index(good_index());
  text.replace(
      0, 1, R"({"a": [1, {"b": [null]}, -2, 0.5, "c", true], "d": {"weight_map": {"x": {}}}, "e": false,)");
  text.replace(text.find("\"total_size\": 960"), 17, R"("by": {"x": [1]}, "n": null, "total_size": 960.0)");
  write_index(text);
  EXPECT_EQ(error(), "no error");
}

TEST_F(CheckpointTest, TheReportCountsAndListsEveryKindOfDifference) {
  const Checkpoint checkpoint(folder_.path());
  std::vector<TensorSpec> expected = {{"embed.weight", Dtype::kF16, {6, 4}},
                                      {"layers.0.hc", Dtype::kF32, {1, 3}},
                                      {"table.weight", Dtype::kF8E4m3, {50, 16}}};
  for (int i = 0; i < 40; ++i)
    expected.push_back({"layers." + std::to_string(i) + ".gate", Dtype::kF32, {2}});
  try {
    checkpoint.check_against(expected);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.where(), folder_.path());
    EXPECT_FALSE(error.hint().empty());
    for (const char* part :
         {"does not fit the model in 43 tensors:", "of another dtype (1):",
          "\"embed.weight\" is BF16 [6, 4], must be F16 [6, 4]",
          "of another shape (1):", "\"layers.0.hc\" is F32 [3], must be F32 [1, 3]",
          "missing (40):", "\"layers.0.gate\" F32 [2]", "... and 28 more",
          "not expected (1):", "\"table.scale\" F8_E8M0 [50, 2] in model-00002-of-00002.safetensors"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }
  EXPECT_THROW(checkpoint.check_against({}), Error);
}

TEST_F(CheckpointTest, RowsAreReadWithoutMapping) {
  const Checkpoint checkpoint(folder_.path());
  const RowReader table = checkpoint.rows("table.weight");
  EXPECT_EQ(table.rows(), 50);
  EXPECT_EQ(table.row_bytes(), 16u);
  const std::vector<uint8_t> whole = content(kSecond[0]);
  const std::vector<int64_t> ids = {49, 0, 7, 7, 31};
  std::vector<uint8_t> bytes(ids.size() * 16);
  table.read_rows(ids, bytes);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = whole.begin() + ids[i] * 16;
    EXPECT_TRUE(std::equal(row, row + 16, bytes.begin() + static_cast<int64_t>(i) * 16));
  }
  std::vector<uint8_t> one(16);
  EXPECT_THROW(table.read(-1, one), Error);
  EXPECT_THROW(table.read(50, one), Error);
  EXPECT_THROW(table.read(std::numeric_limits<int64_t>::max(), one), Error);
  EXPECT_DEATH(table.read(0, std::span(one).first(15)), "internal error");
  EXPECT_THROW(checkpoint.rows("layers.0.hc"), Error);
}

TEST_F(CheckpointTest, AShortReadNamesTheFile) {
  const Checkpoint checkpoint(folder_.path());
  const RowReader table = checkpoint.rows("table.weight");
  ASSERT_EQ(::truncate((folder_ / shard_name(2, 2)).c_str(), static_cast<off_t>(table.row_offset(10) + 3)),
            0);
  std::vector<uint8_t> row(16);
  table.read(9, row);
  try {
    table.read(10, row);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), folder_ / shard_name(2, 2));
    EXPECT_NE(std::string(error.what()).find("ends at byte"), std::string::npos) << error.what();
  }
  ASSERT_EQ(::truncate((folder_ / shard_name(2, 2)).c_str(), 100), 0);
  try {
    table.read(10, row);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ends at byte 100;"), std::string::npos) << error.what();
  }
}

TEST_F(CheckpointTest, AReaderOutlivesTheCheckpointAndServesSeveralThreads) {
  const RowReader table = Checkpoint(folder_.path()).rows("table.weight");
  const std::vector<uint8_t> whole = content(kSecond[0]);
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint8_t> row(16);
      for (int64_t i = 0; i < 50; ++i) {
        table.read(i, row);
        good[t] += std::equal(row.begin(), row.end(), whole.begin() + i * 16) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(4, 50));
}

// Row offsets of the real tables exceed 32 bits. The file is sparse: it occupies a few blocks.
TEST_F(CheckpointTest, ATableLargerThan32BitsIsReadByRows) {
  const TensorSpec spec{"layers.1.engram.embed.weight", Dtype::kF8E4m3, {384006168, 256}};
  const std::string json = format_safetensors_header(std::span(&spec, 1), {});
  const TemporaryFolder folder;
  const std::string path = folder / kCheckpointSingleName;
  std::string start;
  for (size_t i = 0; i < 8; ++i) start += static_cast<char>(json.size() >> (8 * i));
  write_file_atomic(path, start + json);
  const uint64_t bytes = start.size() + json.size() + tensor_bytes(spec);
  if (::truncate(path.c_str(), static_cast<off_t>(bytes)) != 0) GTEST_SKIP() << "no sparse files here";
  const Checkpoint checkpoint(folder.path());
  const RowReader table = checkpoint.rows(spec.name);
  EXPECT_EQ(table.row_offset(384006167), bytes - 256);
  std::vector<uint8_t> row(256, 1);
  table.read(384006167, row);
  EXPECT_EQ(row, std::vector<uint8_t>(256, 0));
  EXPECT_EQ(checkpoint.tensor(spec.name).bytes.size(), 98305579008u);
}

TEST(CheckpointIndexTest, RoundTrips) {
  CheckpointIndex index;
  index.weight_map = {{"b \"\n", "x.safetensors"}, {"a", "y.safetensors"}};
  index.total_size = 510286023000;
  const std::string text = format_checkpoint_index(index);
  const CheckpointIndex again = parse_checkpoint_index(text, "test");
  EXPECT_EQ(again.total_size, index.total_size);
  EXPECT_EQ(again.weight_map.front().first, "a");
  EXPECT_EQ(again.weight_map.back().first, "b \"\n");
  EXPECT_EQ(format_checkpoint_index(again), text);
  EXPECT_EQ(shard_name(3, 48), "model-00003-of-00048.safetensors");
  const CheckpointIndex none = parse_checkpoint_index(format_checkpoint_index({}), "test");
  EXPECT_TRUE(none.weight_map.empty());
  EXPECT_FALSE(none.total_size);
}

// As many tensors and shards as the release has, with headers of their real length and sparse data: prints
// how long opening takes.
TEST(CheckpointScale, NinetySixThousandTensorsIn48Shards) {
  constexpr int kShards = 48;
  const TemporaryFolder folder;
  CheckpointIndex index;
  uint64_t total = 0;
  std::vector<TensorSpec> all;
  for (int shard = 1; shard <= kShards; ++shard) {
    std::vector<TensorSpec> specs;
    for (int i = 0; i < 1001; ++i) {
      const std::string base =
          "layers." + std::to_string(shard) + ".ffn.experts." + std::to_string(i) + ".w1";
      specs.push_back({base + ".weight", Dtype::kI8, {2304, 2560}});
      specs.push_back({base + ".scale", Dtype::kF8E8m0, {2304, 160}});
    }
    const std::string json = format_safetensors_header(specs, {});
    std::string start;
    for (size_t i = 0; i < 8; ++i) start += static_cast<char>(json.size() >> (8 * i));
    uint64_t bytes = 8 + json.size();
    for (const TensorSpec& spec : specs) {
      index.weight_map.emplace_back(spec.name, shard_name(shard, kShards));
      bytes += tensor_bytes(spec);
      total += tensor_bytes(spec);
    }
    write_file_atomic(folder / shard_name(shard, kShards), start + json);
    if (::truncate((folder / shard_name(shard, kShards)).c_str(), static_cast<off_t>(bytes)) != 0) {
      GTEST_SKIP() << "no sparse files here";
    }
    all.insert(all.end(), specs.begin(), specs.end());
  }
  index.total_size = total;
  write_file_atomic(folder / kCheckpointIndexName, format_checkpoint_index(index));

  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint(folder.path());
  const auto opened = std::chrono::steady_clock::now();
  checkpoint.check_against(all);
  const auto checked = std::chrono::steady_clock::now();
  EXPECT_EQ(checkpoint.size(), 96096u);
  EXPECT_EQ(checkpoint.total_bytes(), total);
  std::printf("opened in %.3f s, checked in %.3f s\n", std::chrono::duration<double>(opened - start).count(),
              std::chrono::duration<double>(checked - opened).count());
}

}  // namespace
}  // namespace spark::engine
