// One connection: requests are read, handled and answered one after the other. Internal to the HTTP server;
// all of it runs on the server's thread.
#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "engine/serve/http.h"

namespace spark::engine {

class HttpConnection;

// What a connection needs of its server.
class HttpConnectionOwner {
 public:
  virtual const HttpOptions& options() const = 0;
  virtual HttpHandler& handler() = 0;
  virtual bool draining() const = 0;
  // Room for a body of so many bytes until the last copy is gone; nullptr when the server holds enough of
  // them.
  virtual std::shared_ptr<void> body_room(size_t bytes) = 0;
  virtual void dispatch(HttpRequest request, std::shared_ptr<HttpExchange> exchange,
                        std::shared_ptr<void> body_room) = 0;
  virtual void closed(HttpConnection& connection) = 0;

 protected:
  ~HttpConnectionOwner() = default;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  HttpConnection(boost::asio::io_context& context, Socket socket, std::string peer,
                 HttpConnectionOwner& owner);

  void start();
  void refuse(int status, const std::string& message);  // instead of start
  void close();
  void close_if_idle();
  void cut();  // ends what is in progress with an error that the client can read
  boost::asio::io_context& context() { return context_; }

  // What is said to the exchange of this number; stale numbers are ignored.
  void respond(uint64_t exchange, const HttpResponse& response);
  void start_stream(uint64_t exchange, const HttpResponse& head, std::string idle_bytes,
                    std::string cut_bytes);
  void write(uint64_t exchange, const std::string& bytes);
  void end_stream(uint64_t exchange);
  void on_gone(uint64_t exchange, std::function<void()> callback);
  void abandon(uint64_t exchange);

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kWaiting, kHead, kBody, kHandling, kLingering, kClosed };
  enum class Expiry { kClose, kTimedOut };

  // The way of a request.
  void wait_for_request();
  void read_head();
  void on_head(ErrorCode error);
  void take_head();
  void read_body();
  void on_body(ErrorCode error);
  void dispatch();
  void watch_client();
  void on_client_end();
  void next();
  void linger();
  void discard();

  void fault(int status, const std::string& message);
  void fault_of(ErrorCode code);
  void answer(const HttpResponse& response);
  std::string head_text(const HttpResponse& response, std::optional<size_t> length) const;
  bool current(uint64_t exchange) const;

  void send(const std::string& bytes);
  void write_some();
  void on_flushed();
  void arm_idle_bytes();

  void arm(double seconds, Expiry expiry);
  void disarm();

  boost::asio::io_context& context_;
  Socket socket_;
  const std::string peer_;
  HttpConnectionOwner& owner_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer idle_;
  uint64_t armed_ = 0;  // tells the deadline in force from those replaced
  std::array<char, 4096> scratch_{};
  size_t discarded_ = 0;

  Phase phase_ = Phase::kWaiting;
  HttpRequest request_;
  std::shared_ptr<void> body_room_;  // of a large body
  bool first_request_ = true;
  bool timed_out_ = false;
  bool keep_alive_ = false;
  bool is_http_1_0_ = false;
  bool is_head_method_ = false;

  uint64_t exchange_ = 0;         // the current one's number
  bool answering_ = false;        // respond or start_stream has been called
  bool answer_complete_ = false;  // all of the answer is in out_
  bool streaming_ = false;
  std::string idle_bytes_;
  std::string cut_bytes_;
  std::function<void()> gone_;

  bool watching_ = false;  // a read is outstanding beside the handling
  bool next_after_watch_ = false;
  bool client_ended_ = false;  // its sending side is closed
  bool writing_ = false;
  std::string out_;        // to be written
  std::string in_flight_;  // being written
  size_t written_ = 0;     // of in_flight_
};

}  // namespace spark::engine
