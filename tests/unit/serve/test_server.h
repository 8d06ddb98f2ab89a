// A server on a free loopback port over a toy model, and a client that can be as rude as a test wants.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/serve/http.h"
#include "engine/serve/service.h"
#include "unit/schedule/drafting_model.h"
#include "unit/schedule/toy_model.h"

namespace spark::engine {

inline constexpr const char* kModelName = "toy";

const text::Tokenizer& test_tokenizer();

// A script (see ToyModel) that answers whatever prompt with this text, then the end of sequence. The prompt
// must end with
// `</think>`, as chat prompts without thinking do, or with the token of `\n`, unless `after` says otherwise.
ToyModel::Script answering(const std::string& text);

struct Reply {
  int status = 0;                              // 0: the connection was closed without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;
};

class Client {
 public:
  explicit Client(uint16_t port);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(const std::string& bytes);  // false when the server no longer takes them
  void close_writing();
  void close();
  Reply read_reply(bool head_only = false);
  std::string read_some();  // what has come, at least one byte; empty at the end of the connection
  bool closed_by_server();  // within ten seconds, discarding what comes

 private:
  bool fill();
  int fd_;
  std::string buffer_;
};

std::string post(const std::string& path, const std::string& body, const std::string& more_headers = "");
std::string get(const std::string& path, const std::string& more_headers = "");

class TestServer {
 public:
  struct Options {
    ToyModel::Shape shape = {};
    ToyModel::Script script = {};
    DraftingModel::Chooser drafter = {};  // five drafts of these, when there is one
    HttpOptions http = {};
    ServiceOptions service = {};
  };
  TestServer() : TestServer(Options{}) {}
  explicit TestServer(Options options);
  ~TestServer();

  ToyModel& model() { return model_; }
  HttpServer& http() { return http_; }
  uint16_t port() const { return http_.port(); }
  void drain_and_join(double timeout_s);

  Reply ask(const std::string& request);
  Json ask_json(const std::string& path, const Json& body, int status = 200);
  double metric(const std::string& name);

 private:
  ToyModel model_;
  DraftingModel drafting_;
  HttpServer http_;
  Service service_;
  std::thread thread_;
};

void wait_until(const std::function<bool()>& condition);

}  // namespace spark::engine
