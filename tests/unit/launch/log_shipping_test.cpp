// Logs that are fetched piece by piece are what was said, each line once, in files of bounded size.
#include "ops/launch/log_shipping.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/file.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

std::string timed_line(int second, const std::string& text) {
  char stamp[64];
  std::snprintf(stamp, sizeof stamp, "2026-11-29T22:00:%02d.123456789Z ", second);
  return stamp + text + "\n";
}

TEST(LogShipping, LinesUpToTheCursorAreNotRepeated) {
  const LogChunk first =
      read_log_answer(LaunchRuntime::kContainer, "c1\n" + timed_line(1, "a") + timed_line(2, "b"), "", 1000);
  EXPECT_EQ(first.text, timed_line(1, "a") + timed_line(2, "b"));
  EXPECT_EQ(first.cursor, "c1 2026-11-29T22:00:02.123456789Z");
  const LogChunk second = read_log_answer(
      LaunchRuntime::kContainer, "c1\n" + timed_line(2, "b") + timed_line(3, "c"), first.cursor, 1000);
  EXPECT_EQ(second.text, timed_line(3, "c"));
  const LogChunk nothing = read_log_answer(LaunchRuntime::kContainer, "c1\n", second.cursor, 1000);
  EXPECT_TRUE(nothing.text.empty());
  EXPECT_EQ(nothing.cursor, second.cursor);
  // Another container begins at its beginning.
  const LogChunk other =
      read_log_answer(LaunchRuntime::kContainer, "c2\n" + timed_line(1, "z"), second.cursor, 1000);
  EXPECT_EQ(other.text, timed_line(1, "z"));
}

TEST(LogShipping, ACutAnswerIsContinued) {
  const std::string whole = timed_line(1, "a") + timed_line(2, "b");
  const std::string cut = "c1\n" + whole.substr(0, whole.size() - 3);
  const LogChunk chunk = read_log_answer(LaunchRuntime::kContainer, cut, "", whole.size() - 3);
  EXPECT_EQ(chunk.text, timed_line(1, "a"));
  EXPECT_TRUE(chunk.more);
  const LogChunk process = read_log_answer(LaunchRuntime::kProcess, "77\nabcd", "77 10", 4);
  EXPECT_EQ(process.text, "abcd");
  EXPECT_EQ(process.cursor, "77 14");
  EXPECT_TRUE(process.more);
  EXPECT_EQ(read_log_answer(LaunchRuntime::kProcess, "78\nabc", "77 10", 100).cursor, "78 3");
}

TEST(LogShipping, AUnitsCursorIsTheJournals) {
  const LogChunk chunk = read_log_answer(LaunchRuntime::kUnit, "unit\nline\n-- cursor: s=1;i=2\n", "", 1000);
  EXPECT_EQ(chunk.text, "line\n");
  EXPECT_EQ(chunk.cursor, "unit s=1;i=2");
  EXPECT_TRUE(read_log_answer(LaunchRuntime::kUnit, "unit\n-- No entries --\n-- cursor: s=1;i=2\n",
                              chunk.cursor, 1000)
                  .text.empty());
}

TEST(LogShipping, TheRingIsBounded) {
  const test::TemporaryFolder folder;
  const LogRing ring{.folder = folder / "logs", .max_bytes = 100, .files = 3};
  for (int i = 0; i < 30; ++i)
    append_to_ring(ring, "node1", "line " + std::to_string(1000 + i) + " of thirty bytes....\n");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(ring.folder)) {
    ++files;
    EXPECT_LE(entry.file_size(), 100u);
  }
  EXPECT_EQ(files, 3u);
  EXPECT_NE(read_file(ring.folder + "/node1.log").find("line 1029"), std::string::npos);
  EXPECT_NE(read_file(ring.folder + "/node1.2.log").find("line 1021"), std::string::npos);
  fs::remove_all(fs::path(ring.folder).parent_path());
}

}  // namespace
}  // namespace spark::ops
