#include "ops/guard/text.h"

#include <gtest/gtest.h>

#include "ops/guard/kernel.h"
#include "ops/guard/options.h"
#include "ops/guard/policy.h"
#include "ops/guard/report.h"

namespace spark::ops {
namespace {

constexpr GuardLimits kLimits = {.threshold_kib = 1000, .interval_ms = 100, .wait_ms = 5000};

TEST(GuardPolicy, EveryCaseOfTheLoop) {
  struct Case {
    GuardMode mode;
    TargetSeen target;
    int64_t available;
    int64_t elapsed;
    GuardVerdict verdict;
    const char* reason;
  };
  using enum GuardMode;
  using enum TargetSeen;
  using enum GuardVerdict;
  const Case cases[] = {
      {kWaiting, kNotRunning, 2000, 0, kContinue, ""},
      {kWaiting, kUnknown, 2000, 4999, kContinue, ""},
      {kWaiting, kNotRunning, 2000, 5000, kGiveUp, "service-did-not-appear"},
      {kWaiting, kUnknown, 2000, 5000, kGiveUp, "service-did-not-appear"},
      {kWaiting, kNotRunning, 999, 0, kGiveUp, "low-memory"},
      {kWaiting, kNotRunning, -1, 0, kGiveUp, "memory-unreadable"},
      {kWaiting, kRunning, 1000, 9000, kContinue, ""},
      {kWaiting, kRunning, 999, 0, kKill, "low-memory"},
      {kWaiting, kRunning, -1, 0, kKill, "memory-unreadable"},
      {kWatching, kRunning, 1000, 9000, kContinue, ""},
      {kWatching, kRunning, 999, 9000, kKill, "low-memory"},
      {kWatching, kRunning, -1, 9000, kKill, "memory-unreadable"},
      {kWatching, kUnknown, 2000, 0, kKill, "service-unreadable"},
      {kWatching, kNotRunning, 0, 0, kEnded, "service-ended"},
  };
  for (const Case& each : cases) {
    const GuardDecision decision = decide(each.mode, {each.target, each.available}, kLimits, each.elapsed);
    EXPECT_EQ(decision.verdict, each.verdict) << each.reason;
    EXPECT_STREQ(decision.reason, each.reason);
    if (each.target == kRunning) {
      EXPECT_EQ(decision.mode, kWatching);
    }
  }
}

TEST(GuardText, NumbersAndCuts) {
  FixedText<8> text;
  text.add_number(-42).add("abcdefgh");
  EXPECT_EQ(text.view(), "-42abcd");
  EXPECT_TRUE(text.full());
  EXPECT_EQ(FixedText<32>().add_number(std::numeric_limits<int64_t>::min()).view(), "-9223372036854775808");
  EXPECT_EQ(leading_number("12 kB"), 12);
  EXPECT_EQ(leading_number("x"), -1);
  EXPECT_EQ(leading_number("99999999999999999999"), -1);
}

TEST(GuardText, Meminfo) {
  constexpr const char* kText = "MemTotal:       100 kB\nMemAvailableX: 1 kB\nMemAvailable:    77 kB\n";
  EXPECT_EQ(meminfo_kib(kText, "MemAvailable"), 77);
  EXPECT_EQ(meminfo_kib(kText, "SwapFree"), -1);
  EXPECT_EQ(meminfo_kib("MemAvailable:    77\n", "MemAvailable"), -1);
  EXPECT_EQ(meminfo_kib("", "MemAvailable"), -1);
}

TEST(GuardText, LinesOfVmstat) {
  constexpr const char* kText = "nr_free_pages 9\npswpin 4711\npswpinx 1\npswpout 2\n";
  EXPECT_EQ(number_of_line(kText, "pswpin"), 4711);
  EXPECT_EQ(number_of_line(kText, "pswpout"), 2);
  EXPECT_EQ(number_of_line(kText, "pswp"), -1);
  EXPECT_EQ(number_of_line("pswpin", "pswpin"), -1);
}

TEST(GuardText, ContainerStateIsReadFromTheRightPlace) {
  const auto state = [](const std::string& json) {
    return container_state("HTTP/1.0 200 OK\r\nA: b\r\n\r\n" + json);
  };
  const ContainerState running = state(
      R"({"Id":"x","Args":["\"State\":{\"Running\":false,\"Pid\":1}","{"],"Other":{"State":{"Running":false,"Pid":9}},)"
      R"("State":{"Status":"running","Running":true,"Health":{"Running":false,"Pid":2},"Pid":4711},"Pid":3})");
  EXPECT_TRUE(running.valid);
  EXPECT_TRUE(running.running);
  EXPECT_EQ(running.pid, 4711);
  EXPECT_FALSE(state(R"({"State":{"Running":false,"Pid":0}})").running);
  EXPECT_TRUE(state(R"({"State":{"Running":false,"Pid":0}})").valid);
  EXPECT_TRUE(container_state("HTTP/1.0 404 Not Found\r\n\r\n{}").valid);
  for (const char* broken :
       {"", "HTTP/1.0 500 X\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n{\"State\":{\"Run",
        "HTTP/1.0 200 OK\r\n\r\n{\"State\":{\"Running\":true,\"Pid\":0}}", "nonsense"})
    EXPECT_FALSE(container_state(broken).valid) << broken;
}

TEST(GuardText, CgroupsOfAllLayouts) {
  constexpr const char* kHybrid = "9:name=systemd:/\n8:pids:/docker/abc\n4:memory,foo:/m\n0::/docker/abc\n";
  EXPECT_EQ(cgroup_v2_path(kHybrid), "/docker/abc");
  EXPECT_EQ(cgroup_v1_path(kHybrid, "pids"), "/docker/abc");
  EXPECT_EQ(cgroup_v1_path(kHybrid, "memory"), "/m");
  EXPECT_EQ(cgroup_v1_path(kHybrid, "cpu"), "");
  constexpr const char* kMounts =
      "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
      "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
  EXPECT_EQ(cgroup_v2_mount(kMounts), "/sys/fs/cgroup/unified");
  EXPECT_EQ(cgroup_v1_mount(kMounts, "pids"), "/sys/fs/cgroup/pids");
  EXPECT_EQ(cgroup_v1_mount(kMounts, "memory"), "");
}

TEST(GuardOptions, AreWhatTheUnitSays) {
  const char* environment[] = {"THRESHOLD_GIB=5",
                               "INTERVAL=0.25",
                               "CONTAINER_NAME=dsv41",
                               "MEMGUARD_PHASE=startup",
                               "WAIT_FOR_CONTAINER_SECONDS=120",
                               "READY_FILE=/r",
                               nullptr};
  const char* none[] = {"spark-guard"};
  const GuardCommand command = read_guard_command(1, none, environment);
  EXPECT_TRUE(command.fault.empty()) << command.fault.c_str();
  EXPECT_EQ(command.options.limits.threshold_kib, 5 << 20);
  EXPECT_EQ(command.options.limits.interval_ms, 250);
  EXPECT_EQ(command.options.limits.wait_ms, 120000);
  EXPECT_EQ(command.options.ready_file.view(), "/r");
  const char* flags[] = {"spark-guard", "switch", "--threshold-mib", "7",
                         "--phase",     "steady", "--interval",      "2"};
  const GuardCommand change = read_guard_command(8, flags, environment);
  EXPECT_EQ(change.request, GuardRequest::kSwitch);
  EXPECT_EQ(change.options.limits.threshold_kib, 7 << 10);
  EXPECT_EQ(change.options.stage, GuardStage::kSteady);
}

TEST(GuardOptions, WhatCannotBeIsAUsageError) {
  const char* good[] = {"THRESHOLD_GIB=5", "INTERVAL=1", "CONTAINER_NAME=a", nullptr};
  const char* none[] = {"spark-guard"};
  EXPECT_TRUE(read_guard_command(1, none, good).fault.empty());
  for (const char* wrong : {"THRESHOLD_GIB=0", "THRESHOLD_GIB=2.5", "THRESHOLD_GIB=-1", "INTERVAL=0",
                            "INTERVAL=1.x", "INTERVAL=1e3", "CONTAINER_NAME=a/b", "CONTAINER_NAME=a b",
                            "MEMGUARD_PHASE=later", "WAIT_FOR_CONTAINER_SECONDS=1.5"}) {
    const char* environment[] = {wrong, good[0], good[1], good[2], nullptr};
    EXPECT_FALSE(read_guard_command(1, none, environment).fault.empty()) << wrong;
  }
  const char* unknown[] = {"spark-guard", "--treshold-gib", "3"};
  EXPECT_FALSE(read_guard_command(3, unknown, good).fault.empty());
  const char* nothing[] = {nullptr};
  EXPECT_FALSE(read_guard_command(1, none, nothing).fault.empty());
}

TEST(GuardReport, StatusIsReadBackAndAdoptedOnlyWhenItFits) {
  GuardOptions options;
  options.service.add("s");
  options.stage = GuardStage::kSteady;
  options.limits = {3000, 2000, 0};
  GuardStatus status;
  status.state = "watching";
  status.pid = 77;
  const StatusText text = status_text(options, status, "boot-1");
  EXPECT_EQ(value_of(text.view(), "threshold_kib"), "3000");
  EXPECT_EQ(value_of(text.view(), "kib"), "");
  GuardOptions restarted;
  restarted.limits = {5000, 250, 0};
  EXPECT_FALSE(adopt_previous(restarted, text.view(), 78, "boot-1"));
  EXPECT_FALSE(adopt_previous(restarted, text.view(), 77, "boot-2"));
  EXPECT_FALSE(adopt_previous(restarted, "", 77, "boot-1"));
  EXPECT_EQ(restarted.limits.threshold_kib, 5000);
  EXPECT_TRUE(adopt_previous(restarted, text.view(), 77, "boot-1"));
  EXPECT_EQ(restarted.limits.threshold_kib, 3000);
  EXPECT_EQ(restarted.stage, GuardStage::kSteady);
}

TEST(GuardReport, SwitchRequests) {
  EXPECT_TRUE(parse_switch("steady 3145728 2000").wanted);
  for (const char* wrong :
       {"", "steady", "steady 0 2000", "steady 1 5", "later 1 100", "steady 1 100 x", "steady -1 100"})
    EXPECT_FALSE(parse_switch(wrong).wanted) << wrong;
}

TEST(GuardKernel, DriverErrorsAndPressure) {
  EXPECT_TRUE(is_driver_out_of_memory("6,1,2,-;NVRM: nvAssertFailed: ... NV_ERR_NO_MEMORY (0x51)"));
  EXPECT_TRUE(is_driver_out_of_memory("4,1,2,-;NVRM: GPU 000f: out of memory"));
  EXPECT_FALSE(is_driver_out_of_memory("6,1,2,-;eth0: link up"));
  EXPECT_EQ(full_pressure("some avg10=1.00 x\nfull avg10=0.37 avg60=0.00\n"), "0.37");
  EXPECT_EQ(full_pressure("some avg10=1.00\n"), "");
}

}  // namespace
}  // namespace spark::ops
