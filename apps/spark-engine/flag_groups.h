// The flags by what they are about, one file each. To add a group: write NAME_flags.cpp with such a function
// and call it in parse_flags().
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "flags.h"

namespace spark::app {

// MODEL_DIR, the backend, the limits of a step and of the queue.
void add_model_flags(CLI::App& app, EngineFlags& flags);
// A step has a token of every sequence in it: throws CLI::ValidationError for more sequences than tokens of a
// step, and lowers a number of sequences that nobody has given.
void settle_step_flags(const CLI::App& app, EngineFlags& flags);
// How sequences share steps and caches.
void add_scheduler_flags(CLI::App& app, EngineFlags& flags);
// Whether and how to speculate.
void add_speculation_flags(CLI::App& app, EngineFlags& flags);
// Where to listen, keys, limits of connections and requests.
void add_server_flags(CLI::App& app, EngineFlags& flags, std::string& key_file);

// Which ranks of a group this process is and starts; check_rank_flags throws CLI::ValidationError for
// flags that contradict one another.
void add_rank_flags(CLI::App& app, RankFlags& ranks);
void check_rank_flags(const RankFlags& ranks);

}  // namespace spark::app
