// Patch series of a locked source, and the fingerprint that ties a series to the source manifest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/site/repository.h"
#include "ops/site/upstream_lock.h"

namespace spark::ops {

struct SeriesEntry {
  std::string name;
  bool placeholder = false;  // announced, not written yet; never applied
};

// One patch name per line; "#" starts a comment line, blank lines are skipped.
std::vector<SeriesEntry> parse_series(std::string_view text);

struct SeriesState {
  bool series_exists = true;          // also true when the source has no series
  std::vector<std::string> missing;   // patches that the series names and the folder lacks (paths)
  std::vector<std::string> repeated;  // named more than once: nothing applies twice (paths)
  std::string fingerprint;            // SHA-256; empty when a file is missing or repeated
};

// Fingerprint: each applied upstream commit and a NUL; the series file; each patch's name, a NUL, its bytes.
// Of a source without any of these it is the SHA-256 of nothing.
SeriesState inspect_series(const Repository& repository, const LockedSource& source);

}  // namespace spark::ops
