#include "checkpoint_findings.h"

#include <filesystem>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/file.h"
#include "common/hash.h"
#include "engine/checkpoint/inspect.h"
#include "ops/site/text_forms.h"

namespace spark::app {
namespace {

constexpr const char* kDownload = "download the pinned revision again";

void compare(const std::string& folder, const std::string& manifest, ops::Findings& findings) {
  const auto add = [&](const std::string& file, std::string where, std::string evidence,
                       std::string expected) {
    findings.push_back({"model.hash", ops::Severity::kError, file, std::move(where), std::move(evidence),
                        std::move(expected), kDownload});
  };
  std::istringstream lines(read_file(manifest));
  std::set<std::string> seen;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::string place = "line " + std::to_string(number);
    const size_t blank = line.find(' ');
    const std::string hash = line.substr(0, blank);
    std::string name = blank == std::string::npos
                           ? std::string()
                           : line.substr(std::min(line.find_first_not_of(" *", blank), line.size()));
    const bool plain = !name.empty() && name.find('/') == std::string::npos && name != ".." && name != ".";
    if (!ops::is_sha256(hash) || !plain || !seen.insert(name).second) {
      add(manifest, place,
          "\"" + line.substr(0, 100) + "\" is no SHA-256 and plain file name, or stands twice",
          "HASH  NAME, as sha256sum prints it");
      continue;
    }
    const std::string path = (std::filesystem::path(folder) / name).string();
    std::error_code failed;
    if (!std::filesystem::is_regular_file(path, failed)) {
      add(path, {}, "does not exist", "a file with the SHA-256 " + hash);
    } else if (const std::string found = sha256_hex_of_file(path); found != hash) {
      add(path, {}, "has the SHA-256 " + found, hash);
    }
  }
  if (seen.empty()) add(manifest, {}, "names no file", "one line per file");
}

}  // namespace

ops::Findings checkpoint_findings(const std::string& folder, const std::string& manifest) {
  ops::Findings findings;
  try {
    for (const Fault& fault : engine::inspect_checkpoint(folder).faults) {
      findings.push_back({"model.checkpoint",
                          ops::Severity::kError,
                          fault.where.find('/') == std::string::npos ? folder : std::string(),
                          fault.where,
                          fault.what,
                          {},
                          fault.hint.empty() ? kDownload : fault.hint});
    }
  } catch (const Error& error) {
    findings.push_back({"model.checkpoint",
                        ops::Severity::kError,
                        {},
                        error.where(),
                        error.what(),
                        "a checkpoint folder",
                        error.hint().empty() ? kDownload : error.hint()});
  }
  if (!manifest.empty()) compare(folder, manifest, findings);
  return findings;
}

}  // namespace spark::app
