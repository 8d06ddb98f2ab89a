// Log lines for people and for machines, the bar, and what memory is there.
#include "common/log.h"

#include <gtest/gtest.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/progress.h"

namespace spark {
namespace {

TEST(Log, TextLines) {
  EXPECT_EQ(log_line(LogFormat::kText, LogLevel::kInfo, "T", "loaded", {}), "T info  loaded\n");
  EXPECT_EQ(log_line(LogFormat::kText, LogLevel::kWarning, "T", "slow",
                     {{"tensors", 915}, {"seconds", 1.25}, {"ok", true}, {"name", "a b"}, {"none", ""}}),
            "T warn  slow tensors=915 seconds=1.25 ok=true name=\"a b\" none=\"\"\n");
  EXPECT_EQ(log_line(LogFormat::kText, LogLevel::kError, "T", "x", {{"file", std::string("/a/b.json")}}),
            "T error x file=/a/b.json\n");
}

TEST(Log, JsonLinesAreJson) {
  const std::string line = log_line(LogFormat::kJson, LogLevel::kDebug, "T", "he said \"no\"\n",
                                    {{"tensors", 915}, {"seconds", 1.5}, {"ok", false}, {"name", "a b"}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Json read = parse_json(line, "line");
  EXPECT_EQ(read["level"], "debug");
  EXPECT_EQ(read["message"], "he said \"no\"\n");
  EXPECT_EQ(read["tensors"], 915);
  EXPECT_EQ(read["seconds"], 1.5);
  EXPECT_EQ(read["ok"], false);
  EXPECT_EQ(read["name"], "a b");
  // Bytes that are no UTF-8 come from file names and clients.
  const std::string odd = log_line(LogFormat::kJson, LogLevel::kInfo, "T", "\xff\xfe", {{"x", "\xc3"}});
  EXPECT_EQ(parse_json(odd, "line")["message"], "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Progress, Bar) {
  EXPECT_EQ(progress_bar("loading", 0, 1 << 20, 0),
            "loading   0% [                    ] 0 B of 1.00 MiB, 0 B/s");
  EXPECT_EQ(progress_bar("loading", 1 << 19, 1 << 20, 0.5),
            "loading  50% [##########          ] 512.00 KiB of 1.00 MiB, 1.00 MiB/s, 1 s left");
  EXPECT_EQ(progress_bar("loading", 2 << 20, 1 << 20, 1),
            "loading 100% [####################] 1.00 MiB of 1.00 MiB, 1.00 MiB/s");
  EXPECT_NE(progress_bar("nothing", 0, 0, 0).find("100%"), std::string::npos);
}

TEST(Memory, OfTheMachineAndOfAGroup) {
  EXPECT_EQ(meminfo_available("MemTotal:  100 kB\nMemAvailable:    2048 kB\nX: 1 kB\n"), 2048u * 1024);
  EXPECT_EQ(meminfo_available("MemTotal:  100 kB\n"), std::nullopt);
  EXPECT_EQ(group_available("1000\n", "700\n", "anon 1\ninactive_file 300\n"), 600u);
  EXPECT_EQ(group_available("1000\n", "1500\n", ""), 0u);
  EXPECT_EQ(group_available("max\n", "700\n", ""), std::nullopt);
  EXPECT_EQ(group_available("", "", ""), std::nullopt);
  EXPECT_GT(available_memory().value_or(0), 0u);
}

}  // namespace
}  // namespace spark
