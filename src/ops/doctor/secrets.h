// Credentials that must not be in a repository: by file name, by known token forms, and by entropy beside a
// name such as "password". Files above the limit are reported as not scanned, never as clean.
//
//   SecretScan scan = scan_tracked_files(repository);      // asks git for the list of files
//   std::vector<SecretHit> hits = find_secrets("a.txt", text);  // pure
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ops/site/repository.h"

namespace spark::ops {

struct SecretHit {
  std::string file;
  size_t line = 0;   // 0: the file as a whole
  std::string kind;  // "a GitHub token"; never the secret itself
};

struct SecretScan {
  std::string failure;  // not empty: the tracked files could not be listed
  size_t files = 0;
  std::vector<SecretHit> hits;
  std::vector<std::string> not_scanned;  // larger than the limit, or unreadable
};

inline constexpr size_t kSecretScanLimit = size_t{2} << 20;

std::vector<SecretHit> find_secrets(const std::string& file, std::string_view content);

// Empty, or why a file of this name must not be tracked.
std::string forbidden_name(const std::string& path);

SecretScan scan_tracked_files(const Repository& repository, size_t limit_bytes = kSecretScanLimit);

}  // namespace spark::ops
