// The HTTP/1.1 server as its users see it: requests come in whole, answers go out whole or as a stream. What
// is behind (sockets, parsing, limits, timeouts) is in http_server.cpp and http_connection.cpp.
//
//   HttpServer server({.port = 0});              // binds; throws Error
//   print(server.address());
//   server.run(handler);                         // until drained
//
// Every fault of a client gets an answer made by HttpHandler::fault (400, 408, 413, 417, 431, 501, 503) or
// its connection is closed; answers to pipelined requests keep their order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spark::engine {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query
  HttpHeaders headers;
  std::string body;
  std::string peer;  // the client's address, without its port

  // By name in any case; nullopt when absent. The first of several.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
};

// The answer to one request, from any thread. What is said after the client has gone, or after the answer is
// complete, is dropped. Letting go of an exchange that has no complete answer closes the connection.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void respond(HttpResponse response) = 0;
  // A body in parts: start, any number of writes, end. When nothing is written for a while, `idle_bytes` are
  // sent. Should the server have to end before the stream does, its last bytes are `cut_bytes`.
  virtual void start_stream(HttpResponse head, std::string idle_bytes, std::string cut_bytes) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end_stream() = 0;
  // Called once, on the server's thread, when the client goes away before the answer is complete.
  virtual void on_gone(std::function<void()> callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request whose body has not been read; an answer refuses it.
  virtual std::optional<HttpResponse> screen(const HttpRequest& head) = 0;
  // On one of the server's handler threads; a large request's on a thread that has only those.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // The answer to what cannot be handled.
  virtual HttpResponse fault(int status, const std::string& message) = 0;
  // The drain has lasted too long: end what is in progress. What has not ended two seconds later is ended by
  // the server, which does not wait for a model that computes: with `fault(503)`, or a stream's cut bytes.
  // Also called when the drain has ended, for requests whose clients have gone and that are still handled.
  virtual void give_up() = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;          // 0: any free one
  std::string unix_socket = {};  // a path; instead of host and port
  int handler_threads = 2;       // of requests up to small_body_bytes; larger ones have one of their own
  size_t small_body_bytes = 64 << 10;
  // Of all larger bodies that are being read or wait for their handler; a request beyond it gets 503.
  size_t max_large_bodies_bytes = 128 << 20;
  size_t max_connections = 256;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 16 << 20;
  size_t max_unsent_bytes = 16 << 20;  // of one stream; a client that reads so slowly is dropped
  double header_timeout_s =
      10;  // from the first byte of a request, or from connecting, to the end of its head
  double body_timeout_s = 60;
  double idle_timeout_s = 75;   // between requests of a connection
  double write_timeout_s = 60;  // without the client taking a byte
  double stream_idle_s = 15;    // after which a silent stream gets its idle bytes
};

class HttpServer {
 public:
  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;        // 0 for a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000", "unix:/run/engine.sock"

  // Serves on the calling thread until drained. `handler` outlives the call, not the server.
  void run(HttpHandler& handler);
  // From any thread: takes no more connections and requests, lets those in progress finish for so long, then
  // gives up.
  void drain(double timeout_s);

  size_t connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spark::engine
