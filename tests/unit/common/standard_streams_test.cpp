#include "common/standard_streams.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spark {
namespace {

// What the check says in a process that was started without the descriptors of `closed`.
template <typename Check>
int in_child(std::initializer_list<int> closed, const Check& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fd : closed) ::close(fd);
    fill_standard_streams();
    ::_exit(check());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, NoFileGetsTheirNumbers) {
  const auto next_is_free = [] { return ::open("/dev/null", O_RDONLY) > 2 ? 0 : 1; };
  EXPECT_EQ(in_child({2}, next_is_free), 0);
  EXPECT_EQ(in_child({0, 2}, next_is_free), 0);
  EXPECT_EQ(in_child({0, 1, 2}, next_is_free), 0);
}

TEST(StandardStreams, WhatIsPrintedToNobodyIsNoticed) {
  EXPECT_EQ(in_child({0, 1, 2}, [] { return ::write(1, "x", 1) == -1 ? 0 : 1; }), 0);
  EXPECT_EQ(in_child({0, 1, 2}, [] { return ::write(2, "x", 1) == 1 ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace spark
