// What a client sees while its prompt is read, and what its going away frees. Over real connections.
#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event.rfind("data: {", 0) == 0) events.push_back(Json::parse(event.substr(6)));
  }
  return events;
}

Json long_prompt(bool chat) {
  std::string text;
  for (int i = 0; i < 150; ++i) text += "q ";
  Json body = {{"max_tokens", 2}, {"ignore_eos", true}, {"stream", true}};
  if (chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
  } else {
    body["prompt"] = text;
  }
  return body;
}

TEST(Progress, EventsSayHowFarThePromptIs) {
  TestServer server;  // steps of 64 rows
  for (const bool chat : {false, true}) {
    const std::string path = chat ? "/v1/chat/completions" : "/v1/completions";
    Json body = long_prompt(chat);
    body["return_progress"] = true;
    const Reply reply = server.ask(post(path, body.dump()));
    ASSERT_EQ(reply.status, 200) << reply.body;
    int64_t processed = 0, total = 0, reports = 0;
    bool answering = false;
    for (const Json& event : events_of(reply.body)) {
      if (!event.contains("prompt_progress")) {
        const Json& choice = event.at("choices").at(0);
        answering = answering || !choice.at("finish_reason").is_null() || (!chat && choice.at("text") != "");
        continue;
      }
      EXPECT_FALSE(answering) << "progress after the answer has begun";
      const Json& progress = event["prompt_progress"];
      EXPECT_EQ(progress.at("processed").get<int64_t>(), processed + 64);
      EXPECT_EQ(progress.at("cache"), 0);
      processed = progress["processed"];
      total = progress.at("total");
      ++reports;
    }
    EXPECT_GE(reports, 2);
    EXPECT_LT(processed, total);
    EXPECT_GE(processed + 64, total);
    EXPECT_TRUE(answering);

    body.erase("return_progress");
    EXPECT_EQ(server.ask(post(path, body.dump())).body.find("prompt_progress"), std::string::npos);
  }
}

TEST(Progress, KeepAliveWhileThePromptIsRead) {
  TestServer server({.http = {.stream_idle_s = 0.05}});
  server.model().step_time = std::chrono::milliseconds(200);
  const Reply reply = server.ask(post("/v1/completions", long_prompt(false).dump()));
  EXPECT_NE(reply.body.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_NE(reply.body.find("data: [DONE]"), std::string::npos);
}

// A client that leaves while its prompt is read: its rows end with the step in progress, the next request
// gets the place.
TEST(Progress, WhoLeavesFreesItsPlaceBeforeTheNextChunk) {
  TestServer server({.shape = {.sequences = 1}});
  server.model().hold(true);
  Client gone(server.port());
  Json body = long_prompt(false);
  body["max_tokens"] = 100;
  gone.send(post("/v1/completions", body.dump()));
  wait_until([&] { return server.model().step_waits(); });
  gone.close();
  // The server has seen it when the abort is with the engine; steps before that are the client's own.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const int64_t before = server.model().steps();
  server.model().hold(false);
  const Json answer = server.ask_json("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 1);
  // One step that was held, one for the answer: none of the two chunks that were left.
  EXPECT_EQ(server.model().steps() - before, 2);
  EXPECT_EQ(server.model().opened(), server.model().closed());
}

TEST(Progress, FieldsAreChecked) {
  TestServer server;
  server.ask_json("/v1/completions", {{"prompt", "x"}, {"cache_salt", ""}}, 400);
  server.ask_json("/v1/completions", {{"prompt", "x"}, {"cache_salt", 3}}, 400);
  server.ask_json("/v1/completions", {{"prompt", "x"}, {"return_progress", "yes"}}, 400);
  server.ask_json("/v1/completions", {{"prompt", "x"}, {"cache_salt", "mine"}, {"return_progress", true}});
}

}  // namespace
}  // namespace spark::engine
