// The logs of every rank, brought here and kept in a ring of files: what a healthy run said is still there
// when it fails later, and when its container is gone.
//
//   for (const ShippedLog& log : ship_logs(remote, site, launches, {.folder = folder}, stop)) ...
//
// FOLDER/NODE.log is the newest file, NODE.1.log the one before. A cursor beside them says how far the last
// shipment came, so that nothing is fetched twice; a new container begins at its beginning.
#pragma once

#include <stop_token>

#include "ops/launch/render.h"
#include "ops/remote/remote.h"

namespace spark::ops {

struct LogRing {
  std::string folder;
  size_t max_bytes = size_t{16} << 20;  // of one file
  int files = 8;                        // of one node, the newest included
};

struct ShippedLog {
  std::string node;
  size_t bytes = 0;
  std::string problem;  // why there is nothing; empty: all there was
};

std::vector<ShippedLog> ship_logs(const Remote& remote, const Site& site,
                                  const std::vector<RankLaunch>& launches, const LogRing& ring,
                                  std::stop_token stop = {});

// What one answer adds, and the cursor after it. Pure. `cursor` is "ID POSITION" of the shipment before; the
// answer begins with the service's id on a line of its own.
struct LogChunk {
  std::string text;
  std::string cursor;
  bool more = false;  // the answer was cut at its limit: ask again
};
LogChunk read_log_answer(LaunchRuntime runtime, std::string_view answer, const std::string& cursor,
                         size_t limit);

// Prints the id, then what came after the cursor, at most `limit` bytes.
std::string ship_script(const RankLaunch& launch, const std::string& cursor, size_t limit);

// Appends, and moves the files on when the newest is full.
void append_to_ring(const LogRing& ring, const std::string& node, std::string_view text);

std::string log_folder(const Repository& repository,
                       const std::string& service);  // results/private/logs/SERVICE

}  // namespace spark::ops
