#include "common/unfinished_write.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/file.h"
#include "unit/temporary_folder.h"

namespace spark {
namespace {

TEST(UnfinishedWrite, NamesAreTheirFilesAndNobodyElses) {
  EXPECT_TRUE(is_unfinished_write("a.json.unfinished-q7Xb2a", "a.json"));
  for (const char* name : {"a.json", "a.json.backup", "a.json.unfinished-", "a.json.unfinished-q7Xb2",
                           "a.json.unfinished-q7X.2a", "b.json.unfinished-q7Xb2a",
                           "a.json.old.unfinished-q7Xb2a", "a.json.q7Xb2a"})
    EXPECT_FALSE(is_unfinished_write(name, "a.json")) << name;
}

// The kernel ends the writer where the file would grow past its limit: in the middle of its write.
TEST(UnfinishedWrite, TheNextWriterRemovesWhatAKilledOneLeft) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state.json";
  write_file_atomic(path, "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit none{0, 0}, few{4096, 4096};
    ::setrlimit(RLIMIT_CORE, &none);
    ::setrlimit(RLIMIT_FSIZE, &few);
    std::signal(SIGXFSZ, SIG_DFL);
    write_file_atomic(path, std::string(1 << 20, 'x'));
    ::_exit(99);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  ASSERT_EQ(folder.files(), 2);
  EXPECT_EQ(read_file(path), "old");
  write_file_atomic(path, "new");
  EXPECT_EQ(folder.files(), 1);
  EXPECT_EQ(read_file(path), "new");
}

TEST(UnfinishedWrite, WhatALivingOneWritesStays) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state.json";
  {
    const UnfinishedWrite living(path);
    ASSERT_TRUE(living.descriptor().open());
    write_file_atomic(path, "other");
    EXPECT_TRUE(std::filesystem::exists(living.path()));
    EXPECT_EQ(folder.files(), 2);
  }
  write_file_atomic(path, "last");
  EXPECT_EQ(folder.files(), 1);
}

TEST(UnfinishedWrite, OtherFilesStay) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state.json";
  std::filesystem::create_directory(path + ".unfinished-folder");
  std::filesystem::create_symlink("elsewhere", path + ".unfinished-linked");
  for (const char* name : {"state.json.backup", "other.json.unfinished-q7Xb2a"})
    write_file_atomic(folder / name, "x");
  write_file_atomic(path, "x");
  EXPECT_EQ(folder.files(), 5);
}

TEST(UnfinishedWrite, WritersOfOneFileDoNotDisturbOneAnother) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state.json";
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 40; ++i)
        EXPECT_NO_THROW(write_file_atomic(path, std::string(1000, static_cast<char>('a' + writer))));
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(folder.files(), 1);
  const std::string content = read_file(path);
  EXPECT_EQ(content, std::string(1000, content.at(0)));
}

}  // namespace
}  // namespace spark
