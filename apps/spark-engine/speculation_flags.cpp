#include "flag_groups.h"

namespace spark::app {

void add_speculation_flags(CLI::App& app, EngineFlags& flags) {
  app.add_option(
         "--speculative-config", flags.speculative_config,
         "How to speculate, as JSON: {\"method\": \"dspark\", \"num_speculative_tokens\": 5, ...}; {} "
         "turns it off")
      ->default_str("all drafts of the checkpoint's drafter, verified as far as they pay");
}

}  // namespace spark::app
