#include "common/system_failure.h"

#include <filesystem>

namespace spark {
namespace {

// The library writes "filesystem error: cannot copy file: No space left on device [/a] [/b]".
Error explained_file(const std::filesystem::filesystem_error& error) {
  constexpr std::string_view kPrefix = "filesystem error: ";
  const std::string reason = error.code().message();
  const std::string_view whole = error.what();
  const size_t end = whole.find(": " + reason, kPrefix.size());
  std::string action = "cannot be used";
  if (whole.starts_with(kPrefix) && end != std::string_view::npos)
    action = whole.substr(kPrefix.size(), end - kPrefix.size());
  const std::string target = error.path2().empty() ? "" : " to " + error.path2().string();
  std::string hint;
  // A copy that finds the disk full fails with this error in some versions of the library.
  if (error.code() == std::errc::no_space_on_device || error.code() == std::errc::io_error)
    hint = "look whether the disk is full";
  if (error.code() == std::errc::permission_denied || error.code() == std::errc::read_only_file_system)
    hint = "give a folder that may be written";
  return Error(action + target + ": " + reason, error.path1().string(), hint);
}

}  // namespace

Error explained(const std::system_error& error) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return explained_file(*file);
  // A refused thread has no name and no path; every other error of the system here has.
  if (error.code() != std::errc::resource_unavailable_try_again) return Error(error.what());
  return Error("a thread cannot be started: " + error.code().message(), "",
               "raise the limits of address space (ulimit -v) and of threads (ulimit -u, a container's limit "
               "of processes), or use fewer threads");
}

}  // namespace spark
