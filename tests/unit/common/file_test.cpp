#include "common/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/hash.h"
#include "common/mapped_fault.h"
#include "common/read_advice.h"
#include "common/statistics.h"
#include "common/table.h"
#include "common/units.h"
#include "unit/temporary_folder.h"

namespace spark {
namespace {

// Reading must neither wait for a writer who never comes nor lose what a slow one writes.
TEST(File, PipesAreReadWithoutWaitingForEver) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(MappedFile(path).bytes().size(), 0u);
  const int writing = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(::write(writing, "secret\n", 7), 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::close(writing);
  });
  EXPECT_EQ(read_file(path), "secret\n");
  writer.join();
}

TEST(File, AtomicWriteReplacesAndLeavesNoTemporary) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  write_file_atomic(path, "one");
  write_file_atomic(path, "two", 0600);
  EXPECT_EQ(read_file(path), "two");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(folder.files(), 1);
  EXPECT_THROW(write_file_atomic(folder / "none" / "a", "x"), Error);
  EXPECT_THROW(read_file(folder.path()), Error);
  EXPECT_THROW(read_file(path, 2), Error);
}

// A moved map is still the file that it was; one that was let go no longer is.
TEST(MappedFileDeathTest, ALostPageEndsTheProcessWithTheFilesName) {
  const test::TemporaryFolder folder;
  const std::string cut = folder / "cut.safetensors", whole = folder / "whole.safetensors";
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  write_file_atomic(cut, std::string(3 * page, 'x'));
  write_file_atomic(whole, std::string(3 * page, 'x'));
  const auto last_byte_after_a_cut = [&](const std::string& path) {
    explain_lost_pages(7);
    const MappedFile other(whole);
    MappedFile first(path);
    const MappedFile moved = std::move(first);
    if (::truncate(path.c_str(), static_cast<off_t>(page)) != 0) ::_exit(99);
    const volatile uint8_t* bytes = moved.bytes().data();
    if (bytes[0] != 'x') ::_exit(98);
    ::_exit(bytes[2 * page]);
  };
  EXPECT_EXIT(last_byte_after_a_cut(cut), testing::ExitedWithCode(7),
              "cut.safetensors: bytes of it are gone");
}

TEST(MappedFileDeathTest, ABusErrorElsewhereEndsTheProcessAsEver) {
  EXPECT_EXIT(
      {
        explain_lost_pages(7);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(ReadAdvice, FitsTheError) {
  EXPECT_NE(read_advice(EMFILE).find("ulimit -n"), std::string::npos);
  EXPECT_NE(read_advice(EACCES).find("read it"), std::string::npos);
  EXPECT_EQ(read_advice(ENOENT), "");
}

TEST(Sha256, PublishedVector) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Units, ReadLikeAPersonWouldWrite) {
  EXPECT_EQ(format_count(2845543), "2,845,543");
  EXPECT_EQ(format_bytes(3758096384), "3.50 GiB");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_fixed(-0.001, 2), "0.00");  // no minus before nothing
  EXPECT_EQ(format_fixed(-0.0, 0), "0");
  EXPECT_EQ(format_fixed(-0.006, 2), "-0.01");
}

TEST(Table, AlignsByDisplayWidth) {
  Table table({{"name", Align::kLeft}, {"n", Align::kRight}});
  table.add({"µs", "10"});
  EXPECT_EQ(table.text(), "name   n\n----  --\nµs    10\n");
}

TEST(Statistics, QuantilesInterpolate) {
  const double sample[] = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(median(sample), 2.5);
  EXPECT_DOUBLE_EQ(quantile(sample, 1), 4);
  EXPECT_NEAR(standard_deviation(sample), 1.2909944, 1e-6);
}

}  // namespace
}  // namespace spark
