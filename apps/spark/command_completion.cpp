// spark completion, spark man: generated from the commands themselves.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "command_tree.h"
#include "commands.h"

namespace spark::app {

void add_completion_commands(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a completion script for a shell");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer(
      "Examples:\n"
      "  source <(spark completion bash)\n"
      "  spark completion zsh > \"${fpath[1]}/_spark\"\n"
      "  spark completion fish > ~/.config/fish/completions/spark.fish");
  completion->callback([shell, &app] {
    const auto tree = command_tree(app);
    std::cout << (*shell == "bash"  ? bash_completion(tree)
                  : *shell == "zsh" ? zsh_completion(tree)
                                    : fish_completion(tree));
  });
  CLI::App* man = app.add_subcommand("man", "Print the manual page: every command, option and example");
  man->footer("Example: spark man | man -l -");
  man->callback([&app] { std::cout << manual_page(command_tree(app), SPARK_VERSION); });
}

}  // namespace spark::app
