// Safetensors files: what is read back, and every way in which a file is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/error.h"
#include "common/file.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "unit/checkpoint/temporary_folder.h"

namespace spark::engine {
namespace {

using model::Dtype;

std::string file_of(const std::string& json, size_t data_bytes) {
  std::string content;
  for (size_t i = 0; i < 8; ++i) content += static_cast<char>(json.size() >> (8 * i));
  return content + json + std::string(data_bytes, 'x');
}

std::string error_of(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    return "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), path);
    EXPECT_FALSE(error.hint().empty()) << error.what();
    return error.what();
  }
}

std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

void write_all(const std::string& path, const std::vector<TensorSpec>& specs,
               const std::map<std::string, std::string>& metadata = {}) {
  SafetensorsWriter writer(path, specs, metadata);
  uint32_t seed = 0;
  for (const TensorSpec& spec : writer.order()) writer.append(random_bytes(tensor_bytes(spec), seed++));
  writer.finish();
}

TEST(Safetensors, EveryDtypeAndShapeRoundTrips) {
  const TemporaryFolder folder;
  std::vector<TensorSpec> specs;
  for (const model::DtypeInfo& info : model::kDtypes) {
    const std::string name(info.name);
    specs.push_back({name + ".scalar", info.dtype, {}});
    specs.push_back({name + ".empty", info.dtype, {3, 0, 5}});
    specs.push_back({name + ".matrix", info.dtype, {7, 3}});
    specs.push_back({name + ".deep", info.dtype, {1, 2, 1, 3, 1, 1, 2, 1}});
  }
  specs.push_back({"", Dtype::kU8, {1}});
  specs.push_back({"Größe \"π\"\n\\ \U0001F600", Dtype::kU8, {5}});
  write_all(folder / "a", specs, {{"format", "pt"}, {"a \"quoted\" key", "line\nbreak"}});

  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(file.header().tensors.size(), specs.size());
  EXPECT_EQ(file.header().data_offset % 8, 0u);
  EXPECT_EQ(file.header().metadata, (std::vector<std::pair<std::string, std::string>>{
                                        {"a \"quoted\" key", "line\nbreak"}, {"format", "pt"}}));
  uint32_t seed = 0;
  for (const StoredTensor& entry : file.header().tensors) {
    const auto spec =
        std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return s.name == entry.name; });
    ASSERT_NE(spec, specs.end());
    EXPECT_EQ(static_cast<const TensorSpec&>(entry), *spec);
    EXPECT_EQ(entry.offset % (entry.bytes == 0 ? 1 : model::dtype_bytes(entry.dtype)), 0u);
    const TensorView view = file.tensor(entry.name);
    const std::vector<uint8_t> expected = random_bytes(tensor_bytes(*spec), seed++);
    EXPECT_TRUE(std::equal(view.bytes.begin(), view.bytes.end(), expected.begin(), expected.end()))
        << entry.name;
    EXPECT_EQ(view.shard_path, folder / "a");
  }
  EXPECT_EQ(file.tensor("BF16.matrix").as<uint16_t>().size(), 21u);
  EXPECT_EQ(file.tensor("F64.scalar").as<double>().size(), 1u);
  EXPECT_EQ(file.tensor("F32.empty").as<float>().size(), 0u);
  EXPECT_THROW(file.tensor("BF16.matrices"), Error);
  EXPECT_DEATH(file.tensor("BF16.matrix").as<float>(), "internal error");
}

TEST(Safetensors, WritingIsDeterministicAndIndependentOfTheOrderOfSpecs) {
  const TemporaryFolder folder;
  std::vector<TensorSpec> specs = {
      {"b", Dtype::kU8, {3}}, {"a", Dtype::kU8, {2}}, {"c", Dtype::kF32, {1}}, {"d", Dtype::kBf16, {1}}};
  write_all(folder / "1", specs);
  std::reverse(specs.begin(), specs.end());
  write_all(folder / "2", specs);
  EXPECT_EQ(read_file(folder / "1"), read_file(folder / "2"));
  const std::string json =
      "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
      "\"d\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[4,6]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(folder / "1").substr(8, padded.size()), padded);
  EXPECT_EQ(read_file(folder / "1").size(), 8 + padded.size() + 11);
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) {
  const TemporaryFolder folder;
  write_all(folder / "a", {});
  EXPECT_EQ(SafetensorsFile(folder / "a").header().tensors.size(), 0u);
  write_file_atomic(folder / "b", file_of("{}   \n", 0));
  EXPECT_EQ(SafetensorsFile(folder / "b").header().tensors.size(), 0u);
}

TEST(Safetensors, AnUnfinishedWriteLeavesNothingAndTheOldFileInPlace) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "old");
  {
    SafetensorsWriter writer(folder / "a", {{"x", Dtype::kF32, {4}}});
    writer.append(random_bytes(8, 0));
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.files(), 1);
  EXPECT_THROW(SafetensorsWriter(folder / "none" / "a", {}), Error);
  SafetensorsWriter writer(folder / "b", {{"x", Dtype::kF32, {4}}});
  EXPECT_DEATH(writer.finish(), "internal error");
  EXPECT_DEATH(writer.append(random_bytes(17, 0)), "internal error");
}

TEST(Safetensors, SpecsThatCannotBeWrittenAreRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<TensorSpec> specs) {
    EXPECT_THROW(SafetensorsWriter(folder / "a", std::move(specs)), Error);
    EXPECT_EQ(folder.files(), 0);
  };
  refused({{"a", Dtype::kU8, {1}}, {"b", Dtype::kU8, {1}}, {"a", Dtype::kF32, {2}}});
  refused({{"__metadata__", Dtype::kU8, {1}}});
  refused({{std::string(1025, 'n'), Dtype::kU8, {1}}});
  refused({{"\xff", Dtype::kU8, {1}}});
  refused({{"a", Dtype::kU8, {-1}}});
  refused({{"a", Dtype::kF64, {int64_t{1} << 60}}});
  refused({{"a", Dtype::kU8, std::vector<int64_t>(17, 1)}});
  refused(
      {{"a", Dtype::kU8, {int64_t{1} << 62}}, {"b", Dtype::kU8, {int64_t{1} << 62}}, {"c", Dtype::kU8, {1}}});
}

struct Malformed {
  std::string name, json, error;
  size_t data = 0;
};

std::vector<Malformed> malformed_cases() {
  std::ifstream file(SPARK_TEST_DATA "/checkpoint/malformed.test");
  std::vector<Malformed> cases;
  for (std::string line; std::getline(file, line);) {
    const auto value = [&](const char* key) {
      const size_t skip = std::strlen(key) + 1;
      return line.size() > skip ? line.substr(skip) : std::string();
    };
    if (line.starts_with("== ")) cases.emplace_back().name = line.substr(3);
    if (line.starts_with("json:")) cases.back().json = value("json:");
    if (line.starts_with("data:")) cases.back().data = std::stoul(value("data:"));
    if (line.starts_with("error:")) cases.back().error = value("error:");
  }
  return cases;
}

TEST(Safetensors, MalformedHeadersAreRefusedWithTheirReason) {
  const TemporaryFolder folder;
  const auto cases = malformed_cases();
  ASSERT_GT(cases.size(), 50u);
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.name);
    ASSERT_FALSE(malformed.error.empty());
    write_file_atomic(folder / "a", file_of(malformed.json, malformed.data));
    EXPECT_NE(error_of(folder / "a").find(malformed.error), std::string::npos) << error_of(folder / "a");
  }
}

TEST(Safetensors, BytesThatATextCannotShow) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& content) {
    write_file_atomic(folder / "a", content);
    return error_of(folder / "a");
  };
  const std::string good = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  EXPECT_NE(error(file_of(good + std::string("\0 anything", 10), 1)).find("a NUL character"),
            std::string::npos);
  EXPECT_NE(error(file_of("{\"\xff\":{}}", 0)).find("ill-formed UTF-8"), std::string::npos);
  EXPECT_NE(error(file_of("{\"\xed\xa0\x80\":{}}", 0)).find("ill-formed UTF-8"), std::string::npos);
  EXPECT_NE(error(file_of("\xef\xbb\xbf{}", 0)).find("does not start with"), std::string::npos);
  EXPECT_NE(error(file_of("{\"a\tb\":{}}", 0)).find("is not valid JSON"), std::string::npos);
  EXPECT_NE(error(file_of("{\"" + std::string(1025, 'n') + "\":{}}", 0)).find("a tensor name of 1025 bytes"),
            std::string::npos);
  EXPECT_NE(error(file_of("{\"a\":" + std::string(100000, '['), 0)).find("must be an object, not an array"),
            std::string::npos);
  EXPECT_NE(error("").find("is 0 bytes long"), std::string::npos);
  EXPECT_NE(error("1234567").find("is 7 bytes long"), std::string::npos);
  EXPECT_NE(error(std::string("\0\0\0\0\0\0\0\0", 8)).find("does not start with"), std::string::npos);
  EXPECT_NE(
      error("\x10" + std::string(7, '\0') + "{}").find("claims a header of 16 bytes, but only 2 follow"),
      std::string::npos);
  EXPECT_NE(error(std::string(8, '\xff') + "{}").find("the limit is 100,000,000"), std::string::npos);
}

TEST(Safetensors, AThousandFaultsAreCountedAndFiftyShown) {
  const TemporaryFolder folder;
  std::string json = "{";
  for (int i = 0; i < 1000; ++i) {
    json +=
        (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + R"(":{"dtype":"U7","shape":[],"data_offsets":[0,0]})";
  }
  write_file_atomic(folder / "a", file_of(json + "}", 0));
  const std::string error = error_of(folder / "a");
  EXPECT_EQ(error.find("1,000 faults"), 0u) << error;
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 51);
  EXPECT_NE(error.find("... and 950 more"), std::string::npos);
}

TEST(Safetensors, TruncationAtEveryByteIsAnError) {
  const TemporaryFolder folder;
  write_all(folder / "whole", {{"a", Dtype::kF32, {3, 2}}, {"b", Dtype::kBf16, {5}}, {"c", Dtype::kU8, {3}}},
            {{"format", "pt"}});
  const std::string whole = read_file(folder / "whole");
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file_atomic(folder / "cut", whole.substr(0, length));
    EXPECT_NE(error_of(folder / "cut"), "no error") << length;
  }
}

TEST(Safetensors, AnyChangedByteIsAnErrorOrADifferentValidFile) {
  const TemporaryFolder folder;
  write_all(folder / "whole", {{"a", Dtype::kF32, {2}}, {"b", Dtype::kU8, {3}}});
  const std::string whole = read_file(folder / "whole");
  std::mt19937 random(1);
  for (size_t at = 0; at + 11 < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(1 << random() % 8));
    write_file_atomic(folder / "a", changed);
    try {
      const SafetensorsFile file(folder / "a");
      uint64_t bytes = 0;
      for (const StoredTensor& entry : file.header().tensors) bytes += file.view(entry).bytes.size();
      EXPECT_EQ(bytes, 11u);
    } catch (const Error& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
    }
  }
}

TEST(Safetensors, WhatIsNoRegularFileIsRefusedAtOnce) {
  const TemporaryFolder folder;
  EXPECT_THROW(SafetensorsFile(folder / "none"), Error);
  EXPECT_THROW(SafetensorsFile{folder.path()}, Error);
  EXPECT_THROW(SafetensorsFile("/dev/zero"), Error);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsFile(folder / "pipe"), Error);
}

TEST(Safetensors, MisalignedElementsAreRefusedWhenAskedFor) {
  const TemporaryFolder folder;
  std::string json = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  while (json.size() % 4 != 1) json += ' ';
  write_file_atomic(folder / "a", file_of(json, 4));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.tensor("a").bytes.size(), 4u);
  EXPECT_THROW(file.tensor("a").as<float>(), Error);
  const float value = file.tensor("a").copy<float>().at(0);
  EXPECT_EQ(std::memcmp(&value, "xxxx", 4), 0);
  EXPECT_DEATH(file.tensor("a").copy<double>(), "internal error");
}

TEST(Safetensors, AFileThatGrewSinceItWasOpenedIsNotMapped) {
  const TemporaryFolder folder;
  write_all(folder / "a", {{"a", Dtype::kF32, {2}}});
  const SafetensorsFile file(folder / "a");
  std::ofstream(folder / "a", std::ios::app) << "more";
  EXPECT_THROW(file.tensor("a"), Error);
}

}  // namespace
}  // namespace spark::engine
