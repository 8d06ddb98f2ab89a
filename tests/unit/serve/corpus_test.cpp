// The corpus of requests that must be refused: tests/data/serve/*.test, see README.md there.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <sstream>

#include "common/file.h"
#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

struct Case {
  std::string name;
  std::string bytes;
  std::string then;
  std::string expect;
};

TestServer::Options corpus_options() {
  return {.shape = {.context = 512},
          .http = {.max_header_bytes = 16 << 10,
                   .max_body_bytes = 64 << 10,
                   .header_timeout_s = 0.05,
                   .body_timeout_s = 0.05}};
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char kind = text[++i];
    if (kind == 'x') {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else if (kind == '{') {
      const size_t star = text.find('*', i);
      size_t end = star + 1;
      for (int depth = 0; depth > 0 || text[end] != '}'; ++end) {
        if (text[end] == '\\' && text[end + 1] == '{') ++depth;
        if (text[end] == '}') --depth;
      }
      const std::string piece = unescaped(text.substr(star + 1, end - star - 1));
      for (int n = std::stoi(std::string(text.substr(i + 1, star - i - 1))); n > 0; --n) out += piece;
      i = end;
    } else {
      out += kind == 'r' ? '\r' : kind == 'n' ? '\n' : kind == 't' ? '\t' : kind;
    }
  }
  return out;
}

std::vector<Case> read_cases(const std::string& path) {
  std::vector<Case> cases;
  std::istringstream lines(read_file(path));
  std::string body, target;
  bool is_post = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("case ")) {
      cases.push_back({line.substr(5), "", "", ""});
      body.clear();
    } else if (line.starts_with("post ")) {
      is_post = true;
      target = line.substr(5);
    } else if (line == "raw") {
      is_post = false;
    } else if (line.starts_with("then ")) {
      cases.back().then = line.substr(5);
    } else if (line.starts_with("expect ")) {
      cases.back().expect = line.substr(7);
      cases.back().bytes = is_post ? post(target, body) : body;
    } else if (!line.starts_with("#") && !line.empty()) {
      body += unescaped(line);
    }
  }
  return cases;
}

void check_error_object(const Reply& reply, const std::string& param) {
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  const Json body = Json::parse(reply.body);
  const Json& error = body.at("error");
  EXPECT_FALSE(error.at("message").get<std::string>().empty());
  EXPECT_LT(reply.body.size(), 8192u);
  EXPECT_FALSE(error.at("type").get<std::string>().empty());
  EXPECT_TRUE(error.contains("code"));
  if (param == "*") return;
  EXPECT_EQ(error.at("param"), param.empty() ? Json(nullptr) : Json(param)) << error.at("message");
}

void check(TestServer& server, const Case& one) {
  SCOPED_TRACE(one.name);
  Client client(server.port());
  client.send(one.bytes);
  if (one.then == "close-write") client.close_writing();
  const Reply reply = client.read_reply();
  if (one.expect == "closed") {
    EXPECT_EQ(reply.status, 0) << reply.body;
    return;
  }
  std::istringstream expectation(one.expect);
  int status = 0;
  std::string param;
  expectation >> status >> param;
  EXPECT_EQ(reply.status, status) << reply.body;
  EXPECT_TRUE(reply.complete);
  if (reply.complete && reply.status >= 400) check_error_object(reply, param);
}

TEST(Corpus, EveryBadRequestIsRefusedAndTheServerServesOn) {
  TestServer server(corpus_options());
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SPARK_TEST_DATA "/serve")) {
    if (entry.path().extension() != ".test") continue;
    SCOPED_TRACE(entry.path().filename().string());
    for (const Case& one : read_cases(entry.path())) {
      check(server, one);
      ASSERT_EQ(server.ask(post("/v1/completions", R"({"prompt":"hi","max_tokens":2})")).status, 200)
          << one.name;
      ++count;
    }
  }
  EXPECT_GE(count, 200u);
  std::printf("[          ] %zu bad requests\n", count);
}

// Bytes of good requests changed at random: an answer or a closed connection, and the server serves on.
TEST(Corpus, SurvivesMutatedRequests) {
  TestServer server(corpus_options());
  const std::vector<std::string> seeds = {
      post(
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true,"stop":["a"],"n":2})"),
      post("/v1/completions",
           R"({"prompt":[[1,2],[3]],"max_tokens":3,"logprobs":2,"temperature":0.5,"seed":4})"),
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: "
      "chunked\r\n\r\n8\r\n{\"prompt\r\n6\r\n\":\"x\"}\r\n0\r\n\r\n",
      get("/metrics", "Connection: keep-alive\r\nAccept: */*\r\n"),
  };
  std::mt19937 random(20260101);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < 400; ++round) {
    std::string bytes = seeds[below(seeds.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + below(8));
          break;
        case 2:
          bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(8)));
          break;
        default:
          bytes.insert(at, 1, "{}[]\",:\r\n \\0"[below(12)]);
          break;
      }
    }
    Client client(server.port());
    client.send(bytes);
    client.close_writing();
    for (Reply reply = client.read_reply(); reply.status != 0; reply = client.read_reply()) {
      EXPECT_GE(reply.status, 100);
      EXPECT_LT(reply.status, 600);
      EXPECT_NE(reply.status, 500) << bytes << "\n" << reply.body;
    }
  }
  EXPECT_EQ(server.ask(post("/v1/completions", R"({"prompt":"hi","max_tokens":2})")).status, 200);
  wait_until([&] { return server.model().opened() == server.model().closed(); });
}

}  // namespace
}  // namespace spark::engine
