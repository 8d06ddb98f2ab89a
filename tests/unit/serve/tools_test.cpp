// Tools through the whole server: what the prompt says, and what becomes of calls in the answer.
#include <gtest/gtest.h>

#include "api/response.h"
#include "api/sse.h"
#include "text/tool_text.h"
#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

constexpr const char* kCalls =
    "I look.\n\n<｜DSML｜ calls>\n"
    "<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">S\xC3\xA3o \"P\"</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>";
constexpr const char* kArguments = "{\"city\": \"S\xC3\xA3o \\\"P\\\"\", \"days\": [1, 2]}";

// Answers with this text, then the end of sequence, after a prompt of as many tokens as `prompt` says.
ToyModel::Script after_prompt(const std::shared_ptr<size_t>& prompt, const std::string& text) {
  std::vector<int32_t> tokens = test_tokenizer().encode(text, text::ControlTokens::kRecognised);
  tokens.push_back(1);
  return [prompt, tokens](std::span<const int32_t> history) {
    return *prompt == 0 || history.size() < *prompt ? -1 : tokens[(history.size() - *prompt) % tokens.size()];
  };
}

class ToolServer {
 public:
  explicit ToolServer(const std::string& answer) : server_(options(answer)) {}

  // The answer to a chat with two tools.
  Json ask(Json more, const std::string& question = "Rain?") {
    Json body = request(std::move(more), question);
    Json plain = body;
    for (const char* key : {"temperature", "stream", "stop", "stop_token_ids", "n"}) plain.erase(key);
    *prompt_ = server_.ask_json("/tokenize", plain)["count"].get<size_t>();
    if (!body.value("stream", false)) return server_.ask_json("/v1/chat/completions", body);
    return joined(server_.ask(post("/v1/chat/completions", body.dump())));
  }

  std::string prompt(Json more) {
    Json body = request(std::move(more), "Rain?");
    body.erase("temperature");
    const Json tokens = server_.ask_json("/tokenize", body)["tokens"];
    return server_.ask_json("/detokenize", {{"tokens", tokens}})["prompt"].get<std::string>();
  }

  TestServer& server() { return server_; }

 private:
  TestServer::Options options(const std::string& answer) {
    TestServer::Options options;
    options.shape.context = 2048;
    options.script = after_prompt(prompt_, answer);
    options.service.tool_text = text::ChatTemplateParts{"## Tools\n<｜DSML｜ calls> ", "\n\nEnd.\n"};
    return options;
  }

  static Json request(Json more, const std::string& question) {
    const auto tool = [](const char* name) {
      return Json{{"type", "function"},
                  {"function", {{"name", name}, {"parameters", {{"type", "object"}, {"x", nullptr}}}}}};
    };
    Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", question}}})},
                 {"temperature", 0},
                 {"chat_template_kwargs", {{"thinking", false}}},
                 {"tools", Json::array({tool("f"), tool("g")})}};
    if (more.is_object()) body.update(more);
    return body;
  }

  // A stream's events as one message, the way clients join them.
  static Json joined(const Reply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    Json message = {{"content", nullptr}, {"tool_calls", Json::array()}};
    Json choice = Json::object();
    api::SseReader().feed(reply.body, [&](const api::SseEvent& event) {
      if (event.data == api::kSseDone) return;
      const Json chunk = Json::parse(event.data);
      const Json& delta = chunk["choices"][0]["delta"];
      if (delta.contains("content") && !delta["content"].get<std::string>().empty())
        message["content"] =
            message.value("content", Json()).is_null()
                ? delta["content"].get<std::string>()
                : message["content"].get<std::string>() + delta["content"].get<std::string>();
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const auto index = call["index"].get<size_t>();
        if (index == message["tool_calls"].size()) {
          EXPECT_EQ(call["type"], "function");
          message["tool_calls"].push_back(
              {{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
          continue;
        }
        EXPECT_FALSE(call.contains("id"));
        Json& arguments = message["tool_calls"].at(index)["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
      choice["finish_reason"] = chunk["choices"][0]["finish_reason"];
    });
    choice["message"] = std::move(message);
    return {{"choices", Json::array({choice})}};
  }

  std::shared_ptr<size_t> prompt_ = std::make_shared<size_t>(0);
  TestServer server_;
};

void expect_both_calls(const Json& answer) {
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0]["function"]["name"], "f");
  EXPECT_EQ(calls[0]["function"]["arguments"], kArguments);
  EXPECT_EQ(calls[1]["function"]["name"], "g");
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST(Tools, CallsComeOutOfTheAnswerWholeAndStreamed) {
  ToolServer server(kCalls);
  expect_both_calls(server.ask({}));
  expect_both_calls(server.ask({{"stream", true}}));
  // A client that joins the stream as the project's own reader does.
  const api::ChatResponse whole = api::parse_chat_response(server.ask({}).dump());
  ASSERT_EQ(whole.choices.at(0).tool_calls.size(), 2U);
  EXPECT_EQ(whole.choices[0].tool_calls[1].index, 1);
  EXPECT_EQ(whole.choices[0].tool_calls[0].arguments, kArguments);
}

TEST(Tools, OneCallWhenManyAreNotWanted) {
  ToolServer server(kCalls);
  for (const bool stream : {false, true}) {
    const Json answer = server.ask({{"parallel_tool_calls", false}, {"stream", stream}});
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
    ASSERT_EQ(answer["choices"][0]["message"]["tool_calls"].size(), 1U);
  }
}

TEST(Tools, WithoutToolsTheMarkupIsText) {
  ToolServer server(kCalls);
  const Json answer = server.ask({{"tool_choice", "none"}});
  EXPECT_EQ(answer["choices"][0]["message"]["content"], kCalls);
  EXPECT_FALSE(answer["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(server.prompt({{"tool_choice", "none"}}).find("## Tools"), std::string::npos);
}

TEST(Tools, AnAnswerWithoutCallsIsAnAnswer) {
  ToolServer server("No need.");
  const Json answer = server.ask({});
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "No need.");
  EXPECT_FALSE(answer["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
}

TEST(Tools, ACutCallStaysCut) {
  ToolServer server(kCalls);
  const Json answer = server.ask({{"stop", Json::array({"o \"P"})}});
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["stop_reason"], "o \"P");
  EXPECT_EQ(choice["finish_reason"], "stop");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"S\xC3\xA3");
}

TEST(Tools, AStopTokenCutsACallToo) {
  ToolServer server(kCalls);
  const int32_t quote = test_tokenizer().encode("P", text::ControlTokens::kAsText).at(0);
  const Json answer = server.ask({{"stop_token_ids", Json::array({quote})}});
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["stop_reason"], quote);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(
      Json::accept(choice["message"]["tool_calls"].at(0)["function"]["arguments"].get<std::string>()));
}

TEST(Tools, ThePromptOpensARequiredCall) {
  ToolServer required("<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  const Json some = required.ask({{"tool_choice", "required"}});
  EXPECT_EQ(some["choices"][0]["message"]["content"], nullptr);
  EXPECT_EQ(some["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "g");
  EXPECT_TRUE(required.prompt({{"tool_choice", "required"}}).ends_with("\n\n<｜DSML｜ calls>\n"));

  const Json named = {{"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}};
  ToolServer given(
      "<｜DSML｜ parameter name=\"city\" string=\"true\">Rome</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
      "</｜DSML｜ calls>");
  for (const bool stream : {false, true}) {
    Json more = named;
    more["stream"] = stream;
    const Json answer = given.ask(more);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
    const Json& call = answer["choices"][0]["message"]["tool_calls"].at(0);
    EXPECT_EQ(call["function"]["name"], "f");
    EXPECT_EQ(call["function"]["arguments"], "{\"city\": \"Rome\"}");
  }
  EXPECT_TRUE(given.prompt(named).ends_with("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"));
}

TEST(Tools, ThePromptHasSchemasCallsAndResults) {
  ToolServer server("Dry.");
  const std::string prompt = server.prompt(
      {{"messages",
        Json::array({Json{{"role", "user"}, {"content", "Rain?"}},
                     Json{{"role", "assistant"},
                          {"content", nullptr},
                          {"tool_calls",
                           Json::array({Json{{"id", "1"},
                                             {"type", "function"},
                                             {"function", {{"name", "f"}, {"arguments", "{\"n\": 1}"}}}}})}},
                     Json{{"role", "tool"}, {"tool_call_id", "1"}, {"content", "none"}}})}});
  EXPECT_NE(
      prompt.find("{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"x\": null}}\n{\"name\": \"g\""),
      std::string::npos)
      << prompt;
  EXPECT_NE(prompt.find("<｜DSML｜ parameter name=\"n\" string=\"false\">1</｜DSML｜ parameter>"),
            std::string::npos);
  EXPECT_NE(prompt.find("<tool_result>none</tool_result>"), std::string::npos);
}

TEST(Tools, NeedTheCheckpointsToolText) {
  TestServer server;
  const Reply reply = server.ask(post("/v1/chat/completions",
                                      R"({"messages":[{"role":"user","content":"x"}],
                                          "tools":[{"type":"function","function":{"name":"f"}}]})"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("encoding/encoding.py"), std::string::npos) << reply.body;
}

}  // namespace
}  // namespace spark::engine
