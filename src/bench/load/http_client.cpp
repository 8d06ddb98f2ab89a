#include "bench/load/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "common/units.h"
#include "common/url_secrets.h"

namespace spark::bench {
namespace {

constexpr size_t kMaxBodyBytes = size_t{64} << 20;

struct CurlDelete {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Handle = std::unique_ptr<CURL, CurlDelete>;
using Headers = std::unique_ptr<curl_slist, CurlDelete>;

// What the callbacks of one transfer share.
struct Transfer {
  CURL* handle = nullptr;
  HttpReply reply;
  const OnData* on_data = nullptr;
  const std::atomic<bool>* cancelled = nullptr;
  double stall_timeout_s = 0;
  double last_progress_s = 0;
  bool stalled = false;
  bool ended = false;         // on_data has all it wants
  std::exception_ptr thrown;  // by on_data: no exception may pass through libcurl
};

size_t receive(char* bytes, size_t size, size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  const double now = monotonic_s();
  const std::string_view piece(bytes, size * count);
  long status = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &status);
  if (transfer.on_data != nullptr && status >= 200 && status < 300) {
    try {
      const Heard heard = (*transfer.on_data)(piece, now);
      if (heard != Heard::kNothing) transfer.last_progress_s = now;
      transfer.ended = heard == Heard::kEnd;
      if (transfer.ended) return 0;
    } catch (...) {
      transfer.thrown = std::current_exception();
      return 0;
    }
  } else {
    if (transfer.reply.body.size() + piece.size() > kMaxBodyBytes) return 0;
    transfer.reply.body.append(piece);
  }
  return piece.size();
}

int watch(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (transfer.cancelled != nullptr && transfer.cancelled->load()) return 1;
  transfer.stalled =
      transfer.stall_timeout_s > 0 && monotonic_s() - transfer.last_progress_s > transfer.stall_timeout_s;
  return transfer.stalled ? 1 : 0;
}

void set_headers(const Endpoint& endpoint, bool json, Headers& headers) {
  const auto append = [&](const std::string& line) {
    curl_slist* extended = curl_slist_append(headers.get(), line.c_str());
    SPARK_CHECK(extended != nullptr);
    (void)headers.release();
    headers.reset(extended);
  };
  append("Expect:");  // no wait for "100 Continue"
  if (json) append("Content-Type: application/json");
  if (!endpoint.api_key.empty()) append("Authorization: Bearer " + endpoint.api_key);
}

HttpReply perform(const Endpoint& endpoint, const std::string& path, const std::string* body,
                  Transfer& transfer, double timeout_s) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const Handle handle(curl_easy_init());
  SPARK_CHECK(handle != nullptr);
  CURL* curl = handle.get();
  Headers headers;
  set_headers(endpoint, body != nullptr, headers);
  std::array<char, CURL_ERROR_SIZE> message{};
  transfer.handle = curl;
  transfer.last_progress_s = monotonic_s();
  const std::string url = endpoint.base_url + path;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOPROXY,
                   "*");  // the service is on this network; a proxy would be measured instead
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 10'000L);
  if (timeout_s > 0) curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1000));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message.data());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, watch);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  if (body != nullptr) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body->data());
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &transfer.reply.status);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (code != CURLE_OK && !transfer.ended) {
    if (transfer.stalled) {
      transfer.reply.error = "no token for " + format_fixed(transfer.stall_timeout_s, 0) + " s";
    } else if (code == CURLE_ABORTED_BY_CALLBACK) {
      transfer.reply.error = "cancelled";
    } else {
      transfer.reply.error = message[0] != '\0' ? message.data() : curl_easy_strerror(code);
    }
  }
  return std::move(transfer.reply);
}

}  // namespace

HttpClient::HttpClient(Endpoint endpoint, const std::atomic<bool>* cancelled)
    : endpoint_(std::move(endpoint)), cancelled_(cancelled) {
  std::string& url = endpoint_.base_url;
  const std::string_view scheme = url.starts_with("http://") ? "http://" : "https://";
  if (!url.starts_with(scheme) || url.size() == scheme.size() || url[scheme.size()] == '/') {
    throw Error("\"" + without_url_secrets(url) + "\" is no http:// or https:// address",
                "the service's address");
  }
  const std::string_view rest = std::string_view(url).substr(scheme.size());
  if (rest.substr(0, rest.find('/')).find('@') != std::string_view::npos) {
    throw Error("holds a name or password, which would end up in reports", "the service's address",
                "give a key as a file");
  }
  if (rest.find_first_of("?#") != std::string_view::npos) {
    throw Error("holds a query or a fragment, which would end up in reports", "the service's address",
                "give the address without it, and a key as a file");
  }
  if (std::any_of(url.begin(), url.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw Error("holds blanks or characters that are not ASCII", "the service's address");
  }
  while (url.back() == '/') url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const std::string& key = endpoint_.api_key;
  if (std::any_of(key.begin(), key.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw Error("holds blanks or characters that are not ASCII", "the API key");
  }
}

HttpReply HttpClient::get(const std::string& path, double timeout_s) const {
  Transfer transfer;
  transfer.cancelled = cancelled_;
  return perform(endpoint_, path, nullptr, transfer, timeout_s);
}

HttpReply HttpClient::post_stream(const std::string& path, const std::string& json, double stall_timeout_s,
                                  const OnData& on_data) const {
  Transfer transfer;
  transfer.cancelled = cancelled_;
  transfer.on_data = &on_data;
  transfer.stall_timeout_s = stall_timeout_s;
  return perform(endpoint_, path, &json, transfer, 0);
}

}  // namespace spark::bench
