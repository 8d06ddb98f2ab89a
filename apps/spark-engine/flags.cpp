#include "flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <map>

#include "../flag_checks.h"
#include "common/file.h"

namespace spark::app {
namespace {

constexpr int kUsage = 2;
constexpr const char* kKeyVariable = "SPARK_API_KEY";

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

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

void add_model_flags(CLI::App& app, EngineFlags& flags) {
  app.add_option("MODEL_DIR", flags.model.folder,
                 "Folder of the checkpoint: config.json, tokenizer.json, shards")
      ->required();
  app.add_option("--served-model-name", flags.served_names,
                 "Names the API knows the model by; the first is in answers")
      ->allow_extra_args(false)  // one name each time, or MODEL_DIR after it would be taken for a name
      ->check(not_empty())
      ->default_str("the folder's name");
  app.add_option("--backend", flags.model.backend, "Where to compute: " + join(engine::backend_names()))
      ->capture_default_str()
      ->check(CLI::IsMember(engine::backend_names()));
  app.add_option("--threads", flags.model.threads, "Threads of the cpu backend; 0: one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--max-model-len", flags.max_model_len, "Tokens of one sequence, prompt and answer")
      ->default_str("8192 or the model's end")
      ->check(CLI::Range(2, 1 << 30));
  app.add_option("--max-num-seqs", flags.model.limits.max_sequences,
                 "Sequences computed at once; others wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-num-batched-tokens", flags.model.limits.max_step_rows,
                 "Tokens of one step, all sequences together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--speculative-config", flags.speculative_config,
                 "How to speculate, as JSON: {\"method\": \"dspark\", \"num_speculative_tokens\": 5, ...}; {} "
                 "turns it off")
      ->default_str("all drafts of the checkpoint's drafter, as many as pay");
  app.add_option("--max-queued", flags.max_queued, "Sequences that may wait; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
}

void add_server_flags(CLI::App& app, EngineFlags& flags, std::string& key_file) {
  engine::HttpOptions& http = flags.http;
  app.add_option("--host", http.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", http.port, "Port; 0 takes a free one")->capture_default_str();
  app.add_option("--uds", http.unix_socket, "Listen on this Unix socket instead");
  app.add_option(
         "--api-key", flags.api_keys,
         std::string(
             "Keys that clients may use; others see them in the process list, so prefer the file or ") +
             kKeyVariable)
      ->allow_extra_args(false);
  app.add_option("--api-key-file", key_file, "File with one key");
  app.add_option("--max-connections", http.max_connections, "Connections; more are told 503")
      ->capture_default_str()
      ->check(CLI::Range(1, 60000));
  app.add_option("--max-body-bytes", http.max_body_bytes, "Longest request body")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 30));
  app.add_option("--max-header-bytes", http.max_header_bytes, "Longest request head")
      ->capture_default_str()
      ->check(CLI::Range(256, 1 << 20));
  app.add_option("--drain-timeout", flags.drain_timeout_s,
                 "Seconds that requests may take to finish after SIGTERM")
      ->capture_default_str()
      ->check(number_between(0, 86400));
}

void read_keys(EngineFlags& flags, const std::string& key_file) {
  std::vector<std::string> keys;
  for (const std::string& key : flags.api_keys) add_key(keys, key, "--api-key");
  if (!key_file.empty()) add_key(keys, read_file(key_file, 4096), key_file);
  if (const char* key = std::getenv(kKeyVariable); key != nullptr) add_key(keys, key, kKeyVariable);
  flags.api_keys = std::move(keys);
}

}  // namespace

std::optional<EngineFlags> parse_flags(int argc, char** argv, int& exit_code) {
  EngineFlags flags;
  flags.model.backend = engine::backend_names().front();  // the fastest of this build
  flags.model.limits = {.max_sequences = 8, .max_context = 0, .max_step_rows = 512};
  std::string key_file;
  CLI::App app("Serves a DeepSeek V4.1 Flash checkpoint over OpenAI's API.", "spark-engine");
  app.set_version_flag("--version", std::string("spark-engine ") + SPARK_VERSION);
  add_model_flags(app, flags);
  add_server_flags(app, flags, key_file);
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError}};
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->transform(CLI::CheckedTransformer(levels, CLI::ignore_case))
      ->default_str("info");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error, std::cout, std::cerr) == 0 ? 0 : kUsage;
    return std::nullopt;
  }
  read_keys(flags, key_file);
  return flags;
}

}  // namespace spark::app
