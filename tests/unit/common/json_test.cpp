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

TEST(Json, ANumberBeyondADoubleIsToldInOurWords) {
  EXPECT_EQ(error_of("{\n  \"a\": 1e400}"),
            "file.json: has a number that no double holds at line 2, column 12: 1e400");
  const std::string long_one = error_of("[" + std::string(500, '9') + "]");
  EXPECT_NE(long_one.find(std::string(40, '9') + "..."), std::string::npos) << long_one;
  EXPECT_EQ(long_one.find("json.exception"), std::string::npos) << long_one;
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
  const std::string fault = error_of("{\"a\": 1,}");  // one place, not the parser's own beside it
  EXPECT_NE(fault.find("line 1, column "), std::string::npos) << fault;
  EXPECT_EQ(fault.find("column", fault.find("column") + 1), std::string::npos) << fault;
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
  Faults faults;
  for (int i = 0; i < 1000; ++i) faults.push_back({"x", "is wrong", ""});
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

TEST(Faults, BeyondTheListedOnesAreCounted) {
  Faults faults(2);
  for (const char* where : {"a", "b"}) faults.push_back({where, "is wrong", ""});
  EXPECT_TRUE(faults.full());
  EXPECT_EQ(faults.more(), 0U);
  for (const char* where : {"c", "d", "e"}) faults.push_back({where, "is wrong", ""});
  EXPECT_EQ(faults.size(), 5U);
  EXPECT_EQ(faults.more(), 3U);
  std::vector<std::string> lines;
  for (const Fault& fault : faults) lines.push_back(fault.where + " " + fault.what);
  EXPECT_EQ(lines, (std::vector<std::string>{"a is wrong", "b is wrong", " ... and 3 more"}));
}

TEST(JsonReader, CollectsNoMoreFaultsThanAreListed) {
  const Json value = parse_json(
      "[" + std::string(2000, ' ') + "1" +
          [] {
            std::string text;
            for (int i = 0; i < 50000; ++i) text += ",{}";
            return text;
          }() +
          "]",
      "t");
  Faults faults;
  for (const JsonReader& item : JsonReader(value, "", faults).items()) item.field("mtu").integer();
  EXPECT_EQ(faults.size(), 50001U);
  EXPECT_EQ(std::distance(faults.begin(), faults.end()), 101);
  EXPECT_EQ(faults[99].where, "[99].mtu");
  Faults sought;
  int looked_at = 0;
  JsonReader(value, "", sought).each([&](const JsonReader& item) {
    item.field("mtu").integer();
    ++looked_at;
  });
  EXPECT_EQ(looked_at, 101);
  EXPECT_EQ((sought.end() - 1)->what, "... and at least 1 more");
}

TEST(ParseJson, RefusesByteOrderMarksClearly) {
  EXPECT_NE(error_of("\xEF\xBB\xBF{}").find("begins with a byte order mark"), std::string::npos);
  EXPECT_NE(error_of("\xEF\xBB\xBF{}").find("to fix: save"), std::string::npos);
  EXPECT_NE(error_of("{}\n\xEF\xBB\xBF").find("line 2, column 1: a byte order mark"), std::string::npos);
  EXPECT_NE(error_of("\xFF\xFE{").find("UTF-16"), std::string::npos);
  EXPECT_NE(error_of(std::string_view("\xFE\xFF\0{", 4)).find("UTF-16"), std::string::npos);
  EXPECT_NE(error_of(std::string_view("\0{}", 3)).find("line 1, column 1: a NUL character"),
            std::string::npos);
}

TEST(ParseJson, KeepsTheDigitsOfLongIntegersIfAsked) {
  const std::string text = R"([18446744073709551616,-9223372036854775809,1e3,18446744073709551615,-0])";
  const Json usual = parse_json(text, "t");
  EXPECT_TRUE(usual[0].is_number_float());
  EXPECT_FALSE(has_huge_integer(usual));
  const Json exact = parse_json(text, "t", {.exact_integers = true});
  EXPECT_TRUE(has_huge_integer(exact));
  EXPECT_EQ(huge_integer_digits(exact[0]), "18446744073709551616");
  EXPECT_EQ(huge_integer_digits(exact[1]), "-9223372036854775809");
  EXPECT_EQ(exact[2], 1000.0);
  EXPECT_EQ(exact[3], 18446744073709551615U);
  Faults faults;
  JsonReader(exact, "", faults).item(0).integer();
  EXPECT_EQ(faults[0].what, "must be an integer, not an integer beyond 64 bits");
  EXPECT_THROW(parse_json("[" + std::string(400, '9') + "]", "t", {.exact_integers = true}), JsonRangeError);
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

TEST(Json, CountsValuesAndThoseThatTakeMemory) {
  const JsonLimits limits = {.max_values = 6, .max_allocated_values = 3};
  EXPECT_NO_THROW(parse_json("[1,2,3,4,5]", "numbers", limits));
  EXPECT_THROW(parse_json("[1,2,3,4,5,6]", "numbers", limits), Error);
  for (const char* three : {R"(["",""])", "[[],{}]", R"({"a":{"b":""}})"})
    EXPECT_NO_THROW(parse_json(three, "three", limits)) << three;
  for (const char* four : {R"(["","",""])", "[[],{},[]]", R"({"a":{"b":["",1]}})"})
    EXPECT_THROW(parse_json(four, "four", limits), Error) << four;
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
