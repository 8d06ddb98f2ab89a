#include "engine/serve/http_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <ctime>

#include "common/log.h"

namespace spark::engine {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is handled
// What is read but not yet understood, beside a head of full length: the parser collects chunk extensions and
// trailers whole, and they count towards no other limit. Twice what one read may bring.
constexpr size_t kMaxUnparsedBytes = 128 << 10;
constexpr size_t kMaxDiscardedBytes =
    64 << 20;  // taken from a client after a refusal, so that it reads the refusal
constexpr double kLingerSeconds = 2;
constexpr double kLingerSecondsDraining = 0.05;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

std::string chunk(const std::string& bytes) {
  char size[24];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string out(size, static_cast<size_t>(length));
  return out.append(bytes).append("\r\n");
}

std::string copy_of(beast::string_view view) {
  return {view.data(), view.size()};
}

std::chrono::microseconds duration(double seconds) {
  return std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
}

// "/path" of "/path?query" or "http://host/path"; empty when it is neither.
std::string path_of(std::string_view target) {
  if (!target.empty() && target.front() != '/') {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return {};
    target.remove_prefix(scheme + 3);
    const size_t slash = target.find('/');
    if (slash == std::string_view::npos) return "/";
    target.remove_prefix(slash);
  }
  return std::string(target.substr(0, target.find_first_of("?#")));
}

// The exchange that handlers hold: carries calls over to the server's thread.
class ConnectionExchange : public HttpExchange {
 public:
  ConnectionExchange(std::shared_ptr<HttpConnection> connection, uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  ~ConnectionExchange() override {
    post([](HttpConnection& c, uint64_t n) { c.abandon(n); });
  }
  void respond(HttpResponse response) override {
    post([r = std::move(response)](HttpConnection& c, uint64_t n) { c.respond(n, r); });
  }
  void start_stream(HttpResponse head, std::string idle_bytes, std::string cut_bytes) override {
    post([h = std::move(head), i = std::move(idle_bytes), cut = std::move(cut_bytes)](
             HttpConnection& c, uint64_t n) { c.start_stream(n, h, i, cut); });
  }
  void write(std::string bytes) override {
    post([b = std::move(bytes)](HttpConnection& c, uint64_t n) { c.write(n, b); });
  }
  void end_stream() override {
    post([](HttpConnection& c, uint64_t n) { c.end_stream(n); });
  }
  void on_gone(std::function<void()> callback) override {
    post([f = std::move(callback)](HttpConnection& c, uint64_t n) { c.on_gone(n, f); });
  }

 private:
  template <class Call>
  void post(Call call) {
    asio::post(connection_->context(), [c = connection_, n = number_, f = std::move(call)] { f(*c, n); });
  }

  std::shared_ptr<HttpConnection> connection_;
  uint64_t number_;
};

}  // namespace

HttpConnection::HttpConnection(asio::io_context& context, Socket socket, std::string peer,
                               HttpConnectionOwner& owner)
    : context_(context),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      owner_(owner),
      buffer_(owner.options().max_header_bytes + kMaxUnparsedBytes),
      deadline_(context),
      idle_(context) {}

void HttpConnection::start() {
  wait_for_request();
}

void HttpConnection::refuse(int status, const std::string& message) {
  fault(status, message);
}

void HttpConnection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  const auto self = shared_from_this();
  disarm();
  idle_.cancel();
  body_room_ = nullptr;
  ErrorCode ignored;
  socket_.close(ignored);
  owner_.closed(*this);
  if (const auto gone = std::exchange(gone_, nullptr)) gone();
}

void HttpConnection::close_if_idle() {
  if (phase_ == Phase::kWaiting) close();
  // The answer is out; a client that keeps its end open need not be waited for that long any more.
  if (phase_ == Phase::kLingering) arm(kLingerSecondsDraining, Expiry::kClose);
}

void HttpConnection::cut() {
  if (phase_ != Phase::kHandling) return close();
  if (answer_complete_) return;  // it is on its way
  if (!answering_) return fault(503, "the server is shutting down");
  write(exchange_, cut_bytes_);
  end_stream(exchange_);
}

void HttpConnection::wait_for_request() {
  phase_ = Phase::kWaiting;
  if (buffer_.size() > 0) return read_head();
  arm(first_request_ ? owner_.options().header_timeout_s : owner_.options().idle_timeout_s, Expiry::kClose);
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    if (self->phase_ != Phase::kWaiting) return;
    if (error) return self->close();
    self->read_head();
  });
}

void HttpConnection::read_head() {
  phase_ = Phase::kHead;
  timed_out_ = false;
  answering_ = answer_complete_ = streaming_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(owner_.options().max_header_bytes));
  parser_->body_limit(owner_.options().max_body_bytes);
  arm(owner_.options().header_timeout_s, Expiry::kTimedOut);
  beast::http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->on_head(error); });
}

void HttpConnection::on_head(ErrorCode error) {
  if (phase_ != Phase::kHead) return;
  disarm();
  // A connection that ends between requests is no fault.
  if (error == beast::http::error::end_of_stream) return close();
  if (error) return fault_of(error);
  take_head();
}

// Looks at the head: protocol, framing, and what the handler says to it.
void HttpConnection::take_head() {
  const auto& head = parser_->get();
  is_http_1_0_ = head.version() < 11;
  is_head_method_ = head.method() == beast::http::verb::head;
  keep_alive_ = parser_->keep_alive();
  request_ = {copy_of(head.method_string()), path_of(copy_of(head.target())), {}, {}, peer_};
  for (const auto& field : head) {
    request_.headers.emplace_back(copy_of(field.name_string()), copy_of(field.value()));
  }
  if (request_.method == "OPTIONS" && head.target() == "*") request_.path = "*";

  // A coding that is not understood hides where the body ends; what follows must not be taken for a request.
  const auto coding = head.find(beast::http::field::transfer_encoding);
  if (coding != head.end() && (is_http_1_0_ || head.count(beast::http::field::transfer_encoding) != 1 ||
                               !beast::iequals(coding->value(), "chunked"))) {
    return fault(501, "\"Transfer-Encoding: chunked\" is the only one that is understood, in HTTP/1.1");
  }
  if (!is_http_1_0_ && head.count(beast::http::field::host) != 1)
    return fault(400, "exactly one Host header is needed");
  if (request_.path.empty()) return fault(400, "the request's target is not a path");
  if (owner_.draining()) return fault(503, "the server is shutting down");
  if (const auto refusal = owner_.handler().screen(request_)) {
    keep_alive_ = keep_alive_ && parser_->is_done();
    return answer(*refusal);
  }
  if (!parser_->is_done()) {
    const size_t length = parser_->content_length().value_or(owner_.options().max_body_bytes);
    if (length > owner_.options().small_body_bytes) body_room_ = owner_.body_room(length);
    if (length > owner_.options().small_body_bytes && body_room_ == nullptr)
      return fault(503, "the server is busy with other large requests; try again later");
  }
  const auto expect = head.find(beast::http::field::expect);
  if (expect == head.end() || parser_->is_done()) return read_body();
  if (!beast::iequals(expect->value(), "100-continue"))
    return fault(417, "only \"Expect: 100-continue\" is understood");
  phase_ = Phase::kBody;
  send("HTTP/1.1 100 Continue\r\n\r\n");  // on_flushed reads on
}

void HttpConnection::read_body() {
  phase_ = Phase::kBody;
  if (parser_->is_done()) return dispatch();
  arm(owner_.options().body_timeout_s, Expiry::kTimedOut);
  beast::http::async_read(socket_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) { self->on_body(error); });
}

void HttpConnection::on_body(ErrorCode error) {
  if (phase_ != Phase::kBody) return;
  disarm();
  if (error) return fault_of(error);
  dispatch();
}

void HttpConnection::dispatch() {
  phase_ = Phase::kHandling;
  first_request_ = false;
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  ++exchange_;
  watch_client();
  if (phase_ != Phase::kHandling) return;
  owner_.dispatch(std::move(request_), std::make_shared<ConnectionExchange>(shared_from_this(), exchange_),
                  std::exchange(body_room_, nullptr));
}

// Reads ahead while a request is handled, to learn when the client goes away.
void HttpConnection::watch_client() {
  if (client_ended_ || buffer_.size() >= kMaxPipelinedBytes) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](ErrorCode error, size_t count) {
    self->watching_ = false;
    if (self->phase_ == Phase::kClosed) return;
    self->buffer_.commit(count);
    if (self->next_after_watch_) {
      self->next_after_watch_ = false;
      return self->next();
    }
    if (error == asio::error::eof) return self->on_client_end();
    if (error) return self->close();
    self->watch_client();
  });
}

// The client sends no more. Quick answers still reach it if it has only closed its sending side; a generation
// is not worth the time, because most clients that look like this have gone.
void HttpConnection::on_client_end() {
  client_ended_ = true;
  if (gone_) close();
}

// After a complete answer.
void HttpConnection::next() {
  if (watching_) {
    next_after_watch_ = true;
    ErrorCode ignored;
    socket_.cancel(ignored);
    return;
  }
  if (keep_alive_ && !owner_.draining()) return wait_for_request();
  linger();
}

// Closing at once would make the kernel reset the connection while the client still sends, and the client
// might lose the answer: end our side, and take what comes for a while.
void HttpConnection::linger() {
  phase_ = Phase::kLingering;
  ErrorCode error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) return close();
  arm(owner_.draining() ? kLingerSecondsDraining : kLingerSeconds, Expiry::kClose);
  discard();
}

void HttpConnection::discard() {
  socket_.async_read_some(asio::buffer(scratch_), [self = shared_from_this()](ErrorCode error, size_t count) {
    if (self->phase_ != Phase::kLingering) return;
    self->discarded_ += count;
    if (error || self->discarded_ > kMaxDiscardedBytes) return self->close();
    self->discard();
  });
}

void HttpConnection::fault(int status, const std::string& message) {
  body_room_ = nullptr;
  keep_alive_ = false;
  answer(owner_.handler().fault(status, message));
}

void HttpConnection::fault_of(ErrorCode code) {
  using beast::http::error;
  if (timed_out_) return fault(408, "the request did not arrive in time");
  const HttpOptions& options = owner_.options();
  if (code == error::buffer_overflow && phase_ == Phase::kBody) {
    return fault(400, "the extensions of a chunk, or the fields after the body, are too long");
  }
  if (code == error::header_limit || code == error::buffer_overflow) {
    return fault(431,
                 "the request's head is longer than " + std::to_string(options.max_header_bytes) + " bytes");
  }
  if (code == error::body_limit) {
    return fault(413,
                 "the request's body is longer than " + std::to_string(options.max_body_bytes) + " bytes");
  }
  if (code == error::bad_version) return fault(505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  if (code == error::partial_message) return fault(400, "the request ended early");
  if (code.category() == make_error_code(error::bad_method).category()) {
    return fault(400, "the request is not valid HTTP: " + code.message());
  }
  close();  // the connection broke
}

bool HttpConnection::current(uint64_t exchange) const {
  return phase_ == Phase::kHandling && exchange == exchange_ && !answer_complete_;
}

void HttpConnection::respond(uint64_t exchange, const HttpResponse& response) {
  if (!current(exchange) || answering_) return;
  if (owner_.draining()) keep_alive_ = false;
  answer(response);
}

void HttpConnection::answer(const HttpResponse& response) {
  answering_ = answer_complete_ = true;
  send(head_text(response, response.body.size()) + (is_head_method_ ? std::string() : response.body));
}

void HttpConnection::start_stream(uint64_t exchange, const HttpResponse& head, std::string idle_bytes,
                                  std::string cut_bytes) {
  if (!current(exchange) || answering_) return;
  answering_ = streaming_ = true;
  idle_bytes_ = std::move(idle_bytes);
  cut_bytes_ = std::move(cut_bytes);
  if (is_http_1_0_ || owner_.draining()) keep_alive_ = false;
  send(head_text(head, std::nullopt));
}

void HttpConnection::write(uint64_t exchange, const std::string& bytes) {
  if (!current(exchange) || !streaming_ || bytes.empty()) return;
  send(is_http_1_0_ ? bytes : chunk(bytes));
  if (phase_ == Phase::kHandling && out_.size() > owner_.options().max_unsent_bytes) {
    log_warning("a client reads its stream too slowly; closing its connection");
    close();
  }
}

void HttpConnection::end_stream(uint64_t exchange) {
  if (!current(exchange) || !streaming_) return;
  answer_complete_ = true;
  if (!is_http_1_0_) return send("0\r\n\r\n");
  if (!writing_) on_flushed();
}

void HttpConnection::on_gone(uint64_t exchange, std::function<void()> callback) {
  if (phase_ == Phase::kClosed && exchange == exchange_) return callback();
  if (!current(exchange)) return;
  gone_ = std::move(callback);
  if (client_ended_) close();
}

void HttpConnection::abandon(uint64_t exchange) {
  if (current(exchange)) close();
}

std::string HttpConnection::head_text(const HttpResponse& response, std::optional<size_t> length) const {
  const auto reason = beast::http::obsolete_reason(static_cast<beast::http::status>(response.status));
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out.append(reason.data(), reason.size()).append("\r\nServer: spark-engine\r\nDate: ").append(http_date());
  if (!response.content_type.empty()) out += "\r\nContent-Type: " + response.content_type;
  if (length && response.status != 204) out += "\r\nContent-Length: " + std::to_string(*length);
  if (!length && !is_http_1_0_) out += "\r\nTransfer-Encoding: chunked";
  for (const auto& [name, value] : response.headers)
    out.append("\r\n").append(name).append(": ").append(value);
  return out.append(keep_alive_ ? "\r\nConnection: keep-alive" : "\r\nConnection: close").append("\r\n\r\n");
}

void HttpConnection::send(const std::string& bytes) {
  out_ += bytes;
  if (!writing_) write_some();
}

void HttpConnection::write_some() {
  if (written_ == in_flight_.size()) {
    in_flight_.clear();
    written_ = 0;
    std::swap(in_flight_, out_);
  }
  writing_ = true;
  idle_.cancel();
  arm(owner_.options().write_timeout_s, Expiry::kClose);
  socket_.async_write_some(asio::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
                           [self = shared_from_this()](ErrorCode error, size_t count) {
                             self->writing_ = false;
                             if (self->phase_ == Phase::kClosed) return;
                             if (error) return self->close();
                             self->written_ += count;
                             if (self->written_ < self->in_flight_.size() || !self->out_.empty()) {
                               return self->write_some();
                             }
                             self->disarm();
                             self->on_flushed();
                           });
}

void HttpConnection::on_flushed() {
  if (answer_complete_) {
    gone_ = nullptr;
    streaming_ = false;
    return next();
  }
  if (phase_ == Phase::kBody) return read_body();  // after "100 Continue"
  if (streaming_) arm_idle_bytes();
}

void HttpConnection::arm_idle_bytes() {
  if (idle_bytes_.empty()) return;
  idle_.expires_after(duration(owner_.options().stream_idle_s));
  idle_.async_wait([self = shared_from_this(), exchange = exchange_](ErrorCode error) {
    if (!error && !self->writing_) self->write(exchange, self->idle_bytes_);
  });
}

void HttpConnection::arm(double seconds, Expiry expiry) {
  deadline_.expires_after(duration(seconds));
  deadline_.async_wait([self = shared_from_this(), mine = ++armed_, expiry](ErrorCode error) {
    // A deadline may have run out just before it was replaced.
    if (error || mine != self->armed_ || self->phase_ == Phase::kClosed) return;
    if (expiry == Expiry::kClose) return self->close();
    self->timed_out_ = true;
    ErrorCode ignored;
    self->socket_.cancel(ignored);
    // Should the read have ended at this very moment, the next one goes on: it has a second.
    self->arm(1, Expiry::kClose);
  });
}

void HttpConnection::disarm() {
  ++armed_;
  deadline_.cancel();
}

}  // namespace spark::engine
