// The routes: OpenAI's API over an engine.
//
//   Service service(model, tokenizer, {.served_names = {"deepseek-v4.1-flash"}, .version = "0.1.0"});
//   server.run(service);
//
// GET /v1/models, /v1/models/NAME, /health, /version, /metrics; POST /v1/chat/completions, /v1/completions,
// /tokenize, /detokenize. With API keys, everything but /health needs "Authorization: Bearer KEY". Every
// error is an OpenAI error object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/error_object.h"
#include "api/request.h"
#include "engine/schedule/engine.h"
#include "engine/serve/generation_config.h"
#include "engine/serve/http.h"
#include "engine/serve/metrics.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace spark::engine {

struct ServiceOptions {
  std::vector<std::string> served_names =
      {};  // at least one; the first is what answers call the model by default
  std::vector<std::string> api_keys = {};  // none: open to whoever can connect
  std::string version = {};
  GenerationConfig generation = {};
  std::optional<text::ChatTemplateParts> tool_text = {};  // nothing: requests with tools are refused
  EngineOptions engine = {};                              // its observer is the service's own
};

class Service : public HttpHandler {
 public:
  // The model and the tokenizer outlive the service, and the service the server's run().
  Service(StepModel& model, const text::Tokenizer& tokenizer, const ServiceOptions& options);

  std::optional<HttpResponse> screen(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse fault(int status, const std::string& message) override;
  void give_up() override;
  // The model cannot go on: every client is told why, and new requests are refused with it.
  void fail(const std::string& why) { engine_.fail(why); }

  // Generates one token, as any request would: proof that every part works. Throws Error when one does not.
  void prove();

  int32_t max_context() const { return engine_.max_context(); }
  int32_t max_sequences() const { return engine_.max_sequences(); }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Action = void (Service::*)(HttpRequest&, Exchange);
  struct Route {
    const char* method;
    const char* path;
    Action action;
  };
  static const std::vector<Route>& routes();
  static std::vector<const Route*> routes_at(const std::string& path);

  bool authorized(const HttpRequest& head) const;
  void models(HttpRequest& request, Exchange exchange);
  void model(HttpRequest& request, Exchange exchange);
  void chat(HttpRequest& request, Exchange exchange);
  void completions(HttpRequest& request, Exchange exchange);
  void tokenize(HttpRequest& request, Exchange exchange);
  void detokenize(HttpRequest& request, Exchange exchange);
  void health(HttpRequest& request, Exchange exchange);
  void version(HttpRequest& request, Exchange exchange);
  void metrics(HttpRequest& request, Exchange exchange);

  Json model_card(const std::string& name) const;
  std::string served_name(const std::string& asked) const;
  GenerationRequest engine_request(std::vector<int32_t> prompt, const api::SamplingFields& sampling,
                                   int64_t default_max_tokens, const api::DeliveryFields& delivery,
                                   const std::string& client, const char* prompt_field);
  // For a prompt that is to be generated from: the context, and no longer than the server lives.
  text::EncodeBounds prompt_bounds() const;
  std::string new_id(const char* prefix);

  const StepModel& model_;
  const text::Tokenizer& tokenizer_;
  const ServiceOptions options_;
  const int64_t created_;
  const uint64_t random_base_;
  std::atomic<uint64_t> random_count_{0};
  std::atomic<bool> giving_up_{false};
  ServerMetrics metrics_;
  Engine engine_;  // last: its thread uses what is above
};

}  // namespace spark::engine
