#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/thread_pool.hpp>
#include <map>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "engine/serve/http_connection.h"

namespace spark::engine {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Local = asio::local::stream_protocol;

// Connections above the limit that are told so before they are closed; any further are closed at once.
constexpr size_t kMaxRefusals = 64;
constexpr double kGraceAfterGivingUp = 2;
constexpr double kGraceAfterCutting = 1;  // for clients to take the last bytes

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

tcp::endpoint resolve(asio::io_context& context, const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty())
    throw Error("cannot be resolved: " + error.message(), host, "give an IP address to --host");
  return found.begin()->endpoint();
}

// Removes a socket file whose server is gone; refuses one whose server answers, and anything that is no
// socket.
void clear_socket_path(asio::io_context& context, const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) throw Error("exists and is no socket", path, "choose another path");
  error_code error;
  Local::socket probe(context);
  probe.connect(Local::endpoint(path), error);
  if (!error) throw Error("is in use by another server", path, "choose another path or stop that server");
  ::unlink(path.c_str());
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (same_letters(key, name)) return value;
  }
  return std::nullopt;
}

class HttpServer::Impl final : public HttpConnectionOwner {
 public:
  explicit Impl(const HttpOptions& options) : options_(options) {
    if (options_.unix_socket.empty()) {
      listen_tcp();
    } else {
      listen_local();
    }
  }
  ~Impl() {
    small_.join();
    large_.join();
    if (!options_.unix_socket.empty()) ::unlink(options_.unix_socket.c_str());
  }

  uint16_t port() const { return port_; }
  std::string address() const {
    if (!options_.unix_socket.empty()) return "unix:" + options_.unix_socket;
    const bool is_v6 = options_.host.find(':') != std::string::npos;
    return "http://" + (is_v6 ? "[" + options_.host + "]" : options_.host) + ":" + std::to_string(port_);
  }
  size_t connections() const { return connection_count_; }

  void run(HttpHandler& handler) {
    handler_ = &handler;
    if (tcp_) accept(*tcp_);
    if (local_) accept(*local_);
    context_.run();
    // Nobody waits for an answer any more: what has not begun never does, and what has is told to end.
    small_.stop();
    large_.stop();
    handler_->give_up();
    small_.join();
    large_.join();
  }

  void drain(double timeout_s) {
    asio::post(context_, [this, timeout_s] { begin_drain(timeout_s); });
  }

  const HttpOptions& options() const override { return options_; }
  HttpHandler& handler() override { return *handler_; }
  bool draining() const override { return draining_; }

  std::shared_ptr<void> body_room(size_t bytes) override {
    const size_t most = std::max(options_.max_large_bodies_bytes, options_.max_body_bytes);
    if (bytes > most - large_bodies_bytes_) return nullptr;
    large_bodies_bytes_ += bytes;
    return {this, [bytes](Impl* owner) { owner->large_bodies_bytes_ -= bytes; }};
  }

  // Large requests take seconds to read; whether the server lives, and what is asked in few words, must not
  // wait for them.
  void dispatch(HttpRequest request, std::shared_ptr<HttpExchange> exchange,
                std::shared_ptr<void> room) override {
    asio::thread_pool& pool = request.body.size() > options_.small_body_bytes ? large_ : small_;
    asio::post(pool,
               [this, r = std::move(request), e = std::move(exchange), room = std::move(room)]() mutable {
                 if (gave_up_) return e->respond(handler_->fault(503, "the server is shutting down"));
                 try {
                   handler_->handle(std::move(r), e);
                 } catch (const std::exception& error) {
                   log_error(std::string("a request failed: ") + error.what());
                   e->respond(handler_->fault(500, "the server failed to handle this request"));
                 }
               });
  }

  void closed(HttpConnection& connection) override {
    connections_.erase(&connection);
    connection_count_ = connections_.size();
    stop_if_drained();
  }

 private:
  void listen_tcp() {
    const tcp::endpoint endpoint = resolve(context_, options_.host, options_.port);
    tcp_.emplace(context_);
    error_code error;
    tcp_->open(endpoint.protocol(), error);
    if (!error) tcp_->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) tcp_->bind(endpoint, error);
    if (!error) tcp_->listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw Error("cannot listen: " + error.message(), options_.host + ":" + std::to_string(options_.port),
                  "choose another --host or --port, or stop the server that has it");
    }
    port_ = tcp_->local_endpoint().port();
  }

  void listen_local() {
    const std::string& path = options_.unix_socket;
    try {
      clear_socket_path(context_, path);
      local_.emplace(context_, Local::endpoint(path));
    } catch (const boost::system::system_error& error) {
      throw Error(
          "cannot listen: " + error.code().message(), path,
          "--uds needs a folder that exists and may be written to, and a path of at most 107 characters");
    }
  }

  template <class Acceptor>
  void accept(Acceptor& acceptor) {
    auto socket = std::make_shared<HttpConnection::Socket>(context_);
    acceptor.async_accept(*socket, [this, &acceptor, socket](error_code error) {
      if (draining_ || error == asio::error::operation_aborted) return;
      if (!error) {
        take(std::move(*socket));
        return accept(acceptor);
      }
      // Out of descriptors, mostly: they come back as connections end.
      log_warning("cannot accept a connection: " + error.message());
      retry_.expires_after(std::chrono::milliseconds(200));
      retry_.async_wait([this, &acceptor](error_code cancelled) {
        if (!cancelled && !draining_) accept(acceptor);
      });
    });
  }

  void take(HttpConnection::Socket socket) {
    error_code ignored;
    std::string peer = "local";
    if (tcp_) {
      socket.set_option(tcp::no_delay(true), ignored);
      // A generic endpoint holds what the kernel said; read it as the TCP endpoint it is.
      const auto remote = socket.remote_endpoint(ignored);
      tcp::endpoint endpoint;
      if (!ignored && remote.size() <= endpoint.capacity()) {
        std::copy_n(reinterpret_cast<const char*>(remote.data()), remote.size(),
                    reinterpret_cast<char*>(endpoint.data()));
        peer = endpoint.address().to_string(ignored);
      }
    }
    const size_t others = connections_.size();
    if (others >= options_.max_connections + kMaxRefusals) return;  // closes it
    const auto connection =
        std::make_shared<HttpConnection>(context_, std::move(socket), std::move(peer), *this);
    connections_[connection.get()] = connection;
    connection_count_ = connections_.size();
    if (others < options_.max_connections) return connection->start();
    connection->refuse(503,
                       "the server has " + std::to_string(options_.max_connections) + " connections already");
  }

  void begin_drain(double timeout_s) {
    if (draining_) return;
    draining_ = true;
    error_code ignored;
    if (tcp_) tcp_->close(ignored);
    if (local_) local_->close(ignored);
    for (const auto& connection : snapshot()) connection->close_if_idle();
    after(timeout_s, [this] { give_up(); });
    stop_if_drained();
  }

  template <class Step>
  void after(double seconds, Step step) {
    give_up_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    give_up_.async_wait([step](error_code error) {
      if (!error) step();
    });
  }

  void give_up() {
    log_warning(std::to_string(connections_.size()) + " connections are still busy; ending them");
    gave_up_ = true;
    handler_->give_up();
    after(kGraceAfterGivingUp, [this] {
      for (const auto& connection : snapshot()) connection->cut();
      after(kGraceAfterCutting, [this] {
        for (const auto& connection : snapshot()) connection->close();
      });
    });
  }

  void stop_if_drained() {
    if (draining_ && connections_.empty()) context_.stop();
  }

  std::vector<std::shared_ptr<HttpConnection>> snapshot() const {
    std::vector<std::shared_ptr<HttpConnection>> list;
    for (const auto& [pointer, connection] : connections_) list.push_back(connection);
    return list;
  }

  const HttpOptions options_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::optional<tcp::acceptor> tcp_;
  std::optional<Local::acceptor> local_;
  uint16_t port_ = 0;
  asio::steady_timer retry_{context_};
  asio::steady_timer give_up_{context_};
  HttpHandler* handler_ = nullptr;
  bool draining_ = false;
  std::map<HttpConnection*, std::shared_ptr<HttpConnection>> connections_;
  std::atomic<size_t> connection_count_{0};
  std::atomic<bool> gave_up_{false};
  std::atomic<size_t> large_bodies_bytes_{0};  // grows on the server's thread only
  // Handlers of small requests and of large ones; made here, because run() is on a thread that may not fail.
  asio::thread_pool small_{static_cast<size_t>(std::max(1, options_.handler_threads))};
  asio::thread_pool large_{1};
};

HttpServer::HttpServer(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const {
  return impl_->port();
}
std::string HttpServer::address() const {
  return impl_->address();
}
size_t HttpServer::connections() const {
  return impl_->connections();
}
void HttpServer::run(HttpHandler& handler) {
  impl_->run(handler);
}
void HttpServer::drain(double timeout_s) {
  impl_->drain(timeout_s);
}

}  // namespace spark::engine
