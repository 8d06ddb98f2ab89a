#include "api/request.h"

#include <gtest/gtest.h>

namespace spark::api {
namespace {

constexpr const char* kHi = R"("messages":[{"role":"user","content":"hi"}])";

std::string chat(const std::string& more) {
  return std::string("{") + kHi + (more.empty() ? "" : ",") + more + "}";
}
std::string completion(const std::string& more) {
  return R"({"prompt":"hi",)" + more + "}";
}

ErrorObject refusal(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.object().status, 400);
    EXPECT_EQ(error.object().type, "invalid_request_error");
    return error.object();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

ErrorObject refused_chat(const std::string& body) {
  SCOPED_TRACE(body.substr(0, 200));
  return refusal([&] { parse_chat_request(body); });
}
ErrorObject refused_completion(const std::string& body) {
  SCOPED_TRACE(body.substr(0, 200));
  return refusal([&] { parse_completion_request(body); });
}

TEST(ChatRequest, ReadsEveryField) {
  const ChatRequest request = parse_chat_request(chat(
      R"("model":"m","temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"seed":-7,"max_completion_tokens":9,
         "min_tokens":2,"ignore_eos":true,"stop":["a","b"],"stop_token_ids":[5,6],"include_stop_str_in_output":true,
         "n":3,"logprobs":true,"top_logprobs":20,"stream":true,
         "stream_options":{"include_usage":true,"continuous_usage_stats":null},"user":"u","priority":-1,
         "return_token_ids":true,"return_tokens_as_token_ids":true,"skip_special_tokens":false,
         "chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":30},
         "metadata":{"a":[1]},"tools":[],"tool_choice":"none","logit_bias":{},"frequency_penalty":0.0,
         "repetition_penalty":1,"response_format":{"type":"text"},"best_of":3,"echo":false,"stop_reason":null)"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.messages.at(0).content, std::vector<std::string>{"hi"});
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.seed, -7);
  EXPECT_EQ(request.sampling.max_tokens, 9);
  EXPECT_EQ(request.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(request.sampling.top_logprobs, 20);
  EXPECT_TRUE(request.delivery.include_usage);
  EXPECT_FALSE(request.delivery.continuous_usage_stats);
  EXPECT_EQ(request.delivery.user, "u");
  EXPECT_EQ(request.thinking, false);
  EXPECT_EQ(request.reasoning_effort, "30");
}

TEST(ChatRequest, WhatTheClientWritesTheServerReads) {
  ChatRequest request;
  request.model = "m";
  request.messages = {
      {"system", {"be brief"}, ""}, {"user", {"one", "two"}, ""}, {"assistant", {"so"}, "because"}};
  request.sampling.temperature = 0.25;
  request.sampling.seed = 42;
  request.sampling.max_tokens = 256;
  request.sampling.min_tokens = 256;
  request.sampling.ignore_eos = true;
  request.sampling.top_logprobs = 0;
  request.delivery.stream = true;
  request.delivery.include_usage = true;
  request.thinking = false;
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  const std::string body = request.json().dump();
  const ChatRequest back = parse_chat_request(body);
  EXPECT_EQ(back.json().dump(), body);
  EXPECT_EQ(back.messages.at(2).reasoning, "because");
  EXPECT_EQ(back.messages.at(1).content.size(), 2u);
  EXPECT_EQ(back.sampling.top_logprobs, 0);
}

TEST(ChatRequest, NamesTheFieldAtFault) {
  EXPECT_EQ(refused_chat(chat(R"("temperature":"warm")")).param, "temperature");
  EXPECT_EQ(refused_chat(chat(R"("temperature":-1)")).param, "temperature");
  EXPECT_EQ(refused_chat(chat(R"("top_p":0)")).param, "top_p");
  // One fault for one value.
  EXPECT_EQ(refused_chat(chat(R"("top_p":1.9)")).message.find("above 0 and at most 1"), std::string::npos);
  EXPECT_EQ(refused_chat(chat(R"("max_tokens":0)")).param, "max_tokens");
  EXPECT_EQ(refused_chat(chat(R"("max_tokens":-5)")).param, "max_tokens");
  EXPECT_EQ(refused_chat(chat(R"("max_tokens":1.5)")).param, "max_tokens");
  EXPECT_EQ(refused_chat(chat(R"("max_tokens":18446744073709551615)")).param, "max_tokens");
  EXPECT_EQ(refused_chat(chat(R"("min_tokens":9,"max_tokens":8)")).param, "min_tokens");
  EXPECT_EQ(refused_chat(chat(R"("top_logprobs":21,"logprobs":true)")).param, "top_logprobs");
  EXPECT_EQ(refused_chat(chat(R"("top_logprobs":2)")).param, "top_logprobs");
  EXPECT_EQ(refused_chat(chat(R"("stop":["x",7])")).param, "stop[1]");
  EXPECT_EQ(refused_chat(chat(R"("stop":"")")).param, "stop");
  EXPECT_EQ(refused_chat(chat(R"("stop_token_ids":[1,-1])")).param, "stop_token_ids[1]");
  EXPECT_EQ(refused_chat(chat(R"("stream_options":{"include_usage":true})")).param, "stream_options");
  EXPECT_EQ(refused_chat(chat(R"("stream":true,"stream_options":{"usage":true})")).param,
            "stream_options.usage");
  EXPECT_EQ(refused_chat(chat(R"("n":0)")).param, "n");
  EXPECT_EQ(refused_chat(chat(R"("seed":"x")")).param, "seed");
  EXPECT_EQ(refused_chat(R"({"messages":[]})").param, "messages");
  EXPECT_EQ(refused_chat(R"({"messages":"hi"})").param, "messages");
  EXPECT_EQ(refused_chat(R"({})").param, "messages");
  EXPECT_EQ(refused_chat(R"({"messages":[7]})").param, "messages[0]");
  EXPECT_EQ(refused_chat(R"({"messages":[{"role":"user"}]})").param, "messages[0].content");
  EXPECT_EQ(refused_chat(R"({"messages":[{"role":"king","content":""}]})").param, "messages[0].role");
  EXPECT_EQ(refused_chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})").param,
            "messages[0].content[0].type");
  EXPECT_EQ(refused_chat(chat(R"("chat_template_kwargs":{"thinking":true,"enable_thinking":false})")).param,
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(refused_chat(chat(R"("reasoning_effort":"extreme")")).param, "reasoning_effort");
  EXPECT_EQ(refused_chat(chat(R"("reasoning_effort":101)")).param, "reasoning_effort");
}

TEST(ChatRequest, RefusesWhatWouldChangeTheAnswer) {
  for (const char* field :
       {R"("functions":[{"name":"f"}])", R"("tool_choice":"required")", R"("logit_bias":{"5":1})",
        R"("frequency_penalty":0.5)", R"("presence_penalty":-1)", R"("repetition_penalty":1.1)",
        R"("prompt_logprobs":1)", R"("echo":true)", R"("response_format":{"type":"json_object"})",
        R"("guided_json":{})", R"("use_beam_search":true)", R"("best_of":2)", R"("bad_words":["x"])",
        R"("chat_template":"x")", R"("modalities":["text","audio"])"}) {
    const ErrorObject error = refused_chat(chat(field));
    ASSERT_TRUE(error.param.has_value());
    EXPECT_EQ(std::string(field).substr(1, error.param->size()), error.param->substr(0, error.param->size()))
        << error.message;
  }
}

TEST(ChatRequest, ReadsToolsAndTheirUse) {
  const std::string body = R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","index":0,
         "function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"5"}]}],
      "tools":[{"type":"function","function":{"name":"f","description":null,"strict":true,
         "parameters":{"type":"object","properties":{"x":{"default":null}}}}},
         {"type":"function","function":{"name":"mcp:files/read.all-of_it"}}],
      "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false})";
  const ChatRequest request = parse_chat_request(body);
  ASSERT_EQ(request.tools.size(), 2U);
  EXPECT_EQ(
      request.tools[0].dump(),
      R"({"name":"f","strict":true,"parameters":{"type":"object","properties":{"x":{"default":null}}}})");
  EXPECT_EQ(request.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(request.tool_name, "f");
  EXPECT_FALSE(request.parallel_tool_calls);
  ASSERT_EQ(request.messages[1].tool_calls.size(), 1U);
  EXPECT_EQ(request.messages[1].tool_calls[0].id, "a");
  EXPECT_EQ(request.messages[1].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_TRUE(request.messages[1].content.empty());
  EXPECT_EQ(request.messages[2].tool_call_id, "a");
  // What a client writes is what a server reads.
  const ChatRequest again = parse_chat_request(request.json().dump());
  EXPECT_EQ(again.json(), request.json());
  EXPECT_EQ(again.tools, request.tools);
  EXPECT_EQ(again.tool_choice, request.tool_choice);
}

TEST(ChatRequest, ManyFaultsMakeNoLongAnswer) {
  std::string empty = "{}";
  for (int i = 0; i < 20000; ++i) empty += ",{}";
  const std::string calls = R"({"messages":[{"role":"assistant","tool_calls":[)" + empty + "]}]}";
  const std::string parts = R"({"messages":[{"role":"user","content":[)" + empty + "]}]}";
  const std::string few = empty.substr(0, 3 * kMaxTools - 1);
  const std::string tools = R"({"messages":[{"role":"user","content":"x"}],"tools":[)" + few + "]}";
  const std::string messages = R"({"messages":[)" + empty + "]}";
  for (const std::string& body : {calls, parts, tools, messages}) {
    const std::string message = refused_chat(body).message;
    EXPECT_LT(message.size(), 4096u);
    EXPECT_NE(message.find("; ... and "), std::string::npos) << message;
    EXPECT_EQ(message.find("the body"), std::string::npos) << message;
  }
}

TEST(ChatRequest, LongIntegersAreNotRounded) {
  const auto tool = [](const std::string& limit) {
    return chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":)" + limit +
                R"(}}}])");
  };
  EXPECT_EQ(parse_chat_request(tool("18446744073709551615")).tools[0]["parameters"]["maximum"].dump(),
            "18446744073709551615");
  const std::string refusal = refused_chat(tool("18446744073709551616")).message;
  EXPECT_NE(refusal.find("`tools[0].function.parameters` has an integer beyond 64 bits"), std::string::npos)
      << refusal;
  EXPECT_NE(refused_chat(chat(R"("seed":18446744073709551616)")).message.find("`seed` must be an integer"),
            std::string::npos);
  EXPECT_NO_THROW(parse_chat_request(chat(R"("metadata":{"id":18446744073709551616})")));
}

TEST(ChatRequest, SuggestsTheNearestField) {
  EXPECT_NE(refused_chat(chat(R"("max_token":3)")).message.find("max_tokens"), std::string::npos);
  EXPECT_NE(refused_chat(chat(R"("tempreature":1)")).message.find("temperature"), std::string::npos);
}

TEST(ChatRequest, NamesAllFaultsAtOnce) {
  const ErrorObject error = refused_chat(chat(R"("temperature":"x","top_k":"y","n":"z")"));
  for (const char* name : {"`temperature`", "`top_k`", "`n`"})
    EXPECT_NE(error.message.find(name), std::string::npos);
}

TEST(ChatRequest, RefusesWhatIsNoJsonObject) {
  for (const std::string body :
       {"", "{", "[]", "nil", "{\"a\":1,}", "{\"messages\":[],\"messages\":[]}", "\xFF\xFE",
        "{\"model\":\"\xC3\x28\"}", "{\"a\":1} x", "{\"a\":1e999}", "\"text\"", "null"}) {
    EXPECT_FALSE(refused_chat(body).message.empty());
  }
  EXPECT_FALSE(refused_chat(std::string(100000, '[')).message.empty());
}

// Time and message size stay bounded, whatever is sent.
TEST(ChatRequest, BoundsItsWorkOnHostileBodies) {
  std::string many = "{";
  for (int i = 0; i < 200000; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  many.back() = '}';
  EXPECT_LT(refused_chat(many).message.size(), 2000u);
  EXPECT_LT(refused_chat("{\"" + std::string(4 << 20, 'k') + "\":0}").message.size(), 2000u);
  EXPECT_LT(refused_completion("{\"prompt\":[" + std::string(1000000, '1') + "]}").message.size(), 2000u);
  std::string list = "{\"prompt\":[";
  for (int i = 0; i < 500000; ++i) list += "1.5,";
  list.back() = ']';
  EXPECT_LT(refused_completion(list + "}").message.size(), 2000u);
  std::string messages = "{\"messages\":[";
  for (int i = 0; i < 100000; ++i) messages += "{},";
  messages.back() = ']';
  EXPECT_LT(refused_chat(messages + "}").message.size(), 4000u);
  EXPECT_LT(refused_chat(chat("\"reasoning_effort\":\"" + std::string(1 << 20, 'x') + "\"")).message.size(),
            2000u);
}

TEST(CompletionRequest, TakesTextIdsAndListsOfEither) {
  const auto prompts = [](const std::string& json) {
    return parse_completion_request("{\"prompt\":" + json + "}").prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts(R"("hi")"), (std::vector<Prompt>{"hi"}));
  EXPECT_EQ(prompts(R"(["a","b"])"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<Prompt>{Ids{1, 2}}));
  EXPECT_EQ(prompts("[[1,2],[3]]"), (std::vector<Prompt>{Ids{1, 2}, Ids{3}}));
  for (const char* bad : {"[]", "\"\"", "[[]]", "[\"\"]", "{}", "7", "[1,\"a\"]", "[\"a\",1]", "[-1]",
                          "[1.0]", "[4294967296]", "[true]", "[[1],[true]]"}) {
    EXPECT_EQ(refused_completion("{\"prompt\":" + std::string(bad) + "}").param->substr(0, 6), "prompt")
        << bad;
  }
}

TEST(CompletionRequest, BoundsPromptsTimesChoices) {
  EXPECT_EQ(refused_completion(R"({"prompt":["a","b"],"n":100})").param, "n");
}

TEST(CompletionRequest, LogprobsIsANumber) {
  EXPECT_EQ(parse_completion_request(completion("\"logprobs\":0")).sampling.top_logprobs, 0);
  EXPECT_EQ(parse_completion_request(completion("\"logprobs\":null")).sampling.top_logprobs, std::nullopt);
  EXPECT_EQ(refused_completion(completion("\"logprobs\":true")).param, "logprobs");
  EXPECT_EQ(refused_completion(completion("\"logprobs\":21")).param, "logprobs");
}

TEST(CompletionRequest, WhatTheClientWritesTheServerReads) {
  CompletionRequest request;
  request.prompts = {std::vector<int32_t>{1, 2, 3}};
  request.sampling.stop = {"."};
  request.sampling.top_logprobs = 5;
  const std::string body = request.json().dump();
  EXPECT_EQ(parse_completion_request(body).json().dump(), body);
}

TEST(TokenizeRequest, TakesATextOrMessages) {
  EXPECT_EQ(std::get<std::string>(parse_tokenize_request(R"({"prompt":""})").input), "");
  const TokenizeRequest chat_form = parse_tokenize_request(chat(R"("add_generation_prompt":false)"));
  EXPECT_FALSE(std::get<ChatRequest>(chat_form.input).add_generation_prompt);
  EXPECT_EQ(refusal([] { parse_tokenize_request(R"({"model":"m"})"); }).param, "prompt");
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[]})").tokens.size(), 0u);
  EXPECT_EQ(refusal([] { parse_detokenize_request(R"({"tokens":[1,"x"]})"); }).param, "tokens[1]");
}

TEST(ErrorObjects, SurviveTheWire) {
  const ErrorObject error = model_not_found("a\xFF", "b");
  const auto back = parse_error(error.json().dump(-1, ' ', false, Json::error_handler_t::replace), 404);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->code, "model_not_found");
  EXPECT_EQ(back->param, "model");
  EXPECT_EQ(parse_error(R"({"object":"error","message":"m","code":400})", 400)->code, "400");
  EXPECT_FALSE(parse_error("<html>", 502).has_value());
}

}  // namespace
}  // namespace spark::api
