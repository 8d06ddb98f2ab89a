// spark-engine: a checkpoint behind OpenAI's API. Flags are in flags.h, the work is in serve.h.
#include <sys/prctl.h>

#include <cerrno>
#include <csignal>

#include "../run_program.h"
#include "check.h"
#include "engine/collective/ucx_process.h"
#include "exit_codes.h"
#include "flags.h"
#include "serve.h"

namespace spark::app {
namespace {

int run(int argc, char** argv) {
  int exit_code = 0;
  const auto flags = parse_flags(argc, argv, exit_code);
  if (!flags) {
    require_written_output();
    return exit_code;
  }
  set_log_level(flags->log_level);
  set_log_format(flags->log_format);
  engine::tame_ucx();
  // A reader of our output that goes away must not end the server.
  std::signal(SIGPIPE, SIG_IGN);
  if (!flags->check_only) return serve(*flags);
  exit_code = check(*flags);
  require_written_output();
  return exit_code;
}

}  // namespace
}  // namespace spark::app

int main(int argc, char** argv) {
  // A rank that was started as a child runs "/proc/self/exe", and `ps` would call it "exe".
  ::prctl(PR_SET_NAME, program_invocation_short_name);
  return spark::app::run_program([&] { return spark::app::run(argc, argv); }, spark::app::kFailed,
                                 "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens");
}
