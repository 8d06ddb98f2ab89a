#include "common/process.h"

#include <gtest/gtest.h>

#include <chrono>

#include "common/error.h"
#include "common/hash.h"

namespace spark {
namespace {

TEST(Process, KeepsStreamsAndExitCodeApart) {
  const ProcessResult result = run_process({"sh", "-c", "echo out; echo err >&2; exit 7"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.error, "err\n");
}

TEST(Process, PassesArgumentsWithoutAShell) {
  EXPECT_EQ(run_process({"printf", "%s|", "a b", "$HOME", "'"}).output, "a b|$HOME|'|");
}

TEST(Process, RunsInAFolderWithEmptyInput) {
  EXPECT_EQ(run_process({"pwd"}, {.directory = "/"}).output, "/\n");
  EXPECT_EQ(run_process({"cat"}).output, "");
}

TEST(Process, ReportsTheSignalThatEndedIt) {
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}).exit_code, 128 + 9);
}

TEST(Process, ReadsMoreThanAPipeHolds) {
  EXPECT_EQ(run_process({"head", "-c", "3000000", "/dev/zero"}).output.size(), 3000000u);
}

TEST(Process, RefusesWhatCannotBeStarted) {
  EXPECT_THROW(run_process({"/no/such/program"}), Error);
  EXPECT_THROW(run_process({"true"}, {.directory = "/no/such/folder"}), Error);
}

TEST(Process, StopsWhatTakesTooLongWithItsChildren) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_process({"sh", "-c", "sleep 60 & sleep 60"}, {.timeout_s = 0.2}), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Process, StopsWhatWritesTooMuch) {
  EXPECT_THROW(run_process({"cat", "/dev/zero"}, {.max_output_bytes = 100000}), Error);
}

// A child may end between any two looks at it; one in some hundred calls once waited for its limit then.
TEST(Process, IsNeverWaitedForAfterItsEnd) {
  for (int i = 0; i < 1500; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    run_process({"true"}, {.timeout_s = 20});
    ASSERT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20)) << "call " << i;
  }
}

TEST(Hash, Sha256) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace spark
