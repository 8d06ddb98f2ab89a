#include "ops/launch/head_api.h"

#include <poll.h>

#include <algorithm>
#include <charconv>

#include "common/child_process.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/url_secrets.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr size_t kMaxResponse = size_t{4} << 20;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

std::optional<size_t> number_in(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  size_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  return fault == std::errc() ? std::optional(value) : std::nullopt;
}

std::string short_text(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.substr(0, 300);
}

std::string tail_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// Sends the request and gathers the answer over the client's pipes until it is whole.
class Exchange {
 public:
  Exchange(const std::vector<std::string>& client, std::string request)
      : child_(client, {.with_input = true}), unsent_(std::move(request)) {}

  ApiAnswer run(double timeout_s, const std::stop_token& stop) {
    const double deadline = monotonic_s() + timeout_s;
    while (monotonic_s() < deadline && !stop.stop_requested()) {
      if (!unsent_.empty()) unsent_.erase(0, child_.write_input(unsent_));
      wait();
      if (!child_.read_output(text_, kMaxResponse)) return failed("the answer is too long");
      child_.read_error(error_, 1 << 16);
      const bool closed = child_.output() < 0;
      if (auto answer = read_response(text_, closed)) return *answer;
      if (closed) return no_answer();
    }
    return failed(stop.stop_requested() ? "interrupted" : "no answer within the time limit");
  }

 private:
  void wait() {
    pollfd streams[2] = {{child_.output(), POLLIN, 0}, {child_.error(), POLLIN, 0}};
    ::poll(streams, 2, 100);
  }
  static ApiAnswer failed(const std::string& why) {
    ApiAnswer answer;
    answer.problem = why;
    return answer;
  }
  ApiAnswer no_answer() {
    for (int i = 0; i < 20 && !child_.ended(); ++i) ::poll(nullptr, 0, 10);
    child_.read_error(error_, 1 << 16);
    const std::string why = tail_line(error_);
    // The server said no to the forward, or the way to it is broken.
    const bool refused = error_.find("open failed") != std::string::npos ||
                         error_.find("forwarding failed") != std::string::npos;
    if (!text_.empty()) return failed("the connection ended within the answer");
    ApiAnswer answer = failed(why.empty() ? "the connection was closed" : why);
    answer.node_unreachable = !refused && child_.exit_code() == 255 && !why.empty();
    return answer;
  }

  ChildProcess child_;
  std::string unsent_;
  std::string text_;
  std::string error_;
};

}  // namespace

std::optional<HttpAddress> read_address(const std::string& url) {
  HttpAddress address;
  std::string rest;
  if (url.starts_with("http://")) {
    rest = url.substr(7);
  } else if (url.starts_with("https://")) {
    address.tls = true;
    rest = url.substr(8);
  } else {
    return {};
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.path = slash == rest.size() ? "/" : rest.substr(slash);
  std::string place = rest.substr(0, slash);
  address.port = address.tls ? 443 : 80;
  const size_t colon = place.rfind(':');
  if (colon != std::string::npos && place.find(']', colon) == std::string::npos) {
    const auto port = whole_number(place.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535) return {};
    address.port = *port;
    place.resize(colon);
  }
  if (place.empty()) return {};
  address.host = place;
  return address;
}

std::optional<ApiAnswer> read_response(std::string_view text, bool closed) {
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string_view::npos) return {};
  ApiAnswer answer;
  const std::string head = lower(std::string(text.substr(0, end)));
  const size_t blank = head.find(' ');
  const auto status =
      blank == std::string::npos ? std::nullopt : number_in(std::string_view(head).substr(blank));
  if (!head.starts_with("http/") || !status) {
    answer.problem = "the answer is not HTTP";
    return answer;
  }
  answer.status = static_cast<int>(*status);
  answer.body = text.substr(end + 4);
  const size_t field = head.find("\r\ncontent-length:");
  if (field != std::string::npos) {
    const auto length = number_in(std::string_view(head).substr(field + 17));
    if (length && answer.body.size() >= *length) {
      answer.body.resize(*length);
      return answer;
    }
  }
  return closed ? std::optional(answer) : std::nullopt;
}

HeadApi::HeadApi(const Remote& remote, RemoteNode head, const std::string& url, std::string key)
    : remote_(remote), head_(std::move(head)), key_(std::move(key)) {
  const auto address = read_address(url);
  if (!address)
    throw Error("\"" + without_url_secrets(url) + "\" is no http or https address", "deployment.ready_url");
  address_ = *address;
}

ApiAnswer HeadApi::get(const std::string& path, double timeout_s, const std::stop_token& stop) const {
  return ask("GET", path, {}, timeout_s, stop);
}

ApiAnswer HeadApi::post(const std::string& path, const std::string& json, double timeout_s,
                        const std::stop_token& stop) const {
  return ask("POST", path, json, timeout_s, stop);
}

ApiAnswer HeadApi::ask(const std::string& method, const std::string& path, const std::string& body,
                       double timeout_s, const std::stop_token& stop) const {
  if (address_.tls) return ask_with_curl(method, path, body, timeout_s, stop);
  std::string request = method + " " + path + " HTTP/1.0\r\nHost: " + address_.host +
                        "\r\nConnection: close\r\nAccept: */*\r\n";
  if (!key_.empty()) request += "Authorization: Bearer " + key_ + "\r\n";
  if (method == "POST")
    request += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  request += "\r\n" + body;
  std::vector<std::string> client = remote_.client_arguments(head_);
  client.insert(client.begin() + 1, {"-W", address_.host + ":" + std::to_string(address_.port)});
  try {
    return Exchange(client, std::move(request)).run(timeout_s, stop);
  } catch (const Error& error) {
    ApiAnswer answer;
    answer.problem = error.what();
    answer.node_unreachable = true;
    return answer;
  }
}

// The key travels through standard input, as a configuration of curl.
ApiAnswer HeadApi::ask_with_curl(const std::string& method, const std::string& path, const std::string& body,
                                 double timeout_s, const std::stop_token& stop) const {
  const std::string url = "https://" + address_.host + ":" + std::to_string(address_.port) + path;
  std::string script = "curl --silent --show-error --insecure --include --http1.0 --max-time " +
                       std::to_string(static_cast<int>(timeout_s) + 1) + " --request " + method +
                       " --config -";
  std::string config = "url = \"" + url + "\"\n";
  if (!key_.empty()) config += "header = \"Authorization: Bearer " + key_ + "\"\n";
  if (method == "POST") {
    script += " --header 'Content-Type: application/json' --data " + shell_quote(body);
  }
  const RemoteResult result =
      remote_.run(head_, {.script = script, .input = config, .timeout_s = timeout_s + 5}, stop);
  ApiAnswer answer;
  if (!result.ok()) {
    answer.problem = result.describe();
    answer.node_unreachable = result.outcome != RemoteOutcome::kExited;
    return answer;
  }
  return read_response(result.output, true).value_or(answer);
}

TokenProof generate_token(HeadApi& api, double timeout_s, const std::stop_token& stop) {
  TokenProof proof;
  const auto refused = [&proof](const std::string& what, const ApiAnswer& answer) {
    proof.node_unreachable = answer.node_unreachable;
    proof.refused = answer.status == 401 || answer.status == 403;
    proof.problem = what + (answer.status == 0 ? ": " + answer.problem
                                               : " answers " + std::to_string(answer.status) + ": " +
                                                     short_text(answer.body));
    return proof;
  };
  const ApiAnswer ready = api.get(api.address().path, 3, stop);
  if (ready.status != 200) return refused(api.address().path, ready);
  const ApiAnswer models = api.address().path == "/v1/models" ? ready : api.get("/v1/models", 3, stop);
  if (models.status != 200) return refused("/v1/models", models);
  const Json list = Json::parse(models.body, nullptr, false);
  if (!list.is_object() || !list.contains("data") || !list["data"].is_array() || list["data"].empty() ||
      !list["data"][0].is_object() || !list["data"][0].value("id", Json()).is_string()) {
    proof.problem = "/v1/models names no model: " + short_text(models.body);
    return proof;
  }
  proof.model = list["data"][0]["id"].get<std::string>();
  const Json request = {{"model", proof.model}, {"prompt", "Ready?"}, {"max_tokens", 1}, {"temperature", 0}};
  const ApiAnswer completion = api.post("/v1/completions", request.dump(), timeout_s, stop);
  if (completion.status != 200) return refused("/v1/completions", completion);
  const Json answer = Json::parse(completion.body, nullptr, false);
  const Json usage = answer.is_object() ? answer.value("usage", Json::object()) : Json::object();
  const Json tokens = usage.is_object() ? usage.value("completion_tokens", Json()) : Json();
  proof.ready = tokens.is_number_integer() && tokens.get<int64_t>() >= 1;
  if (!proof.ready) proof.problem = "the completion has no token: " + short_text(completion.body);
  return proof;
}

std::string find_api_key(const Remote& remote, const RemoteNode& head, const ApiKeySource& source) {
  if (!source.given.empty() || source.empty()) return source.given;
  const RemoteResult result =
      remote.run(head, {.script = api_key_function("api_key", source) + "api_key\n", .timeout_s = 10});
  return result.ok() ? result.output : std::string();
}

}  // namespace spark::ops
