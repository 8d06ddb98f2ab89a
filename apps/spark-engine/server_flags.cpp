#include "../flag_checks.h"
#include "flag_groups.h"

namespace spark::app {

void add_server_flags(CLI::App& app, EngineFlags& flags, std::string& key_file) {
  engine::HttpOptions& http = flags.http;
  app.add_option("--host", http.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", http.port, "Port; 0 takes a free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
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

}  // namespace spark::app
