#include "ops/probe/dump.h"

#include <gtest/gtest.h>

#include "common/file.h"
#include "ops/probe/facts.h"

namespace spark::ops {
namespace {

std::string healthy() {
  return read_file(std::string(SPARK_TEST_DATA) + "/probe/spark-64k.dump");
}

Faults faults_of(const std::string& text) {
  Faults faults;
  const ProbeDump dump = parse_dump(text, faults);
  read_facts(dump, faults);
  return faults;
}

std::string first_fault(const std::string& text) {
  const Faults faults = faults_of(text);
  return faults.empty() ? std::string() : faults[0].where + " " + faults[0].what;
}

TEST(Dump, ReadsFilesAndCommands) {
  Faults faults;
  const ProbeDump dump = parse_dump(
      "Welcome to node1\nspark-probe 1\n@files\n|proc/meminfo:MemTotal: 5 kB\n|proc/meminfo:MemFree: 1 "
      "kB\n|\n|2\n"
      "@gpu\n|a, b\n|c\n|\n|0\n@efi\n|\n|2\n!efibootmgr: no EFI\n#end\n",
      faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_TRUE(dump.complete);
  EXPECT_EQ(*dump.file("/proc/meminfo"), "MemTotal: 5 kB\nMemFree: 1 kB");
  EXPECT_EQ(dump.command("gpu")->output, "a, b\nc");
  EXPECT_EQ(dump.command("efi")->failure(), "failed: efibootmgr: no EFI");
  EXPECT_EQ(dump.command("other"), nullptr);
}

TEST(Dump, FormatAndParseAgree) {
  Faults faults;
  const ProbeDump first = parse_dump(healthy(), faults);
  const ProbeDump second = parse_dump(format_dump(first), faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(format_dump(first), format_dump(second));
  EXPECT_EQ(first.files, second.files);
}

TEST(Dump, EveryDamageIsNamed) {
  EXPECT_NE(first_fault("").find("the script did not run"), std::string::npos);
  EXPECT_NE(first_fault("bash: sh: command not found\n").find("the script did not run"), std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n").find("ends before its last line"), std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@gpu\n|x\n").find("gpu is cut off"), std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@gpu\n|x\n|\n|zero\n#end\n").find("gpu has no exit status"),
            std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@gpu\n|\n|0\n@gpu\n|\n|0\n#end\n").find("gpu stands twice"),
            std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@../x\n|\n|0\n#end\n").find("a section with the name"),
            std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\nhello\n#end\n").find("which is of no known form"), std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@files\n|no colon\n|\n|0\n#end\n").find("names no file"),
            std::string::npos);
  EXPECT_NE(first_fault("spark-probe 1\n@files\n|\n|124\n#end\n").find("took longer"), std::string::npos);
  EXPECT_NE(first_fault(std::string(kMaxDumpBytes + 1, 'x')).find("larger than"), std::string::npos);
}

TEST(Dump, EveryCutIsNoticed) {
  const std::string text = healthy();
  for (size_t length = 0; length + 1 < text.size(); length += 97) {
    Faults faults;
    parse_dump(text.substr(0, length), faults);
    EXPECT_FALSE(faults.empty()) << length;
  }
  Faults faults;
  parse_dump(text.substr(0, text.size() - 1), faults);  // only the last line's end is gone
  EXPECT_TRUE(faults.empty());
}

TEST(Facts, HealthyNodeReads) {
  Faults faults;
  std::string text = healthy();
  const Facts facts = read_facts(parse_dump(text, faults), faults);
  EXPECT_EQ(facts.kernel.release, "7.0.0-1019-nvidia-64k");
  EXPECT_EQ(facts.kernel.page_size, 65536);
  EXPECT_EQ(facts.memory.total_kib, 124804416);
  EXPECT_EQ(facts.memory.free_blocks.size(), 14u);
  EXPECT_EQ(facts.network.rdma.size(), 4u);
  EXPECT_EQ(facts.network.device("rocep1s0f0")->rate_gbps, 200);
  EXPECT_EQ(facts.network.device("rocep1s0f0")->active_mtu, 4096);
  EXPECT_EQ(facts.network.device("rocep1s0f0")->gids.size(), 4u);
  ASSERT_TRUE(facts.gpu);
  EXPECT_EQ(facts.gpu->clock_mhz, 2411);
  EXPECT_EQ(facts.host.console_mode, 0);
  EXPECT_EQ(facts.host.runtime_watchdog_s, 30);
  EXPECT_EQ(facts.host.reboot_watchdog_s, 600);
  EXPECT_EQ(facts.kernel.grub.entries.size(), 3u);
  EXPECT_EQ(facts.model.shards.size(), 4u);
  EXPECT_EQ(facts.docker.storage_driver, "overlay2");
  EXPECT_EQ(facts.kernel.secure_boot, true);
  EXPECT_EQ(facts.kernel.fan_key_enrolled, true);
}

TEST(Facts, JsonOfAnyAnswerIsValid) {
  Faults faults;
  const std::string text = facts_json(read_facts(parse_dump(healthy(), faults), faults)).dump();
  EXPECT_EQ(parse_json(text, "facts").at("kernel").at("page_size"), 65536);
  EXPECT_NO_THROW(facts_json(read_facts(parse_dump("\xff\xfe", faults), faults)).dump());
}

}  // namespace
}  // namespace spark::ops
