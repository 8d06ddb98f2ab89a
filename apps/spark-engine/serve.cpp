#include "serve.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "common/clock.h"
#include "common/error.h"
#include "common/file.h"
#include "common/units.h"
#include "engine/serve/service.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace spark::app {
namespace {

constexpr int kInterrupted = 130;

std::string folder_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.empty() ? "model" : name;
}

bool is_loopback(const engine::HttpOptions& http) {
  return !http.unix_socket.empty() || http.host == "localhost" || http.host == "::1" ||
         http.host.starts_with("127.");
}

// The tokenizer must know the token that ends an answer.
int32_t end_token(const model::ModelConfig& config, const text::Tokenizer& tokenizer,
                  const std::string& folder) {
  if (tokenizer.contains(config.eos_token_id)) return config.eos_token_id;
  throw Error(
      "has no token " + std::to_string(config.eos_token_id) + ", which config.json says ends an answer",
      folder + "/tokenizer.json", "tokenizer.json and config.json must come from the same release");
}

int32_t context_length(const EngineFlags& flags, const model::ModelConfig& config) {
  const int64_t end = config.max_position_embeddings;
  if (!flags.max_model_len) return static_cast<int32_t>(std::min<int64_t>(kDefaultModelLen, end));
  if (*flags.max_model_len > end) {
    throw Error("is " + std::to_string(*flags.max_model_len) + "; the model ends at " + std::to_string(end) +
                    " tokens",
                "--max-model-len");
  }
  return *flags.max_model_len;
}

}  // namespace

int serve(EngineFlags flags) {
  const double started_s = monotonic_s();
  const std::string& folder = flags.model.folder;
  const std::string config_path = folder + "/config.json";
  const model::ModelConfig config =
      model::read_model_config(parse_json(read_file(config_path), config_path), config_path);
  flags.model.limits.max_context = context_length(flags, config);
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(folder + "/tokenizer.json");
  engine::ServiceOptions options;
  options.served_names = flags.served_names.empty() ? std::vector{folder_name(folder)} : flags.served_names;
  options.api_keys = flags.api_keys;
  options.version = SPARK_VERSION;
  options.engine.eos_token = end_token(config, tokenizer, folder);
  options.engine.max_waiting = flags.max_queued;
  const auto model = engine::load_model(flags.model);
  log_info("loaded " + folder + " for the " + flags.model.backend + " backend in " +
           format_fixed(monotonic_s() - started_s, 2) + " s");

  // In this order, so that the engine's thread ends before the server it answers through.
  engine::HttpServer server(flags.http);
  engine::Service service(*model, tokenizer, options);
  if (options.api_keys.empty() && !is_loopback(flags.http)) {
    log_warning("anyone who reaches " + server.address() +
                " can use this server: give it a key with --api-key-file");
  }
  server.watch_signals([&](int count) {
    if (count > 1) std::_Exit(kInterrupted);
    log_info("finishing the requests in progress; a second signal ends them at once");
    server.drain(flags.drain_timeout_s);
  });
  log_info("serving \"" + options.served_names.front() + "\", " + std::to_string(service.max_sequences()) +
           " sequences of up to " + format_count(static_cast<uint64_t>(service.max_context())) + " tokens");
  std::cout << "listening on " << server.address() << std::endl;
  server.run(service);
  log_info("stopped");
  return 0;
}

}  // namespace spark::app
