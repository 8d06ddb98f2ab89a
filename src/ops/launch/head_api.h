// The head's HTTP API, asked through the SSH connection to the head (its server opens the TCP connection), so
// that it works from wherever `spark` runs and needs no program on the node. For https the node's curl is
// used.
//
//   HeadApi api(remote, remote_node(map, head), "http://192.0.2.1:8000/v1/models");
//   ApiAnswer answer = api.get("/health", 3);
//   if (answer.status == 200) ...
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "ops/remote/remote.h"
#include "ops/site/api_key.h"

namespace spark::ops {

struct HttpAddress {
  bool tls = false;
  std::string host;
  int64_t port = 0;
  std::string path;  // "/" at least
};
std::optional<HttpAddress> read_address(const std::string& url);  // nullopt: not http or https

struct ApiAnswer {
  int status = 0;  // 0: no answer; `problem` says why
  std::string body;
  std::string problem;
  bool node_unreachable = false;  // the SSH connection failed, not the API
};

// A response's text; nullopt while it is not complete. Content-Length or the end of the connection ends it.
std::optional<ApiAnswer> read_response(std::string_view text, bool closed);

class HeadApi {
 public:
  HeadApi(const Remote& remote, RemoteNode head, const std::string& url, std::string key = {});

  const HttpAddress& address() const { return address_; }
  void set_key(std::string key) { key_ = std::move(key); }
  bool has_key() const { return !key_.empty(); }
  ApiAnswer get(const std::string& path, double timeout_s, const std::stop_token& stop = {}) const;
  ApiAnswer post(const std::string& path, const std::string& json, double timeout_s,
                 const std::stop_token& stop = {}) const;

 private:
  ApiAnswer ask(const std::string& method, const std::string& path, const std::string& body, double timeout_s,
                const std::stop_token& stop) const;
  ApiAnswer ask_with_curl(const std::string& method, const std::string& path, const std::string& body,
                          double timeout_s, const std::stop_token& stop) const;

  const Remote& remote_;
  RemoteNode head_;
  HttpAddress address_;
  std::string key_;
};

// One token, generated: the ready URL answers, the API names its model, a completion of one token comes back.
struct TokenProof {
  bool ready = false;
  bool node_unreachable = false;
  bool refused = false;  // the API wants another key: asking again does not help
  std::string model;
  std::string problem;  // why not yet
};
TokenProof generate_token(HeadApi& api, double timeout_s, const std::stop_token& stop);

// The API's key, as ops/site/api_key.h says; "" when there is none.
std::string find_api_key(const Remote& remote, const RemoteNode& head, const ApiKeySource& source);

}  // namespace spark::ops
