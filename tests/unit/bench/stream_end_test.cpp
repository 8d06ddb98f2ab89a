// Every stream ends, whatever the server does: against a server that never closes what it opened.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "bench/load/request.h"

namespace spark::bench {
namespace {

constexpr const char* kToken = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
constexpr const char* kEmptyToken = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
constexpr const char* kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";

// Answers one request with `first`, then says `again` until the client has gone.
class OpenServer {
 public:
  OpenServer(std::string first, std::string again, const std::string& status = "200 OK")
      : first_("HTTP/1.1 " + status + "\r\nContent-Type: text/event-stream\r\n\r\n" + std::move(first)),
        again_(std::move(again)),
        listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, any, size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~OpenServer() {
    done_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  OpenServer(const OpenServer&) = delete;
  OpenServer& operator=(const OpenServer&) = delete;

  HttpClient client() const { return HttpClient({"http://127.0.0.1:" + std::to_string(port_), ""}); }

 private:
  void serve() {
    const int client = ::accept(listener_, nullptr, nullptr);
    char request[4096];
    bool here = client >= 0 && ::recv(client, request, sizeof request, 0) > 0;
    here = here && ::send(client, first_.data(), first_.size(), MSG_NOSIGNAL) > 0;
    while (here && !done_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      here = again_.empty() || ::send(client, again_.data(), again_.size(), MSG_NOSIGNAL) > 0;
    }
    if (client >= 0) ::close(client);
  }

  std::string first_, again_;
  int listener_;
  int port_ = 0;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

Receipt read(const OpenServer& server, const StreamLimits& limits) {
  return stream_chat(server.client(), "{}", limits);
}

TEST(StreamEnd, DoneEndsAStreamThatStaysOpen) {
  const OpenServer server(std::string(kToken) + kUsage + "data: [DONE]\n\n" + kToken, "");
  const Receipt receipt = read(server, {.stall_timeout_s = 20});
  EXPECT_TRUE(receipt.ok) << receipt.error;
  EXPECT_EQ(receipt.content_chars, 1);  // what follows the end is no part of it
  EXPECT_LT(receipt.end_s - receipt.start_s, 10);
}

TEST(StreamEnd, OnlyTokensAreASignOfLife) {
  for (const char* again : {": ping\n\n", kEmptyToken, "data: ", ""}) {
    const OpenServer server(kToken, again);
    const Receipt receipt = read(server, {.stall_timeout_s = 1});
    EXPECT_FALSE(receipt.ok);
    EXPECT_EQ(receipt.error, "no token for 1 s") << again;
  }
}

TEST(StreamEnd, ARefusalThatDripsEndsToo) {
  const OpenServer server("{", " ", "503 Service Unavailable");
  EXPECT_EQ(read(server, {.stall_timeout_s = 1}).error, "no token for 1 s");
}

TEST(StreamEnd, MoreTextThanWasAskedForIsAFailure) {
  const OpenServer server("", kToken);
  const Receipt receipt = read(server, {.stall_timeout_s = 20, .max_tokens = 4});
  EXPECT_FALSE(receipt.ok);
  EXPECT_NE(receipt.error.find("the stream does not end: 73 events"), std::string::npos) << receipt.error;
}

TEST(StreamEnd, AnErrorEndsAStreamThatStaysOpen) {
  const OpenServer server(std::string(kToken) + "data: {\"error\":{\"message\":\"gone\"}}\n\n", kToken);
  EXPECT_EQ(read(server, {.stall_timeout_s = 20}).error, "gone");
}

}  // namespace
}  // namespace spark::bench
