// What surrounds the start: answers while loading, the first token, defaults of a checkpoint.
#include <gtest/gtest.h>

#include "common/file.h"
#include "engine/serve/boot_gate.h"
#include "engine/serve/generation_config.h"
#include "unit/checkpoint/temporary_folder.h"
#include "unit/serve/test_server.h"

namespace spark::engine {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.describe();
  }
  return "no error";
}

TEST(BootGate, SaysWhyItMustWaitThenPassesOn) {
  ToyModel model;
  Service service(model, test_tokenizer(), {.served_names = {kModelName}, .version = "1"});
  BootGate gate;
  HttpServer server({.port = 0});
  std::thread thread([&] { server.run(gate); });
  const auto ask = [&](const std::string& request) {
    Client client(server.port());
    client.send(request);
    return client.read_reply();
  };
  gate.set_phase("loading weights, 43% of the weights");
  for (const std::string& request : {get("/health"), get("/v1/models"), post("/v1/completions", "{}")}) {
    const Reply reply = ask(request);
    EXPECT_EQ(reply.status, 503);
    EXPECT_NE(reply.body.find("43%"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
  }
  EXPECT_FALSE(gate.is_open());
  service.prove();
  gate.open(service);
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/v1/models")).status, 200);
  server.drain(0);
  thread.join();
}

TEST(Service, ProvesThatItGenerates) {
  ToyModel good;
  Service(good, test_tokenizer(), {.served_names = {kModelName}, .version = "1"}).prove();
  ToyModel broken(ToyModel::Shape{}, [](auto&&...) -> int32_t { throw Error("disk is gone", "/model"); });
  Service service(broken, test_tokenizer(), {.served_names = {kModelName}, .version = "1"});
  EXPECT_NE(message_of([&] { service.prove(); }).find("disk is gone"), std::string::npos);
}

TEST(Service, ProvesThatItGeneratesInTheShortestContexts) {
  for (int32_t context = 2; context <= 10; ++context) {
    ToyModel model(ToyModel::Shape{.context = context});
    Service service(model, test_tokenizer(), {.served_names = {kModelName}, .version = "1"});
    EXPECT_EQ(message_of([&] { service.prove(); }), "no error") << context;
  }
}

class GenerationConfigFile : public testing::Test {
 protected:
  GenerationConfig read(const std::string& text) {
    const std::string path = (folder_ / "generation_config.json").string();
    write_file_atomic(path, text);
    return read_generation_config(path);
  }
  TemporaryFolder folder_;
};

TEST_F(GenerationConfigFile, GivesDefaults) {
  const GenerationConfig config = read(
      R"({"_from_model_config": true, "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": null,
          "eos_token_id": [1, 7], "max_new_tokens": 100, "transformers_version": "5.6.0"})");
  EXPECT_EQ(config.sampling.temperature, 0.6);
  EXPECT_EQ(config.sampling.top_p, 0.95);
  EXPECT_EQ(config.sampling.top_k, 0);
  EXPECT_EQ(config.end_tokens, (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(config.max_new_tokens, 100);
  EXPECT_EQ(read(R"({"eos_token_id": 1})").end_tokens, std::vector<int32_t>{1});
  EXPECT_EQ(read("{}").sampling.temperature, 1.0);
}

TEST_F(GenerationConfigFile, SaysAllThatIsWrong) {
  const std::string said = message_of(
      [&] { read(R"({"temperature": -1, "top_p": 0, "eos_token_id": "x", "max_new_tokens": 0})"); });
  for (const char* key : {"temperature", "top_p", "eos_token_id", "max_new_tokens", "--generation-config"}) {
    EXPECT_NE(said.find(key), std::string::npos) << said;
  }
  EXPECT_NE(message_of([&] { read("[]"); }).find("no object"), std::string::npos);
}

Json completion(Json more) {
  Json body = {{"prompt", "one two"}, {"temperature", 0}};
  body.update(more);
  return body;
}

TEST(Service, TakesDefaultsFromTheCheckpoint) {
  ServiceOptions options;
  options.generation.max_new_tokens = 3;
  options.generation.end_tokens = {1, 9};
  // Favours token 9 in third place.
  TestServer server({.script = [](std::span<const int32_t> tokens) { return tokens.size() == 4 ? 9 : 20; },
                     .service = options});
  EXPECT_EQ(server.ask_json(
                "/v1/completions",
                completion({{"prompt", Json{5, 6, 7}}, {"max_tokens", 50}}))["usage"]["completion_tokens"],
            2)
      << "token 9 ends an answer";
  EXPECT_EQ(
      server.ask_json("/v1/completions", completion({{"prompt", Json{5, 6, 7}},
                                                     {"max_tokens", 50},
                                                     {"ignore_eos", true}}))["usage"]["completion_tokens"],
      3)
      << "no answer is longer";
  // A temperature that the request does not give is the checkpoint's.
  options.generation.sampling.temperature = 0;
  TestServer greedy({.service = options});
  const auto text = [&](const Json& body) {
    return greedy.ask_json("/v1/completions", body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text({{"prompt", "a b c"}}), text({{"prompt", "a b c"}, {"temperature", 0}}));
  EXPECT_EQ(text({{"prompt", "a b c"}, {"seed", 1}}), text({{"prompt", "a b c"}, {"seed", 2}}));
}

TEST(Service, MinTokensThatNothingCanReachIsTheClientsFault) {
  TestServer server;
  Json every = Json::array();
  for (int32_t token = 0; token < test_tokenizer().vocab_size(); ++token) every.push_back(token);
  const Json refused = server.ask_json(
      "/v1/completions", completion({{"min_tokens", 2}, {"max_tokens", 4}, {"stop_token_ids", every}}), 400);
  EXPECT_EQ(refused["error"]["param"], "min_tokens");
  // Without min_tokens, or with one token left, it is an ordinary request.
  server.ask_json("/v1/completions", completion({{"max_tokens", 4}, {"stop_token_ids", every}}));
  every.erase(5);
  const Json answer = server.ask_json(
      "/v1/completions",
      completion(
          {{"min_tokens", 2}, {"max_tokens", 2}, {"stop_token_ids", every}, {"return_token_ids", true}}));
  EXPECT_EQ(answer["choices"][0]["token_ids"], (Json{5, 5}));
}

}  // namespace
}  // namespace spark::engine
