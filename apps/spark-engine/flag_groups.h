// The flags by what they are about, one file each. To add a group: write NAME_flags.cpp with such a function
// and call it in parse_flags().
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "flags.h"

namespace spark::app {

// MODEL_DIR, the backend, the limits of a step and of the queue.
void add_model_flags(CLI::App& app, EngineFlags& flags);
// Whether and how to speculate.
void add_speculation_flags(CLI::App& app, EngineFlags& flags);
// Where to listen, keys, limits of connections and requests.
void add_server_flags(CLI::App& app, EngineFlags& flags, std::string& key_file);

}  // namespace spark::app
