#include "engine/serve/service.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <random>

#include "api/json_text.h"
#include "common/hash.h"
#include "common/log.h"
#include "engine/schedule/random.h"
#include "engine/serve/chat_prompt.h"
#include "engine/serve/generation.h"

namespace spark::engine {
namespace {

constexpr const char* kModelsPath = "/v1/models";
constexpr const char* kModelPrefix = "/v1/models/";
constexpr const char* kHealthPath = "/health";

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

uint64_t random_word() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

HttpResponse json_response(const Json& body) {
  return {.body = api::json_text(body)};
}

HttpResponse error_response(const api::ErrorObject& error) {
  HttpResponse response{.status = error.status, .body = api::json_text(error.json())};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// Takes as long whatever the first difference.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[b.empty() ? 0 : i % b.size()]));
  }
  return difference == 0 && !b.empty();
}

// A header value in lower case, without blanks and parameters.
std::string lower_value(std::string_view header) {
  std::string out;
  for (const char c : header.substr(0, header.find(';'))) {
    if (c != ' ' && c != '\t') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

std::string client_of(const HttpRequest& request, const api::DeliveryFields& delivery) {
  return request.peer + " " + delivery.user;
}

}  // namespace

Service::Service(StepModel& model, const text::Tokenizer& tokenizer, const ServiceOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(options),
      created_(unix_seconds()),
      random_base_(random_word()),
      metrics_(options.served_names.at(0), model.max_context()),
      engine_(model, tokenizer, [&] {
        EngineOptions engine = options.engine;
        engine.observer = &metrics_;
        return engine;
      }()) {}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", kModelsPath, &Service::models},           {"GET", kModelPrefix, &Service::model},
      {"POST", "/v1/chat/completions", &Service::chat}, {"POST", "/v1/completions", &Service::completions},
      {"POST", "/tokenize", &Service::tokenize},        {"POST", "/detokenize", &Service::detokenize},
      {"GET", kHealthPath, &Service::health},           {"GET", "/version", &Service::version},
      {"GET", "/metrics", &Service::metrics},
  };
  return kRoutes;
}

std::vector<const Service::Route*> Service::routes_at(const std::string& path) {
  std::vector<const Route*> found;
  for (const Route& route : routes()) {
    const std::string_view pattern = route.path;
    const bool is_prefix = pattern.back() == '/';
    if (is_prefix ? path.size() > pattern.size() && path.starts_with(pattern) : path == pattern)
      found.push_back(&route);
  }
  return found;
}

bool Service::authorized(const HttpRequest& head) const {
  if (options_.api_keys.empty() || head.path == kHealthPath) return true;
  const auto header = head.header("authorization");
  if (!header) return false;
  const size_t space = header->find(' ');
  if (space == std::string_view::npos || lower_value(header->substr(0, space)) != "bearer") return false;
  std::string_view token = header->substr(space + 1);
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  bool known = false;
  for (const std::string& key : options_.api_keys) known |= same_secret(token, key);
  return known;
}

std::optional<HttpResponse> Service::screen(const HttpRequest& head) {
  const auto found = routes_at(head.path);
  const bool is_options = head.method == "OPTIONS";
  if (!is_options && !authorized(head)) {
    return error_response(api::ErrorObject{401,
                                           "A valid API key is needed: send \"Authorization: Bearer KEY\".",
                                           "authentication_error", std::nullopt, "invalid_api_key"});
  }
  if (found.empty() && !(is_options && head.path == "*")) {
    return error_response(api::http_error(404, "There is nothing at this path; the API begins at /v1/."));
  }
  std::string allowed = "OPTIONS";
  bool matches = false;
  for (const Route* route : found) {
    const std::string method = route->method;
    allowed += ", " + method + (method == "GET" ? ", HEAD" : "");
    matches = matches || head.method == method || (method == "GET" && head.method == "HEAD");
  }
  if (is_options)
    return HttpResponse{.status = 204, .content_type = "", .body = "", .headers = {{"Allow", allowed}}};
  if (!matches) {
    HttpResponse response = fault(405, "This path takes " + allowed + ".");
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (head.method != "POST") return std::nullopt;
  const auto type = head.header("content-type");
  if (type && lower_value(*type) != "application/json") {
    return fault(415, "The body must be JSON: send \"Content-Type: application/json\".");
  }
  const auto coding = head.header("content-encoding");
  if (coding && lower_value(*coding) != "identity")
    return fault(415, "Compressed bodies are not understood.");
  return std::nullopt;
}

void Service::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  log_debug(request.method + " " + request.path + " from " + request.peer);
  try {
    for (const Route* route : routes_at(request.path)) {
      const bool fits = request.method == route->method ||
                        (request.method == "HEAD" && std::string_view(route->method) == "GET");
      if (fits) return (this->*route->action)(request, exchange);
    }
    exchange->respond(fault(404, "There is nothing at this path."));  // not reached: screen() has refused it
  } catch (const api::RequestError& error) {
    exchange->respond(error_response(error.object()));
  } catch (const text::EncodingStopped&) {
    exchange->respond(fault(503, "the server is shutting down"));
  }
}

HttpResponse Service::fault(int status, const std::string& message) {
  return error_response(api::http_error(status, message));
}

void Service::give_up() {
  giving_up_ = true;
  engine_.abort_all();
}

Json Service::model_card(const std::string& name) const {
  return Json{{"id", name},
              {"object", "model"},
              {"created", created_},
              {"owned_by", "spark"},
              {"root", name},
              {"parent", nullptr},
              {"max_model_len", engine_.max_context()}};
}

void Service::models(HttpRequest&, Exchange exchange) {
  Json list = Json::array();
  for (const std::string& name : options_.served_names) list.push_back(model_card(name));
  exchange->respond(json_response(Json{{"object", "list"}, {"data", std::move(list)}}));
}

void Service::model(HttpRequest& request, Exchange exchange) {
  exchange->respond(
      json_response(model_card(served_name(request.path.substr(std::string(kModelPrefix).size())))));
}

// The name to answer with; throws RequestError for a model that is not here.
std::string Service::served_name(const std::string& asked) const {
  const std::string& first = options_.served_names.front();
  if (asked.empty()) return first;
  const auto found = std::find(options_.served_names.begin(), options_.served_names.end(), asked);
  if (found == options_.served_names.end()) {
    throw api::RequestError(api::model_not_found(asked.substr(0, 200), first));
  }
  return asked;
}

std::string Service::new_id(const char* prefix) {
  const auto words =
      philox4x32({static_cast<uint32_t>(random_count_.fetch_add(1)), 1, 0, 0},
                 {static_cast<uint32_t>(random_base_), static_cast<uint32_t>(random_base_ >> 32)});
  char text[40];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", words[0], words[1], words[2], words[3]);
  return std::string(prefix) + text;
}

GenerationRequest Service::engine_request(std::vector<int32_t> prompt, const api::SamplingFields& sampling,
                                          int64_t default_max_tokens, const api::DeliveryFields& delivery,
                                          const std::string& client, const char* prompt_field) {
  const int64_t context = engine_.max_context();
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > context) {  // possibly only its beginning (prompt_bounds)
    throw api::RequestError(api::bad_request("This model's context has " + std::to_string(context) +
                                                 " tokens, and the prompt has more; shorten it.",
                                             prompt_field, "context_length_exceeded"));
  }
  const int64_t room = context - length;
  const int64_t most = options_.generation.max_new_tokens.value_or(context);
  const int64_t wanted =
      std::min(most, sampling.max_tokens.value_or(std::max<int64_t>(1, std::min(default_max_tokens, room))));
  if (wanted > room) {
    throw api::RequestError(api::bad_request(
        "This model's context has " + std::to_string(context) + " tokens, but " + std::to_string(length) +
            " in the prompt and " + std::to_string(sampling.max_tokens.value_or(wanted)) +
            " to generate were asked for; shorten the prompt or lower "
            "`max_tokens`.",
        sampling.max_tokens ? "max_tokens" : prompt_field, "context_length_exceeded"));
  }
  if (sampling.min_tokens > wanted) {
    throw api::RequestError(api::bad_request(
        "`min_tokens` is above the " + std::to_string(wanted) + " tokens that may be generated",
        "min_tokens"));
  }
  for (const int32_t token : sampling.stop_token_ids) {
    if (tokenizer_.contains(token)) continue;
    throw api::RequestError(
        api::bad_request("token " + std::to_string(token) + " is not in the vocabulary", "stop_token_ids"));
  }
  GenerationRequest out;
  out.prompt = std::move(prompt);
  out.sampling.temperature = sampling.temperature;
  out.sampling.top_p = sampling.top_p;
  out.sampling.top_k = static_cast<int32_t>(sampling.top_k);
  out.sampling.min_p = sampling.min_p;
  // Without a seed every request draws differently; the choices of one request take the seeds that follow.
  out.sampling.seed = sampling.seed ? static_cast<uint64_t>(*sampling.seed)
                                    : random_base_ + random_count_.fetch_add(1) * 0x9E3779B97F4A7C15u;
  out.choices = static_cast<int32_t>(sampling.n);
  out.max_tokens = static_cast<int32_t>(wanted);
  out.min_tokens = static_cast<int32_t>(sampling.min_tokens);
  out.ignore_eos = sampling.ignore_eos;
  out.stop_token_ids = sampling.stop_token_ids;
  if (!out.ignore_eos) {
    for (const int32_t token : options_.generation.end_tokens) {
      if (token != options_.engine.eos_token) out.stop_token_ids.push_back(token);
    }
  }
  out.stop = sampling.stop;
  out.include_stop = sampling.include_stop_str_in_output;
  out.skip_special = sampling.skip_special_tokens;
  if (sampling.top_logprobs) out.top_logprobs = static_cast<int32_t>(*sampling.top_logprobs);
  out.client = client;
  out.report_progress = delivery.stream && delivery.return_progress;
  // 64 bits of a digest: clients cannot choose them.
  if (!delivery.cache_salt.empty()) {
    out.cache_salt = std::stoull(sha256_hex(delivery.cache_salt).substr(0, 16), nullptr, 16);
  }
  return out;
}

text::EncodeBounds Service::prompt_bounds() const {
  return {.max_tokens = static_cast<size_t>(engine_.max_context()), .stop = &giving_up_};
}

void Service::prove() {
  GenerationRequest request;
  request.prompt = tokenizer_.encode("1, 2, 3,", text::ControlTokens::kAsText);
  // The shortest contexts have room for a part of it only.
  const auto room = static_cast<size_t>(std::max(1, engine_.max_context() - 1));
  if (request.prompt.size() > room) request.prompt.resize(room);
  request.sampling.temperature = 0;
  request.max_tokens = 1;
  request.ignore_eos = true;
  auto outcome = std::make_shared<std::promise<Finish>>();
  std::future<Finish> finished = outcome->get_future();
  engine_.submit(std::move(request), [outcome](Output output) {
    if (output.finish) outcome->set_value(*output.finish);
  });
  const Finish finish = finished.get();
  if (finish.reason == FinishReason::kError) {
    throw Error("the first token cannot be generated: " + finish.error, options_.served_names.front());
  }
}

void Service::chat(HttpRequest& request, Exchange exchange) {
  const api::ChatRequest asked = api::parse_chat_request(request.body, options_.generation.sampling);
  GenerationJob job{new_id("chatcmpl-"), served_name(asked.model), unix_seconds(), {}, asked.delivery};
  ChatPrompt prompt = encode_chat_request(asked, tokenizer_, options_.tool_text, prompt_bounds());
  job.requests.push_back(engine_request(std::move(prompt.tokens), asked.sampling, engine_.max_context(),
                                        asked.delivery, client_of(request, asked.delivery), "messages"));
  const bool tools = offers_tools(asked);
  // The markup of calls has tokens that a tokenizer may flag as special.
  if (tools) job.requests.back().skip_special = false;
  make_chat_generation(engine_, tokenizer_, exchange, std::move(job),
                       {prompt.start, tools, asked.parallel_tool_calls})
      ->start();
}

void Service::completions(HttpRequest& request, Exchange exchange) {
  api::CompletionRequest asked = api::parse_completion_request(request.body, options_.generation.sampling);
  GenerationJob job{new_id("cmpl-"), served_name(asked.model), unix_seconds(), {}, asked.delivery};
  for (api::Prompt& prompt : asked.prompts) {
    std::vector<int32_t> tokens;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      tokens = tokenizer_.encode(*text, text::ControlTokens::kAsText, prompt_bounds());
    } else {
      tokens = std::move(std::get<std::vector<int32_t>>(prompt));
    }
    job.requests.push_back(engine_request(std::move(tokens), asked.sampling, api::kDefaultCompletionTokens,
                                          asked.delivery, client_of(request, asked.delivery), "prompt"));
  }
  make_completion_generation(engine_, tokenizer_, exchange, std::move(job))->start();
}

void Service::tokenize(HttpRequest& request, Exchange exchange) {
  const api::TokenizeRequest asked = api::parse_tokenize_request(request.body);
  served_name(asked.model);
  const auto* text = std::get_if<std::string>(&asked.input);
  const text::EncodeBounds whole{.stop = &giving_up_};
  const std::vector<int32_t> tokens = text != nullptr
                                          ? tokenizer_.encode(*text, text::ControlTokens::kAsText, whole)
                                          : encode_chat_request(std::get<api::ChatRequest>(asked.input),
                                                                tokenizer_, options_.tool_text, whole)
                                                .tokens;
  Json strings = nullptr;
  if (asked.return_token_strs) {
    strings = Json::array();
    for (const int32_t token : tokens) strings.push_back(tokenizer_.token_string(token));
  }
  exchange->respond(json_response(Json{{"count", tokens.size()},
                                       {"max_model_len", engine_.max_context()},
                                       {"tokens", tokens},
                                       {"token_strs", std::move(strings)}}));
}

void Service::detokenize(HttpRequest& request, Exchange exchange) {
  const api::DetokenizeRequest asked = api::parse_detokenize_request(request.body);
  served_name(asked.model);
  for (size_t i = 0; i < asked.tokens.size(); ++i) {
    if (tokenizer_.contains(asked.tokens[i])) continue;
    throw api::RequestError(
        api::bad_request("token " + std::to_string(asked.tokens[i]) + " is not in the vocabulary",
                         "tokens[" + std::to_string(i) + "]"));
  }
  exchange->respond(json_response(Json{{"prompt", tokenizer_.decode(asked.tokens)}}));
}

void Service::health(HttpRequest&, Exchange exchange) {
  exchange->respond({.content_type = "text/plain; charset=utf-8", .body = "ok\n"});
}

void Service::version(HttpRequest&, Exchange exchange) {
  exchange->respond(json_response(Json{{"version", options_.version}}));
}

void Service::metrics(HttpRequest&, Exchange exchange) {
  exchange->respond({.content_type = std::string(api::kMetricsMediaType),
                     .body = metrics_.page(engine_.load(), model_.table_counters())});
}

}  // namespace spark::engine
