#include "common/system_failure.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

namespace spark {
namespace {

namespace fs = std::filesystem;

std::string told(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::system_error& error) {
    return explained(error).describe();
  }
  return "";
}

TEST(SystemFailure, FilesAreNamedWithTheReason) {
  EXPECT_EQ(told([] { fs::create_directory("/proc/self/no/such"); }),
            "/proc/self/no/such: cannot create directory: No such file or directory");
  const std::string name(300, 'x');
  EXPECT_EQ(told([&] { (void)fs::file_size("/tmp/" + name); }),
            "/tmp/" + name + ": cannot get file size: File name too long");
  EXPECT_EQ(told([] { fs::copy_file("/proc/self/no", "/tmp/to"); }),
            "/proc/self/no: cannot copy file to /tmp/to: No such file or directory");
}

TEST(SystemFailure, AFullDiskAndAReadOnlyFolderGetAdvice) {
  const auto failure = [](std::errc code) {
    return explained(fs::filesystem_error("cannot copy file", "/a", "/b", std::make_error_code(code)))
        .describe();
  };
  EXPECT_EQ(failure(std::errc::no_space_on_device),
            "/a: cannot copy file to /b: No space left on device\n  to fix: look whether the disk is full");
  EXPECT_NE(failure(std::errc::io_error).find("look whether the disk is full"), std::string::npos);
  EXPECT_NE(failure(std::errc::read_only_file_system).find("may be written"), std::string::npos);
}

TEST(SystemFailure, ARefusedThreadNamesTheLimits) {
  const std::system_error error(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_NE(explained(error).describe().find("ulimit -u"), std::string::npos);
}

}  // namespace
}  // namespace spark
