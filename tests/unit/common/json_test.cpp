#include "common/json.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace spark {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_json(text, "file.json");
  } catch (const Error& error) {
    return error.describe();
  }
  return "";
}

TEST(ParseJson, KeepsOrderAndReportsPosition) {
  const Json value = parse_json(R"({"b":1,"a":[true,null,"x"]})", "t");
  EXPECT_EQ(value.dump(), R"({"b":1,"a":[true,null,"x"]})");
  EXPECT_NE(error_of("{\n  \"a\": 1,\n}").find("file.json: is not valid JSON at line 3"), std::string::npos);
}

TEST(ParseJson, RefusesWhatStrictReadersMustRefuse) {
  EXPECT_NE(error_of(R"({"a":1,"a":2})").find("stands twice"), std::string::npos);
  EXPECT_NE(error_of(std::string(100, '[')).find("nested deeper"), std::string::npos);
  EXPECT_FALSE(error_of("1 2").empty());
  EXPECT_FALSE(error_of("\"\xff\"").empty());
  EXPECT_FALSE(error_of("1e999").empty());
  EXPECT_FALSE(error_of("// x\n1").empty());
  EXPECT_FALSE(error_of("").empty());
  EXPECT_NE(error_of(std::string_view("{}\0 x", 5)).find("line 1, column 3: a NUL character"),
            std::string::npos);
}

TEST(JsonReader, CollectsEveryFaultWithItsPath) {
  const Json value = parse_json(R"({"nodes":[{"mtu":"9000"},{"mtu":5,"nmae":1}]})", "t");
  Faults faults;
  const JsonReader root(value, "", faults);
  for (const JsonReader& node : root.field("nodes").items()) {
    node.field("mtu").integer(576, 9216);
    node.reject_unknown({"mtu", "name"});
  }
  root.field("absent").string();
  ASSERT_EQ(faults.size(), 4u);
  EXPECT_EQ(faults[0].where, "nodes[0].mtu");
  EXPECT_EQ(faults[0].what, "must be an integer, not a string");
  EXPECT_EQ(faults[1].where, "nodes[1].mtu");
  EXPECT_EQ(faults[2].hint, "did you mean \"name\"?");
  EXPECT_EQ(faults[3].what, "is missing");
}

TEST(JsonReader, IntegersBeyondInt64AreFaultsNotWraps) {
  const Json value = parse_json("18446744073709551615", "t");
  Faults faults;
  EXPECT_EQ(JsonReader(value, "x", faults).integer(0), 0);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].what, "is 18446744073709551615; it must be at most 9223372036854775807");
}

TEST(Faults, AreListedUpToAHundred) {
  const Faults faults(1000, Fault{"x", "is wrong", ""});
  try {
    throw_if_any(faults, "file.json");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 101);
    EXPECT_NE(text.find("1000 faults"), std::string::npos);
    EXPECT_NE(text.find("and 900 more"), std::string::npos);
  }
}

// The library's builder compares every key with all before it, which took minutes here.
TEST(Json, WideObjectsTakeLinearTime) {
  constexpr int kMembers = 200'000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) text += "\"key " + std::to_string(i) + "\":" + std::to_string(i) + ",";
  const Json wide = parse_json(text + "\"last\":[{},[]]}", "wide");
  ASSERT_EQ(wide.size(), kMembers + 1u);
  EXPECT_EQ(wide.begin().key(), "key 0");
  EXPECT_EQ(wide["last"].dump(), "[{},[]]");
  EXPECT_THROW(parse_json(text + "\"key 7\":0}", "wide"), Error);
  EXPECT_THROW(parse_json(text + "\"last\":0}", "wide", {.max_members = kMembers}), Error);
}

TEST(Json, EveryKindOfValueIsBuilt) {
  const std::string text =
      R"([null,true,false,-3,18446744073709551615,0.5,"t\u00e9",{"a":[],"b":{"c":{}}},[[1,2],[]]])";
  EXPECT_EQ(parse_json(text, "kinds"), Json::parse(text));
  for (const char* scalar : {"null", "true", "5", "-5", "0.25", "\"x\"", "[]", "{}"})
    EXPECT_EQ(parse_json(scalar, "scalar"), Json::parse(scalar)) << scalar;
}

}  // namespace
}  // namespace spark
