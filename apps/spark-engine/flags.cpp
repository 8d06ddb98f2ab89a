#include "flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "../flag_checks.h"
#include "attempt.h"
#include "common/file.h"
#include "common/json.h"
#include "config_file.h"
#include "exit_codes.h"
#include "flag_groups.h"

namespace spark::app {
namespace {

std::string trimmed(std::string text) {
  const char* blanks = " \t\r\n";
  text.erase(text.find_last_not_of(blanks) + 1);
  text.erase(0, text.find_first_not_of(blanks));
  return text;
}

// A key cannot hold blanks: it would not survive the header.
void add_key(std::vector<std::string>& keys, const std::string& text, const std::string& source) {
  const std::string key = trimmed(text);
  if (key.empty()) throw Error("holds no key", source);
  for (const char c : key) {
    if (c <= ' ' || c > '~') throw Error("holds a key with blanks or characters that are not ASCII", source);
  }
  keys.push_back(key);
}

void read_keys(EngineFlags& flags, const std::string& key_file) {
  std::vector<std::string> keys;
  Faults* const faults = flags.check_only ? &flags.key_faults : nullptr;
  for (const std::string& key : flags.api_keys) attempt(faults, [&] { add_key(keys, key, "--api-key"); });
  if (!key_file.empty()) attempt(faults, [&] { add_key(keys, read_file(key_file, 4096), key_file); });
  if (const char* key = std::getenv(kKeyVariable); key != nullptr) {
    attempt(faults, [&] { add_key(keys, key, kKeyVariable); });
  }
  flags.api_keys = std::move(keys);
}

void add_general_flags(CLI::App& app, EngineFlags& flags, std::string& config_file) {
  app.add_option("--config", config_file,
                 "YAML file with flags, by their names without dashes; the command line wins");
  app.add_flag("--check", flags.check_only,
               "Check flags, checkpoint, memory and port, print what would be used, start nothing")
      ->default_str("off");
  add_choice(app, "--log-level", flags.log_level,
             {{"debug", LogLevel::kDebug},
              {"info", LogLevel::kInfo},
              {"warning", LogLevel::kWarning},
              {"error", LogLevel::kError}},
             "How much to log")
      ->default_str("info");
  add_choice(app, "--log-format", flags.log_format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
             "text, or json: one object a line")
      ->default_str("text");
}

}  // namespace

namespace {

// CLI11 names such words in reverse order, and no flag that may have been meant.
std::string unexpected_words(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  std::string words, hint;
  for (const std::string& word : app.remaining()) {
    words += " " + word;
    const auto close = word.starts_with("--") ? nearest(word.substr(0, word.find('=')), known) : std::nullopt;
    if (close) hint += "\n  did you mean " + *close + "?";
  }
  return "not expected:" + words + hint;
}

}  // namespace

std::optional<EngineFlags> parse_flags(int argc, char** argv, int& exit_code) {
  EngineFlags flags;
  flags.model.backend = engine::backend_names().front();  // the fastest of this build
  flags.model.limits = {.max_sequences = 8, .max_context = 0, .max_step_rows = 512, .prefix_caching = true};
  std::string key_file;
  std::string config_file;
  CLI::App app("Serves a DeepSeek V4.1 Flash checkpoint over OpenAI's API.", "spark-engine");
  app.set_version_flag("--version", std::string("spark-engine ") + SPARK_VERSION);
  add_model_flags(app, flags);
  add_scheduler_flags(app, flags);
  add_speculation_flags(app, flags);
  add_server_flags(app, flags, key_file);
  add_rank_flags(app, flags.ranks);
  add_general_flags(app, flags, config_file);
  check_written_values(app);
  try {
    app.parse(argc, argv);
    if (!config_file.empty()) apply_config_file(app, config_file);
    if (flags.model.folder.empty()) throw CLI::RequiredError("MODEL_DIR");
    check_rank_flags(flags.ranks);
    settle_step_flags(app, flags);
  } catch (const CLI::ExtrasError&) {
    std::cerr << unexpected_words(app) << "\nRun with --help for more information.\n";
    exit_code = kUsage;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error, std::cout, std::cerr) == 0 ? 0 : kUsage;
    return std::nullopt;
  }
  flags.arguments.assign(argv + 1, argv + argc);
  read_keys(flags, key_file);
  return flags;
}

}  // namespace spark::app
