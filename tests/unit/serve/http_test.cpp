// The server's manners on the wire.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

const std::string kAsk = R"({"prompt":"\n","max_tokens":3,"temperature":0})";

TEST(Http, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  TestServer server;
  Client client(server.port());
  client.send(get("/version") + post("/v1/completions", kAsk) + get("/nowhere") + get("/v1/models"));
  EXPECT_NE(client.read_reply().body.find("\"version\""), std::string::npos);
  EXPECT_NE(client.read_reply().body.find("text_completion"), std::string::npos);
  EXPECT_EQ(client.read_reply().status, 404);
  EXPECT_NE(client.read_reply().body.find("\"list\""), std::string::npos);
  client.send(get("/health", "Connection: close\r\n"));
  const Reply last = client.read_reply();
  EXPECT_EQ(last.status, 200);
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Http, TakesRequestsCutAnywhere) {
  TestServer server;
  const std::string request = post("/tokenize", R"({"prompt":"hello"})");
  for (size_t cut = 1; cut < request.size(); cut += 7) {
    Client client(server.port());
    client.send(request.substr(0, cut));
    std::this_thread::sleep_for(1ms);
    client.send(request.substr(cut));
    EXPECT_EQ(client.read_reply().status, 200);
  }
}

TEST(Http, TakesChunkedBodies) {
  TestServer server;
  Client client(server.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;x=y\r\n{\"pro\r\n");
  client.send("d\r\nmpt\":\"hello\"}\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  client.send(get("/health"));
  EXPECT_EQ(client.read_reply().status, 200);
}

// The parser collects chunk extensions and trailers whole; neither may fill the memory.
TEST(Http, EndlessChunkExtensionsAndTrailersAreCutOff) {
  TestServer server;
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* beginning : {"5;x=", "2\r\n{}\r\n0\r\nX: "}) {
    Client client(server.port());
    client.send(head + beginning);
    const std::string piece(64 << 10, 'x');
    for (int i = 0; i < 8; ++i) client.send(piece);
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find("too long"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(server.ask(get("/health")).status, 200);
}

TEST(Http, AnswersHeadOptionsAndExpect) {
  TestServer server;
  Client client(server.port());
  client.send("HEAD /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  const Reply head = client.read_reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.headers.at("content-length")), 10);
  client.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n");
  const Reply options = client.read_reply();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "OPTIONS, POST");
  client.send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 204);
  client.send("DELETE /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  const Reply wrong = client.read_reply();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "OPTIONS, GET, HEAD");
  const std::string body = R"({"prompt":"x"})";
  client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 200);
  client.send("GET http://t/version?x=1 HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Http, SpeaksHttp10) {
  TestServer server({.script = answering("hello")});
  Client client(server.port());
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(client.closed_by_server());
  Client streaming(server.port());
  const std::string body = R"({"prompt":"\n","temperature":0,"stream":true})";
  streaming.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
                 "\r\n\r\n" + body);
  const Reply reply = streaming.read_reply();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_NE(reply.body.find("data: [DONE]\n\n"), std::string::npos);
}

TEST(Http, ChecksTheKey) {
  TestServer server({.service = {.api_keys = {"one", "two"}}});
  const auto status = [&](const std::string& headers, const std::string& path = "/v1/models") {
    return server.ask(get(path, headers)).status;
  };
  EXPECT_EQ(status("Authorization: Bearer one\r\n"), 200);
  EXPECT_EQ(status("authorization: bearer  two\r\n"), 200);
  for (const char* bad :
       {"", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer on\r\n",
        "Authorization: Bearer onee\r\n", "Authorization: Bearer One\r\n", "Authorization: Basic one\r\n",
        "Authorization: one\r\n"}) {
    EXPECT_EQ(status(bad), 401) << bad;
    EXPECT_EQ(status(bad, "/metrics"), 401);
    EXPECT_EQ(status(bad, "/nowhere"), 401);
    EXPECT_EQ(status(bad, "/health"), 200);
  }
  // Refused before the body has come.
  Client client(server.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  const Reply refused = client.read_reply();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "invalid_api_key");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Http, BoundsHeadsBodiesAndConnections) {
  TestServer server({.http = {.max_connections = 3, .max_header_bytes = 1000, .max_body_bytes = 1000}});
  EXPECT_EQ(server.ask(get("/health", "X: " + std::string(2000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(server.ask(post("/tokenize", std::string(2000, 'x'))).status, 413);
  EXPECT_EQ(server.ask("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n").status,
            413);
  EXPECT_EQ(server
                .ask("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                     std::string(2000, 'x') + "\r\n0\r\n\r\n")
                .status,
            413);
  wait_until([&] { return server.http().connections() == 0; });
  Client a(server.port()), b(server.port()), c(server.port());
  wait_until([&] { return server.http().connections() == 3; });
  const Reply refused = server.ask(get("/health"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  a.close();
  wait_until([&] { return server.http().connections() <= 2; });
  EXPECT_EQ(server.ask(get("/health")).status, 200);
}

// A handler that reads large requests for as long as the test likes.
class SlowReader : public HttpHandler {
 public:
  std::optional<HttpResponse> screen(const HttpRequest&) override { return std::nullopt; }
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (request.body.size() > 1000) {
      ++begun;
      while (!go_on && !told_to_end) std::this_thread::sleep_for(1ms);
    }
    exchange->respond({.body = std::to_string(request.body.size())});
  }
  HttpResponse fault(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }
  void give_up() override { told_to_end = true; }

  std::atomic<int> begun{0};
  std::atomic<bool> go_on{false}, told_to_end{false};
};

TEST(Http, LargeRequestsHoldNobodyUp) {
  SlowReader handler;
  HttpServer server(
      {.port = 0, .small_body_bytes = 1000, .max_large_bodies_bytes = 5000, .max_body_bytes = 5000});
  std::thread thread([&] { server.run(handler); });
  Client first(server.port()), second(server.port()), third(server.port());
  const std::string large = post("/read", std::string(2000, 'x'));
  first.send(large);
  wait_until([&] { return handler.begun == 1; });
  second.send(large);  // waits for the first
  // No room for a third of that size, declared or not; a smaller one fits.
  const auto ask = [&](const std::string& request) {
    Client client(server.port());
    client.send(request);
    return client.read_reply();
  };
  wait_until([&] { return ask(large).status == 503; });
  EXPECT_EQ(ask("POST /read HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").status, 503);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ask(get("/health")).status, 200);
    EXPECT_EQ(ask(post("/read", std::string(900, 'x'))).body, "900");
  }
  EXPECT_EQ(handler.begun, 1);
  handler.go_on = true;
  EXPECT_EQ(first.read_reply().body, "2000");
  EXPECT_EQ(second.read_reply().body, "2000");
  third.send(large);  // their room is free again
  EXPECT_EQ(third.read_reply().body, "2000");
  server.drain(60);
  thread.join();
}

// Handlers that still read when the drain is over are told; requests that none has begun are refused.
TEST(Http, ADrainDoesNotWaitForHandlers) {
  SlowReader handler;
  HttpServer server({.port = 0, .small_body_bytes = 1000});
  std::thread thread([&] { server.run(handler); });
  Client reading(server.port()), waiting(server.port());
  reading.send(post("/read", std::string(2000, 'x')));
  wait_until([&] { return handler.begun == 1; });
  waiting.send(post("/read", std::string(2000, 'x')));
  std::this_thread::sleep_for(50ms);
  server.drain(0.1);
  EXPECT_EQ(reading.read_reply().body, "2000");
  EXPECT_EQ(waiting.read_reply().status, 503);
  thread.join();
  EXPECT_EQ(handler.begun, 1);
}

// What a coding hides must not be taken for the next request.
TEST(Http, RefusesTransferCodingsThatItDoesNotKnow) {
  TestServer server;
  for (const char* coding : {"gzip", "identity", "xchunked", "gzip, chunked", "chunked, gzip"}) {
    Client client(server.port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: " + std::string(coding) +
                "\r\n\r\n" + get("/version"));
    EXPECT_EQ(client.read_reply().status, 501) << coding;
    EXPECT_TRUE(client.closed_by_server()) << coding;
  }
  EXPECT_EQ(server.ask("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").status, 501);
}

TEST(Http, DoesNotWaitForSlowClients) {
  TestServer server({.http = {.header_timeout_s = 0.2, .body_timeout_s = 0.2, .idle_timeout_s = 0.2}});
  Client silent(server.port());
  EXPECT_TRUE(silent.closed_by_server());
  Client slow(server.port());
  slow.send("GET /health HT");
  EXPECT_EQ(slow.read_reply().status, 408);
  EXPECT_TRUE(slow.closed_by_server());
  Client slow_body(server.port());
  slow_body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{\"pro");
  EXPECT_EQ(slow_body.read_reply().status, 408);
  // One byte at a time does not help.
  Client loris(server.port());
  bool taken = true;
  for (int i = 0; i < 100 && taken; ++i) {
    taken = loris.send(i == 0 ? "GET /health HTTP/1.1\r\nX: " : "x");
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(loris.read_reply().status, 408);
  Client idle(server.port());
  idle.send(get("/health"));
  EXPECT_EQ(idle.read_reply().status, 200);
  EXPECT_TRUE(idle.closed_by_server());
}

TEST(Http, AnswersAClientThatHasClosedItsSendingSide) {
  TestServer server;
  Client client(server.port());
  client.send(get("/health") + get("/version"));
  client.close_writing();
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(client.closed_by_server());
  Client cut(server.port());
  cut.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{\"pro");
  cut.close_writing();
  EXPECT_EQ(cut.read_reply().status, 400);
}

TEST(Http, AbortsWhenTheClientGoes) {
  TestServer server({.shape = {.context = 100000}});
  server.model().step_time = 200us;
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      Client client(server.port());
      client.send(post("/v1/completions",
                       std::string(R"({"prompt":"x","max_tokens":90000,"ignore_eos":true,"stream":)") +
                           (stream ? "true}" : "false}")));
      wait_until([&] { return server.metric("vllm:num_requests_running") == 1; });
      if (stream) client.read_some();
      if (reset) {
        client.close();
      } else {
        client.close_writing();
      }
      wait_until([&] { return server.metric("vllm:num_requests_running") == 0; });
    }
  }
  EXPECT_EQ(server.metric("vllm:request_success_total"), 4);
  EXPECT_NE(server.ask(get("/metrics")).body.find("finished_reason=\"abort\"} 4"), std::string::npos);
  wait_until([&] { return server.model().opened() == server.model().closed(); });
}

TEST(Http, DropsAClientThatDoesNotReadItsStream) {
  TestServer server({.shape = {.context = 200000}, .http = {.max_unsent_bytes = 1 << 16}});
  Client client(server.port());
  client.send(post("/v1/completions",
                   R"({"prompt":"x","max_tokens":190000,"ignore_eos":true,"stream":true,"logprobs":20})"));
  wait_until([&] { return server.metric("vllm:request_success_total") == 1; });
  EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
}

TEST(Http, KeepsSilentStreamsAlive) {
  TestServer server({.http = {.stream_idle_s = 0.02}});
  server.model().hold(true);
  Client client(server.port());
  client.send(post("/v1/completions", R"({"prompt":"x","max_tokens":2,"stream":true})"));
  wait_until([&] { return server.model().step_waits(); });
  std::this_thread::sleep_for(100ms);
  server.model().hold(false);
  const Reply reply = client.read_reply();
  EXPECT_NE(reply.body.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_NE(reply.body.find("data: [DONE]"), std::string::npos);
}

TEST(Http, DrainsGracefully) {
  TestServer server;
  server.model().hold(true);
  Client busy(server.port()), idle(server.port()), next(server.port());
  idle.send(get("/health"));
  EXPECT_EQ(idle.read_reply().status, 200);
  busy.send(post("/v1/completions", kAsk));
  wait_until([&] { return server.model().step_waits(); });
  next.send("GET /health HTT");  // a request half sent is no reason to wait either
  std::this_thread::sleep_for(20ms);
  server.http().drain(60);
  EXPECT_TRUE(idle.closed_by_server());
  next.send("P/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(next.read_reply().status, 503);
  server.model().hold(false);
  const Reply reply = busy.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  server.drain_and_join(60);
  EXPECT_THROW(Client(server.port()), std::runtime_error);
}

TEST(Http, GivesUpWhenTheDrainTakesTooLong) {
  TestServer server({.shape = {.context = 1000000}});
  server.model().step_time = 100us;
  Client whole(server.port()), stream(server.port());
  const std::string body = R"("prompt":"x","max_tokens":900000,"ignore_eos":true)";
  whole.send(post("/v1/completions", "{" + body + "}"));
  stream.send(post("/v1/completions", "{" + body + ",\"stream\":true}"));
  wait_until([&] { return server.metric("vllm:num_requests_running") == 2; });
  server.drain_and_join(0.1);
  EXPECT_EQ(whole.read_reply().status, 503);
  const Reply cut = stream.read_reply();
  EXPECT_NE(cut.body.find("\"error\""), std::string::npos);
  EXPECT_NE(cut.body.find("data: [DONE]"), std::string::npos);
}

// A step that lasts longer than all patience: nothing comes from the engine any more.
TEST(Http, AStepThatDoesNotEndCutsNobodyShort) {
  TestServer server;
  server.model().hold(true);
  Client whole(server.port()), stream(server.port()), old(server.port());
  whole.send(post("/v1/completions", kAsk));
  const std::string body = R"({"prompt":"x","max_tokens":9,"stream":true})";
  stream.send(post("/v1/completions", body));
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  wait_until([&] { return server.model().step_waits(); });
  const Reply head = stream.read_reply(true);
  EXPECT_EQ(head.status, 200);
  server.http().drain(0);
  const Reply refused = whole.read_reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting down"), std::string::npos);
  std::string events;
  for (std::string more; !(more = stream.read_some()).empty();) events += more;
  EXPECT_NE(events.find("\"error\""), std::string::npos) << events;
  EXPECT_NE(events.find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos) << events;
  EXPECT_NE(old.read_reply().body.find("data: [DONE]"), std::string::npos);
  server.model().hold(false);
  server.drain_and_join(0);
}

TEST(Http, SaysWhyItCannotListen) {
  TestServer server;
  try {
    HttpServer second({.port = server.port()});
    ADD_FAILURE() << "bound twice";
  } catch (const Error& error) {
    EXPECT_NE(error.describe().find("127.0.0.1:" + std::to_string(server.port())), std::string::npos);
    EXPECT_NE(error.describe().find("in use"), std::string::npos);
  }
  EXPECT_THROW(HttpServer({.host = "no.such.host.invalid"}), Error);
  EXPECT_THROW(HttpServer({.unix_socket = "/no/such/folder/socket"}), Error);
  EXPECT_THROW(HttpServer({.unix_socket = SPARK_TEST_DATA "/golden/tiny-tokenizer.json"}), Error);
}

TEST(Http, ListensOnAUnixSocket) {
  const std::string path = "/tmp/spark-serve-test-" + std::to_string(::getpid());
  {
    const HttpServer server({.unix_socket = path});
    EXPECT_EQ(server.address(), "unix:" + path);
    EXPECT_THROW(HttpServer({.unix_socket = path}), Error);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace spark::engine
