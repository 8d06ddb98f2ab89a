#include "../flag_checks.h"
#include "flag_groups.h"

namespace spark::app {

void add_scheduler_flags(CLI::App& app, EngineFlags& flags) {
  engine::CacheLimits& limits = flags.model.limits;
  app.add_option(
         "--max-parallel-prefills", flags.parallel_prefills,
         "Prompts that may be partly read at a time; later ones wait, unless a step can read the whole")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-token-gap-ms", flags.max_token_gap_ms,
                 "Bound on the time between two tokens of a stream while prompts are read; 0: none")
      ->capture_default_str()
      ->check(number_between(0, 3600e3));
  app.add_option(
         "--kv-cache-memory-bytes", limits.budget_bytes,
         "Bytes of all caches; 0: room for every sequence's whole context. With less, sequences share it, "
         "and when it runs out the youngest is paused and computed again")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", limits.prefix_caching,
               "Keep what was computed of prompts and answers for later ones that begin alike")
      ->default_str("on");
  app.add_option("--prefix-cache-retention-interval", limits.retention,
                 "Tokens between the places where a later prompt can go on, a multiple of 256")
      ->capture_default_str()
      ->check(CLI::Range(256, 1 << 30));
}

}  // namespace spark::app
