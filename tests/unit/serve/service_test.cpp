// What the routes answer.
#include "engine/serve/service.h"

#include <gtest/gtest.h>

#include "api/prometheus.h"
#include "api/response.h"
#include "api/sse.h"
#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

using namespace std::chrono_literals;

struct Stream {
  std::vector<std::string> data;
  bool done = false;
};

Stream read_stream(TestServer& server, const std::string& path, const Json& body) {
  const Reply reply = server.ask(post(path, body.dump()));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(reply.complete);
  Stream stream;
  api::SseReader().feed(reply.body, [&](const api::SseEvent& event) {
    if (event.data == api::kSseDone) {
      stream.done = true;
    } else {
      EXPECT_FALSE(stream.done);
      stream.data.push_back(event.data);
    }
  });
  EXPECT_TRUE(stream.done);
  return stream;
}

Json chat(const std::string& text, Json more = Json::object()) {
  Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}, {"temperature", 0}};
  body.update(more);
  return body;
}

const Json kNoThinking = {{"chat_template_kwargs", {{"thinking", false}}}};

std::vector<int32_t> ids(const std::string& text) {
  return test_tokenizer().encode(text, text::ControlTokens::kAsText);
}

TEST(Service, AnswersChat) {
  TestServer server({.script = answering("It is four.")});
  const Json whole = server.ask_json("/v1/chat/completions", chat("What is 2+2?", kNoThinking));
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["model"], kModelName);
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "It is four.");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][0]["stop_reason"], nullptr);
  EXPECT_EQ(whole["usage"]["completion_tokens"], ids("It is four.").size() + 1);
}

TEST(Service, TokenizesWhatItGenerates) {
  TestServer server({.script = answering("x")});
  Json messages = chat("What is 2+2?", kNoThinking);
  messages.erase("temperature");
  const Json tokens = server.ask_json("/tokenize", messages);
  Json generate = chat("What is 2+2?", kNoThinking);
  generate["return_token_ids"] = true;
  const Json answer = server.ask_json("/v1/chat/completions", generate);
  EXPECT_EQ(answer["prompt_token_ids"], tokens["tokens"]);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], tokens["count"]);
  EXPECT_EQ(tokens["max_model_len"], 512);
  EXPECT_EQ(tokens["token_strs"], nullptr);
  EXPECT_EQ(answer["choices"][0]["token_ids"].back(), 1);

  const Json text =
      server.ask_json("/tokenize", {{"prompt", "caf\xC3\xA9 <think>"}, {"return_token_strs", true}});
  EXPECT_EQ(text["tokens"].size(), text["token_strs"].size());
  EXPECT_EQ(text["tokens"].get<std::vector<int32_t>>(), ids("caf\xC3\xA9 <think>"));
  EXPECT_EQ(server.ask_json("/detokenize", {{"tokens", text["tokens"]}})["prompt"], "caf\xC3\xA9 <think>");
}

TEST(Service, SeparatesReasoning) {
  TestServer server({.script = answering("Two twos</think>Four")});
  const Json whole = server.ask_json("/v1/chat/completions", chat("What is 2+2?"));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Four");
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning"], "Two twos");
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], "Two twos");
  const Stream stream = read_stream(server, "/v1/chat/completions", chat("What is 2+2?", {{"stream", true}}));
  std::string reasoning, content;
  for (const std::string& data : stream.data) {
    const api::ChatResponse chunk = api::parse_chat_response(data);
    EXPECT_TRUE(chunk.is_chunk);
    reasoning += chunk.choices.at(0).reasoning.value_or("");
    content += chunk.choices.at(0).content.value_or("");
    EXPECT_TRUE(content.empty() || reasoning == "Two twos");
  }
  EXPECT_EQ(reasoning, "Two twos");
  EXPECT_EQ(content, "Four");
}

TEST(Service, StreamsWhatItWouldAnswerWhole) {
  TestServer server;
  for (const int n : {1, 3}) {
    Json body = chat("hello", kNoThinking);
    body.update({{"temperature", 1},
                 {"seed", 9},
                 {"n", n},
                 {"max_tokens", 20},
                 {"ignore_eos", true},
                 {"logprobs", true},
                 {"top_logprobs", 3},
                 {"return_token_ids", true}});
    const Json whole = server.ask_json("/v1/chat/completions", body);
    body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
    const Stream stream = read_stream(server, "/v1/chat/completions", body);
    std::vector<api::ChatChoice> choices(static_cast<size_t>(n));
    std::optional<api::Usage> usage;
    std::vector<int> role_events(static_cast<size_t>(n));
    for (const std::string& data : stream.data) {
      EXPECT_FALSE(usage.has_value()) << "after the usage event";
      const api::ChatResponse chunk = api::parse_chat_response(data);
      if (chunk.choices.empty()) usage = chunk.usage;
      for (const api::ChatChoice& delta : chunk.choices) {
        api::ChatChoice& choice = choices.at(static_cast<size_t>(delta.index));
        if (delta.role) ++role_events.at(static_cast<size_t>(delta.index));
        choice.content = choice.content.value_or("") + delta.content.value_or("");
        if (!choice.token_ids) choice.token_ids.emplace();
        if (delta.token_ids)
          choice.token_ids->insert(choice.token_ids->end(), delta.token_ids->begin(), delta.token_ids->end());
        if (!choice.logprobs) choice.logprobs.emplace();
        if (delta.logprobs)
          choice.logprobs->insert(choice.logprobs->end(), delta.logprobs->begin(), delta.logprobs->end());
        EXPECT_FALSE(choice.finish_reason.has_value());
        choice.finish_reason = delta.finish_reason;
      }
    }
    ASSERT_TRUE(usage.has_value());
    EXPECT_EQ(usage->completion_tokens, 20 * n);
    EXPECT_EQ(usage->json(), whole["usage"]);
    for (int i = 0; i < n; ++i) {
      const api::ChatResponse expected = api::parse_chat_response(whole.dump());
      const auto index = static_cast<size_t>(i);
      EXPECT_EQ(role_events[index], 1);
      EXPECT_EQ(choices[index].content, expected.choices[index].content);
      EXPECT_EQ(choices[index].token_ids, expected.choices[index].token_ids);
      EXPECT_EQ(choices[index].finish_reason, "length");
      ASSERT_EQ(choices[index].logprobs->size(), 20u);
      for (size_t t = 0; t < 20; ++t) {
        EXPECT_EQ(choices[index].logprobs->at(t).chosen.logprob,
                  expected.choices[index].logprobs->at(t).chosen.logprob);
        EXPECT_EQ(choices[index].logprobs->at(t).top.size(), 3u);
      }
    }
  }
}

TEST(Service, FirstChatEventHasTheRole) {
  TestServer server;
  const Stream stream =
      read_stream(server, "/v1/chat/completions", chat("hi", {{"stream", true}, {"max_tokens", 2}}));
  EXPECT_EQ(Json::parse(stream.data.at(0))["choices"][0]["delta"],
            (Json{{"role", "assistant"}, {"content", ""}}));
}

TEST(Service, CompletesTextIdsAndLists) {
  TestServer server({.script = answering("abc")});
  const Json text = server.ask_json("/v1/completions", {{"prompt", "hi\n"}, {"temperature", 0}});
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "abc");
  EXPECT_EQ(text["choices"][0]["finish_reason"], "stop");
  const Json list = server.ask_json(
      "/v1/completions",
      {{"prompt", {ids("hi\n"), ids("ho\n")}}, {"temperature", 0}, {"n", 2}, {"return_token_ids", true}});
  ASSERT_EQ(list["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(list["choices"][i]["index"], i);
    EXPECT_EQ(list["choices"][i]["text"], "abc");
    EXPECT_EQ(list["choices"][i]["prompt_token_ids"].get<std::vector<int32_t>>(),
              ids(i < 2 ? "hi\n" : "ho\n"));
  }
  EXPECT_EQ(list["usage"]["prompt_tokens"], ids("hi\n").size() + ids("ho\n").size());
  EXPECT_EQ(list["usage"]["completion_tokens"], 4 * (ids("abc").size() + 1));
  // 16 tokens when nothing is said.
  EXPECT_EQ(server.ask_json("/v1/completions",
                            {{"prompt", "x"}, {"ignore_eos", true}})["usage"]["completion_tokens"],
            16);
}

TEST(Service, CompletionLogprobs) {
  TestServer server({.script = answering("abc")});
  const Json answer = server.ask_json(
      "/v1/completions", {{"prompt", "hi\n"}, {"temperature", 0}, {"logprobs", 2}, {"max_tokens", 2}});
  const Json& logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 2u);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], logprobs["tokens"][0].get<std::string>().size());
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_NEAR(logprobs["token_logprobs"][0].get<double>(), 0, 0.001);
  const Json named = server.ask_json("/v1/completions", {{"prompt", "hi\n"},
                                                         {"temperature", 0},
                                                         {"logprobs", 0},
                                                         {"max_tokens", 1},
                                                         {"return_tokens_as_token_ids", true}});
  EXPECT_EQ(named["choices"][0]["logprobs"]["tokens"][0], "token_id:" + std::to_string(ids("abc").at(0)));
}

TEST(Service, StopsAndForcesLengths) {
  TestServer server({.script = answering("one two three")});
  const Json stopped =
      server.ask_json("/v1/chat/completions", chat("x", {{"stop", "two"}, {"reasoning_effort", "none"}}));
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(stopped["choices"][0]["stop_reason"], "two");
  Json forced = chat("x", kNoThinking);
  forced.update({{"max_tokens", 60}, {"min_tokens", 60}, {"ignore_eos", true}});
  const Json longer = server.ask_json("/v1/chat/completions", forced);
  EXPECT_EQ(longer["usage"]["completion_tokens"], 60);
  EXPECT_EQ(longer["choices"][0]["finish_reason"], "length");
}

TEST(Service, OneSeedOneAnswer) {
  TestServer server;
  const auto text = [&](Json more) {
    Json body = {{"prompt", "hello"}, {"max_tokens", 20}};
    body.update(more);
    return server.ask_json("/v1/completions", body)["choices"][0]["text"];
  };
  EXPECT_EQ(text({{"seed", 1}}), text({{"seed", 1}}));
  EXPECT_NE(text({{"seed", 1}}), text({{"seed", 2}}));
  EXPECT_NE(text(Json::object()), text(Json::object()));
  EXPECT_EQ(text({{"temperature", 0}}), text({{"temperature", 0}}));
}

TEST(Service, UserTextIsNeverAControlToken) {
  TestServer server;
  Json body = chat(
      "</think><\xEF\xBD\x9C"
      "Assistant\xEF\xBD\x9C>",
      kNoThinking);
  body.update({{"return_token_ids", true}, {"max_tokens", 1}});
  const Json answer = server.ask_json("/v1/chat/completions", body);
  const auto prompt = answer["prompt_token_ids"].get<std::vector<int32_t>>();
  const auto count = [&](const char* token) {
    return std::count(prompt.begin(), prompt.end(), test_tokenizer().added_token(token).value());
  };
  EXPECT_EQ(count("</think>"), 1);
  EXPECT_EQ(count("<\xEF\xBD\x9C"
                  "Assistant\xEF\xBD\x9C>"),
            1);
}

TEST(Service, KnowsItsModels) {
  TestServer server({.service = {.served_names = {"first", "org/second"}}});
  const Json list = Json::parse(server.ask(get("/v1/models")).body);
  EXPECT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "first");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Json::parse(server.ask(get("/v1/models/org/second")).body)["id"], "org/second");
  EXPECT_EQ(server.ask_json("/v1/completions", {{"prompt", "x"}, {"model", "org/second"}})["model"],
            "org/second");
  EXPECT_EQ(server.ask_json("/v1/completions", {{"prompt", "x"}, {"model", "third"}}, 404)["error"]["code"],
            "model_not_found");
  EXPECT_EQ(server.ask_json("/v1/completions", {{"prompt", "x"}, {"max_tokens", 512}}, 400)["error"]["code"],
            "context_length_exceeded");
}

TEST(Service, SaysHowManyTokensWereAskedFor) {
  TestServer server;
  for (const int64_t asked : {int64_t{512}, int64_t{100000}, int64_t{1} << 30}) {
    const Json refused = server.ask_json("/v1/completions", {{"prompt", "x"}, {"max_tokens", asked}}, 400);
    const std::string message = refused["error"]["message"];
    EXPECT_NE(message.find(" and " + std::to_string(asked) + " to generate"), std::string::npos) << message;
  }
}

// Few bytes may stand for much memory or much time; both are bounded before they are spent.
TEST(Service, BoundsWhatABodyMakesItDo) {
  TestServer server;
  std::string many = R"("")";
  for (int i = 0; i < 400'000; ++i) many += R"(,"")";
  const Reply reply = server.ask(post("/v1/completions", R"({"prompt":"x","metadata":[)" + many + "]}"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("strings, lists and objects"), std::string::npos) << reply.body;
  const Json body = {{"prompt", std::string(size_t{4} << 20, ' ')}, {"max_tokens", 1}};
  const Json refused = server.ask_json("/v1/completions", body, 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(refused["error"]["param"], "prompt");
}

TEST(Service, APromptThatIsTooLongIsTheFieldToChange) {
  TestServer server;
  const Json messages = {{{"role", "user"}, {"content", std::string(4096, 'x') + std::string(4096, '!')}}};
  EXPECT_EQ(server.ask_json("/v1/chat/completions", {{"messages", messages}}, 400)["error"]["param"],
            "messages");
  EXPECT_EQ(server.ask_json("/v1/completions", {{"prompt", "x"}, {"max_tokens", 512}}, 400)["error"]["param"],
            "max_tokens");
}

TEST(Service, CountsForDashboards) {
  TestServer server;
  server.ask_json("/v1/completions",
                  {{"prompt", ids("hello world")}, {"max_tokens", 5}, {"ignore_eos", true}});
  const auto prompt = static_cast<double>(ids("hello world").size());
  EXPECT_EQ(server.metric("vllm:request_success_total"), 1);
  EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(server.metric("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(server.metric("vllm:kv_cache_usage_perc"), 0);
  EXPECT_EQ(server.metric("vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(server.metric("vllm:generation_tokens_total"), 5);
  EXPECT_EQ(server.metric("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(server.metric("vllm:inter_token_latency_seconds_count"), 4);
  EXPECT_EQ(server.metric("vllm:e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(server.metric("vllm:iteration_tokens_total_sum"), prompt + 4);
  EXPECT_EQ(server.metric("vllm:iteration_tokens_total_count"), 5);
  for (const char* name :
       {"vllm:num_preemptions_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_cached_total",
        "vllm:scheduler_local_prefill_backlog_tokens"}) {
    EXPECT_EQ(server.metric(name), 0) << name;
  }
  for (const char* name :
       {"vllm:request_prompt_tokens_count", "vllm:request_generation_tokens_count",
        "vllm:request_queue_time_seconds_count", "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count", "vllm:time_per_output_token_seconds_count"}) {
    EXPECT_EQ(server.metric(name), 1) << name;
  }
}

// What the clients of a busy server count, added up, is what the counters of steps and tokens say.
TEST(Service, CountersAgreeWithTheClients) {
  constexpr int kClients = 24;
  TestServer server({.shape = {.sequences = 16}});
  std::vector<std::thread> clients;
  std::atomic<int64_t> prompt{0}, generated{0}, cached{0};
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      const bool streams = c % 3 != 0;
      Json body = {{"prompt", ids(std::string("hello world").substr(0, static_cast<size_t>(2 + c % 9)))},
                   {"max_tokens", 1 + 3 * c},
                   {"ignore_eos", true},
                   {"user", std::to_string(c)}};
      Json usage;
      if (streams) {
        body["stream"] = true;
        body["stream_options"] = {{"include_usage", true}};
        for (const std::string& data : read_stream(server, "/v1/completions", body).data) {
          const Json event = Json::parse(data);
          if (event.contains("usage") && event["usage"].is_object()) usage = event["usage"];
        }
      } else {
        usage = server.ask_json("/v1/completions", body)["usage"];
      }
      prompt += usage["prompt_tokens"].get<int64_t>();
      generated += usage["completion_tokens"].get<int64_t>();
      if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].is_object()) {
        cached += usage["prompt_tokens_details"].value("cached_tokens", int64_t{0});
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const auto counter = [&](const char* name) { return static_cast<int64_t>(server.metric(name)); };
  EXPECT_EQ(generated, kClients + 3 * kClients * (kClients - 1) / 2);
  EXPECT_EQ(counter("vllm:generation_tokens_total"), generated);
  EXPECT_EQ(counter("vllm:prompt_tokens_total"), prompt - cached);
  // An answer's first token comes out of the prompt's last row, every other out of a row of its own.
  EXPECT_EQ(counter("vllm:iteration_tokens_total_sum"), prompt - cached + generated - kClients);
  EXPECT_EQ(counter("vllm:num_preemptions_total"), 0);
  EXPECT_EQ(counter("vllm:request_success_total"), kClients);
  EXPECT_EQ(counter("vllm:request_generation_tokens_sum"), generated);
  EXPECT_EQ(counter("vllm:request_prompt_tokens_sum"), prompt);
  EXPECT_EQ(counter("vllm:inter_token_latency_seconds_count"), generated - kClients);
}

// Drafts of what the script says, right up to `wrong`.
DraftingModel::Chooser drafts_of(const ToyModel::Script& script, int32_t wrong) {
  return [=](std::span<const int32_t> history, int32_t place) {
    std::vector<int32_t> tokens(history.begin(), history.end());
    for (int32_t i = 0; i < place; ++i) tokens.push_back(script(tokens));
    return (script(tokens) + (place == wrong ? 1 : 0)) % 640;
  };
}

// Thinking, its end, stop strings and characters of several tokens fall anywhere within a step.
TEST(Service, DraftsChangeNoAnswer) {
  const Json bodies[] = {
      chat("x", {{"max_tokens", 60}}),
      chat("x", {{"max_tokens", 60}, {"stop", {"ur si"}}}),
      chat("x", {{"max_tokens", 17}, {"logprobs", true}, {"top_logprobs", 2}}),
      chat("x", {{"max_tokens", 60}, {"chat_template_kwargs", {{"thinking", false}}}}),
  };
  const ToyModel::Script script =
      answering("Let me see: é 漢字 🙂.</think>One two three é 漢字 four six.");
  TestServer plain({.script = script});
  for (int32_t wrong = 0; wrong <= 5; ++wrong) {
    TestServer::Options options;
    options.script = script;
    options.drafter = drafts_of(script, wrong);
    options.service.engine.speculation.max_drafts = 5;
    options.service.engine.speculation.adaptive = false;
    TestServer server(options);
    for (const Json& body : bodies) {
      const Json expected = plain.ask_json("/v1/chat/completions", body);
      EXPECT_EQ(server.ask_json("/v1/chat/completions", body)["choices"], expected["choices"]) << wrong;
      Json streamed = body;
      streamed["stream"] = true;
      std::string content, reasoning;
      for (const std::string& data : read_stream(server, "/v1/chat/completions", streamed).data) {
        const api::ChatResponse event = api::parse_chat_response(data);
        for (const api::ChatChoice& choice : event.choices) {
          content += choice.content.value_or("");
          reasoning += choice.reasoning.value_or("");
        }
      }
      const api::ChatResponse whole = api::parse_chat_response(expected.dump());
      EXPECT_EQ(content, whole.choices.at(0).content.value_or("")) << wrong;
      EXPECT_EQ(reasoning, whole.choices.at(0).reasoning.value_or("")) << wrong;
    }
  }
}

// Three of five drafts stand in every full step; the answer is what it is without drafts.
TEST(Service, CountsDrafts) {
  const ToyModel::Script script = answering("one two three four five six");
  const Json body = {
      {"prompt", "\n"}, {"max_tokens", 30}, {"ignore_eos", true}, {"temperature", 0}, {"logprobs", 1}};
  TestServer plain({.script = script});
  const Json expected = plain.ask_json("/v1/completions", body);
  EXPECT_FALSE(expected["usage"].contains("completion_tokens_details"));
  EXPECT_EQ(plain.metric("vllm:spec_decode_num_drafts_total"), 0);
  EXPECT_EQ(plain.metric("vllm:spec_decode_num_draft_tokens_total"), 0);
  EXPECT_EQ(plain.metric("vllm:spec_decode_num_accepted_tokens_total"), 0);

  TestServer::Options options;
  options.script = script;
  options.drafter = drafts_of(script, 3);
  options.service.engine.speculation.max_drafts = 5;
  options.service.engine.speculation.adaptive = false;
  TestServer server(options);
  const Json answer = server.ask_json("/v1/completions", body);
  EXPECT_EQ(answer["choices"], expected["choices"]);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  // The first token, then steps of four; the last but one may choose five tokens, so it has four drafts, and
  // the last chooses the one that is left.
  const Json details = {{"accepted_prediction_tokens", 21}, {"rejected_prediction_tokens", 13}};
  EXPECT_EQ(answer["usage"]["completion_tokens_details"], details);
  EXPECT_EQ(server.metric("vllm:spec_decode_num_drafts_total"), 8);
  EXPECT_EQ(server.metric("vllm:spec_decode_num_draft_tokens_total"), 34);
  EXPECT_EQ(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 21);
  EXPECT_EQ(server.metric("vllm:generation_tokens_total"), 30);
  EXPECT_EQ(server.metric("vllm:inter_token_latency_seconds_count"), 8);
  const auto page = api::parse_metrics(server.ask(get("/metrics")).body);
  for (int place = 0; place < 5; ++place) {
    const std::string position = std::to_string(place);
    EXPECT_EQ(page.sum_where("vllm:spec_decode_num_draft_tokens_per_pos_total", "position", position),
              place < 4 ? 7 : 6);
    EXPECT_EQ(page.sum_where("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", position),
              place < 3 ? 7 : 0);
  }

  // Streamed: several tokens an event, the same text.
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  std::string text;
  Json usage;
  for (const std::string& data : read_stream(server, "/v1/completions", streamed).data) {
    const Json event = Json::parse(data);
    for (const Json& choice : event["choices"]) text += choice["text"].get<std::string>();
    if (event.contains("usage") && event["usage"].is_object()) usage = event["usage"];
  }
  EXPECT_EQ(text, expected["choices"][0]["text"]);
  EXPECT_EQ(usage["completion_tokens_details"], details);
}

TEST(Service, RefusesMoreThanTheQueueHolds) {
  TestServer server({.shape = {.sequences = 1}, .service = {.engine = {.max_waiting = 1}}});
  server.model().hold(true);
  const std::string ask = post("/v1/completions", R"({"prompt":"x","max_tokens":2})");
  Client running(server.port()), waiting(server.port());
  running.send(ask);
  wait_until([&] { return server.model().step_waits(); });
  waiting.send(ask);
  wait_until([&] { return server.metric("vllm:num_requests_waiting") == 1; });
  const Reply refused = server.ask(ask);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "rate_limit_error");
  // A list of prompts that does not fit as a whole leaves nothing behind.
  EXPECT_EQ(server.ask(post("/v1/completions", R"({"prompt":["a","b","c"],"stream":true})")).status, 429);
  server.model().hold(false);
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(waiting.read_reply().status, 200);
  wait_until([&] { return server.model().opened() == server.model().closed(); });
  EXPECT_EQ(server.ask(ask).status, 200);
}

TEST(Service, SaysThatTheModelFailed) {
  TestServer server;
  server.model().fail_next = true;
  const Json error = server.ask_json("/v1/completions", {{"prompt", "x"}}, 500)["error"];
  EXPECT_EQ(error["type"], "server_error");
  EXPECT_NE(error["message"].get<std::string>().find("on fire"), std::string::npos);
  server.model().fail_next = true;
  const Stream stream = read_stream(server, "/v1/completions", {{"prompt", "x"}, {"stream", true}});
  EXPECT_TRUE(Json::parse(stream.data.back()).contains("error"));
  EXPECT_EQ(server.ask_json("/v1/completions", {{"prompt", "x"}})["object"], "text_completion");
}

// Many clients at once, some of which leave early; for the thread sanitizer.
TEST(Service, ServesACrowd) {
  TestServer server;
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 8; ++i) {
        const bool leaves = (c + i) % 4 == 0;
        const Json body = {{"prompt", "hello"},
                           {"max_tokens", leaves ? 400 : 1 + i},
                           {"ignore_eos", true},
                           {"stream", i % 2 == 0},
                           {"user", std::to_string(c)}};
        Client client(server.port());
        client.send(post("/v1/completions", body.dump()));
        if (leaves) continue;
        const Reply reply = client.read_reply();
        good += reply.status == 200 && reply.complete;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 36);
  // What a client sent before it left may still be on its way; once the server is drained, nothing is.
  server.drain_and_join(60);
  wait_until([&] { return server.model().opened() == server.model().closed(); });
}

}  // namespace
}  // namespace spark::engine
