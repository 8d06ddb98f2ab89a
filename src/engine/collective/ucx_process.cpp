#include "engine/collective/ucx_process.h"

#include <signal.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/log.h"

namespace spark::engine {
namespace {

constexpr size_t kMaxMessage = 2048;

// UCX has asked its own UCX_LOG_LEVEL already whether the message is wanted.
ucs_log_func_rc_t to_log(const char*, unsigned, const char*, ucs_log_level_t level,
                         const ucs_log_component_config_t*, const char* format, va_list values) {
  char text[kMaxMessage];
  const int printed = std::vsnprintf(text, sizeof text - 1, format, values);
  if (printed < 0) return UCS_LOG_FUNC_RC_CONTINUE;
  if (level <= UCS_LOG_LEVEL_FATAL) {
    // Perhaps in a signal handler, and the process ends: no memory, no lock.
    const size_t length = std::min(static_cast<size_t>(printed), sizeof text - 2);
    text[length] = '\n';
    [[maybe_unused]] auto written = ::write(2, "UCX: ", 5);
    written = ::write(2, text, length + 1);
  } else {
    // What UCX was told to tell is told, whatever this program's own level.
    log(level == UCS_LOG_LEVEL_ERROR  ? LogLevel::kError
        : level == UCS_LOG_LEVEL_WARN ? LogLevel::kWarning
                                      : LogLevel::kInfo,
        std::string("UCX: ") + text);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void tame_ucx() {
  // UCX reads its environment when the library is loaded, before main(): setting variables comes too late.
  if (std::getenv("UCX_LOG_FILE") == nullptr) ::ucs_log_push_handler(to_log);
  if (std::getenv("UCX_DEBUG_SIGNO") == nullptr && ucs_global_opts.debug_signo == SIGHUP) {
    ::ucs_debug_disable_signal(SIGHUP);
  }
}

}  // namespace spark::engine
