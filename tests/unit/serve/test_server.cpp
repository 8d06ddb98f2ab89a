#include "unit/serve/test_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/prometheus.h"

namespace spark::engine {
namespace {

constexpr int kPatienceMs = 10000;

HttpOptions on_free_port(HttpOptions options) {
  options.port = 0;
  return options;
}

ServiceOptions named(ServiceOptions options) {
  if (options.served_names.empty()) options.served_names = {kModelName};
  if (options.version.empty()) options.version = "test";
  return options;
}

}  // namespace

const text::Tokenizer& test_tokenizer() {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  return kTokenizer;
}

ToyModel::Script answering(const std::string& text) {
  std::vector<int32_t> tokens = test_tokenizer().encode(text, text::ControlTokens::kRecognised);
  tokens.push_back(1);
  const int32_t no_thinking = test_tokenizer().added_token("</think>").value();
  const int32_t thinking = test_tokenizer().added_token("<think>").value();
  const int32_t newline = test_tokenizer().encode("\n", text::ControlTokens::kAsText).at(0);
  return [=](std::span<const int32_t> history) {
    // The answer so far begins after the first of these tokens.
    size_t start = 0;
    while (start < history.size() && history[start] != no_thinking && history[start] != thinking &&
           history[start] != newline) {
      ++start;
    }
    return start == history.size() ? -1 : tokens[(history.size() - start - 1) % tokens.size()];
  };
}

Client::Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect");
  }
}

Client::~Client() {
  close();
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::close_writing() {
  ::shutdown(fd_, SHUT_WR);
}

bool Client::send(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (count <= 0) return false;
    at += static_cast<size_t>(count);
  }
  return true;
}

bool Client::fill() {
  pollfd waiting{fd_, POLLIN, 0};
  if (::poll(&waiting, 1, kPatienceMs) <= 0) throw std::runtime_error("the server says nothing");
  char bytes[16384];
  const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::string Client::read_some() {
  if (buffer_.empty()) fill();
  return std::exchange(buffer_, {});
}

bool Client::closed_by_server() {
  for (int i = 0; i < 10000; ++i) {
    buffer_.clear();
    if (!fill()) return true;
  }
  return false;
}

Reply Client::read_reply(bool head_only) {
  Reply reply;
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return reply;
  }
  const std::string head = buffer_.substr(0, end);
  buffer_.erase(0, end + 4);
  reply.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n"); at != std::string::npos;) {
    const size_t next = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, next == std::string::npos ? next : next - at - 2);
    const size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(::tolower(c));
    reply.headers[name] = line.substr(colon + 2);
    at = next;
  }
  const auto need = [&](size_t count) {
    while (buffer_.size() < count) {
      if (!fill()) return false;
    }
    return true;
  };
  if (head_only || reply.status == 204 || reply.status == 100) {
    reply.complete = true;
  } else if (reply.headers.contains("content-length")) {
    const size_t length = std::stoul(reply.headers["content-length"]);
    if (!need(length)) return reply;
    reply.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    reply.complete = true;
  } else if (reply.headers.contains("transfer-encoding")) {
    for (;;) {
      size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!fill()) return reply;
      }
      const size_t length = std::stoul(buffer_.substr(0, line), nullptr, 16);
      if (!need(line + 2 + length + 2)) return reply;
      reply.body += buffer_.substr(line + 2, length);
      buffer_.erase(0, line + 2 + length + 2);
      if (length == 0) break;
    }
    reply.complete = true;
  } else {
    while (fill()) {
    }
    reply.body = std::exchange(buffer_, {});
    reply.complete = true;
  }
  return reply;
}

std::string post(const std::string& path, const std::string& body, const std::string& more_headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + more_headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string get(const std::string& path, const std::string& more_headers) {
  return "GET " + path + " HTTP/1.1\r\nHost: test\r\n" + more_headers + "\r\n";
}

TestServer::TestServer(Options options)
    : model_(options.shape, options.script),
      drafting_(model_, options.drafter ? 5 : 0, options.drafter),
      http_(on_free_port(options.http)),
      service_(drafting_, test_tokenizer(), named(options.service)),
      thread_([this] { http_.run(service_); }) {}

TestServer::~TestServer() {
  if (thread_.joinable()) drain_and_join(0);
}

void TestServer::drain_and_join(double timeout_s) {
  http_.drain(timeout_s);
  thread_.join();
}

Reply TestServer::ask(const std::string& request) {
  Client client(port());
  client.send(request);
  return client.read_reply();
}

Json TestServer::ask_json(const std::string& path, const Json& body, int status) {
  const Reply reply = ask(post(path, body.dump()));
  EXPECT_EQ(reply.status, status) << reply.body;
  return Json::parse(reply.body);
}

double TestServer::metric(const std::string& name) {
  return api::parse_metrics(ask(get("/metrics")).body).sum(name).value_or(-1);
}

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(condition());
}

}  // namespace spark::engine
