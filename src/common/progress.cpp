#include "common/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"

namespace spark {
namespace {

constexpr double kBarInterval = 0.1;
constexpr double kLineInterval = 5;
constexpr double kQuietTime = 0.5;

std::string rate_of(uint64_t done, double elapsed_s) {
  const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0;
  return format_bytes(static_cast<uint64_t>(rate)) + "/s";
}

}  // namespace

std::string progress_bar(const std::string& what, uint64_t done, uint64_t total, double elapsed_s) {
  constexpr size_t kWidth = 20;
  done = std::min(done, total);
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto filled = static_cast<size_t>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, ' ');
  char percent[8];
  std::snprintf(percent, sizeof percent, "%3d%%", static_cast<int>(share * 100));
  std::string line = what + " " + percent + " [" + bar + "] " + format_bytes(done) + " of " +
                     format_bytes(total) + ", " + rate_of(done, elapsed_s);
  if (done > 0 && done < total) {
    const double left_s = elapsed_s * (1 - share) / share;
    line += ", " + format_fixed(std::ceil(left_s), 0) + " s left";
  }
  return line;
}

Progress::Progress(std::string what, uint64_t total, ProgressStyle style)
    : what_(std::move(what)),
      total_(total),
      bar_(style == ProgressStyle::kBar ||
           (style == ProgressStyle::kAuto && log_format() == LogFormat::kText &&
            ::isatty(STDERR_FILENO) != 0)),
      began_s_(monotonic_s()),
      last_s_(began_s_ + kQuietTime - (bar_ ? kBarInterval : 0)) {}

Progress::~Progress() {
  if (shown_) std::fputs("\n", stderr);
}

void Progress::update(uint64_t done) {
  done_ = done;
  const double now_s = monotonic_s();
  if (now_s - last_s_ < (bar_ ? kBarInterval : kLineInterval)) return;
  last_s_ = now_s;
  const std::string line = progress_bar(what_, done, total_, now_s - began_s_);
  if (bar_) {
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
    std::fflush(stderr);
    shown_ = true;
  } else {
    log_info(line);
  }
}

void Progress::finish() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
  const double elapsed_s = monotonic_s() - began_s_;
  log_info(what_ + ": done", {{"bytes", done_},
                              {"seconds", std::round(elapsed_s * 1000) / 1000},
                              {"rate", rate_of(done_, elapsed_s)}});
}

}  // namespace spark
