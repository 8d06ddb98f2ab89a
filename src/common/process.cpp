#include "common/process.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "common/child_process.h"
#include "common/error.h"

namespace spark {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse_output(size_t limit, const std::string& name) {
  throw Error("wrote more than " + std::to_string(limit) + " bytes and was stopped", name);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  SPARK_CHECK(!arguments.empty());
  const std::string& name = arguments.front();
  ChildProcess child(arguments, {.directory = options.directory,
                                 .with_input = !options.input.empty(),
                                 .environment = options.environment});
  const auto deadline = Clock::now() + std::chrono::duration<double>(options.timeout_s);
  const size_t limit = options.max_output_bytes;
  std::string_view unsent = options.input;
  ProcessResult result;
  while (true) {
    // Asked once: an end between two questions would leave the poll below with nothing to wait for.
    const bool ended = child.ended();
    if (ended && child.output() < 0 && child.error() < 0) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      throw Error("did not end within " + std::to_string(options.timeout_s) + " s and was stopped", name);
    }
    pollfd waits[4] = {{child.output(), POLLIN, 0},
                       {child.error(), POLLIN, 0},
                       {child.input(), POLLOUT, 0},
                       {ended ? -1 : child.exit_event(), POLLIN, 0}};
    // Without an exit event the end is noticed by looking.
    const long long pause = child.exit_event() >= 0 ? left : std::min<long long>(left, 5);
    ::poll(waits, 4, static_cast<int>(std::min<long long>(pause, 60'000)));
    if (waits[0].revents != 0 && !child.read_output(result.output, limit)) refuse_output(limit, name);
    if (waits[1].revents != 0 && !child.read_error(result.error, limit)) refuse_output(limit, name);
    if (waits[2].revents != 0) {
      unsent.remove_prefix(child.write_input(unsent));
      if (unsent.empty()) child.close_input();
    }
  }
  result.exit_code = child.exit_code();
  return result;
}

}  // namespace spark
