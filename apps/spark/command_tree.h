// The commands as plain data, read from CLI11's tree, and what is generated from it: shell completion and the
// manual page. Nothing here knows a command by name.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spark::app {

struct CommandOption {
  std::vector<std::string> names;  // "--json", "-h"; empty for a positional
  std::string value;               // what it takes: "TEXT", "NODE"; empty for a flag
  std::string description;
};

struct CommandEntry {
  std::string path;  // "spark fabric show"
  std::string name;
  std::string description;
  std::string footer;
  std::vector<CommandOption> options;
  std::vector<std::string> subcommands;
};

// Depth first, the program itself first.
std::vector<CommandEntry> command_tree(const CLI::App& app);

std::string bash_completion(const std::vector<CommandEntry>& tree);
std::string zsh_completion(const std::vector<CommandEntry>& tree);
std::string fish_completion(const std::vector<CommandEntry>& tree);
std::string manual_page(const std::vector<CommandEntry>& tree, const std::string& version);

}  // namespace spark::app
