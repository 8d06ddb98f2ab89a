#include "common/new_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/error.h"
#include "common/file.h"
#include "unit/temporary_folder.h"

namespace spark {
namespace {

namespace fs = std::filesystem;

class NewFolderTest : public testing::Test {
 protected:
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(base_), fs::directory_iterator()));
  }
  const test::TemporaryFolder temporary_;
  std::string base_ = temporary_.path();
};

TEST_F(NewFolderTest, AppearsWhole) {
  const std::string place = base_ + "/a/b/";
  {
    NewFolder folder(place);
    folder.write("x/y", "text", 0600);
    EXPECT_FALSE(fs::exists(place));
    folder.commit();
  }
  EXPECT_EQ(read_file(place + "x/y"), "text");
  struct stat info {};
  ASSERT_EQ(::stat((place + "x/y").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(NewFolderTest, OrNotAtAll) {
  {
    NewFolder folder(base_ + "/a");
    folder.write("x", "text");
    EXPECT_THROW(folder.write("x/y", "below a file"), Error);
  }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(NewFolderTest, NothingIsReplaced) {
  fs::create_directory(base_ + "/empty");
  {
    NewFolder folder(base_ + "/empty");
    folder.write("x", "text");
    folder.commit();
  }
  EXPECT_EQ(read_file(base_ + "/empty/x"), "text");
  EXPECT_THROW(NewFolder(base_ + "/empty"), Error);
  write_file_atomic(base_ + "/file", "");
  EXPECT_THROW(NewFolder(base_ + "/file"), Error);
  EXPECT_THROW(NewFolder(base_ + "/file/below"), Error);
  fs::create_symlink("nowhere", base_ + "/link");
  EXPECT_THROW(NewFolder(base_ + "/link"), Error);
  EXPECT_THROW(NewFolder("/proc/no-such"), Error);
}

}  // namespace
}  // namespace spark
