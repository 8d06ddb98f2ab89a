// Many clients of all manners against a running spark-engine, for as long as asked:
//
//   soak --port 8000 --pid 4711 --minutes 60 --clients 32 [--seed 1] [--longest 9]
//
// Each client asks, one after another: streams and whole answers of short, middling and long prompts that
// share beginnings, several choices, chat; goes away in the middle of a stream or of its own request; sends
// what is no request. What must come back is checked: status codes, the ends of streams, and that the same
// greedy request always gets the same answer, whoever is beside it. Once a minute a line says what happened
// and how much memory the server holds. At the end the server must be idle: nothing running, nothing waiting,
// no cache block held.
//
// Exit code 0: no fault that is not the client's own, memory flat after the first fifth of the time. 1
// otherwise. `benchmarks/soak/run` starts a server and this against it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/metric_names.h"
#include "api/prometheus.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/json.h"

namespace spark {
namespace {

struct Flags {
  uint16_t port = 0;
  int pid = 0;
  double minutes = 1;
  int clients = 32;
  unsigned seed = 1;
  int longest = 9;  // 9: prompts of thousands of tokens; 8: hundreds; 4: tens and no long answers
};

constexpr int kPatienceS = 300;  // for the next byte of an answer

// One connection; closed at the end.
class Connection {
 public:
  explicit Connection(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      const std::string why = std::strerror(errno);
      if (fd_ >= 0) close(fd_);
      throw Error("cannot connect: " + why);
    }
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  // What has come; empty at the end of the connection. Throws when nothing comes.
  std::string receive() {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPatienceS * 1000) <= 0)
      throw Error("no byte within " + std::to_string(kPatienceS) + " s");
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string();
  }

 private:
  int fd_;
};

std::string http(const std::string& method, const std::string& path, const std::string& body) {
  return method + " " + path +
         " HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct Reply {
  int status = 0;
  std::string body;  // chunks joined
};

Reply parse_reply(const std::string& raw) {
  const size_t head = raw.find("\r\n\r\n");
  if (head == std::string::npos || raw.size() < 12) throw Error("the answer ends in its head");
  Reply reply{.status = std::atoi(raw.c_str() + 9), .body = raw.substr(head + 4)};
  if (raw.substr(0, head).find("chunked") == std::string::npos) return reply;
  std::string joined;
  for (size_t at = 0;;) {
    const size_t line = reply.body.find("\r\n", at);
    if (line == std::string::npos) throw Error("the answer ends between its chunks");
    const size_t size = std::stoul(reply.body.substr(at, line - at), nullptr, 16);
    if (size == 0) break;
    if (line + 2 + size > reply.body.size()) throw Error("the answer ends in a chunk");
    joined += reply.body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  reply.body = std::move(joined);
  return reply;
}

Reply ask(uint16_t port, const std::string& request) {
  Connection connection(port);
  if (!connection.send(request)) throw Error("the server closed the connection while it was being asked");
  std::string raw;
  for (std::string piece = connection.receive(); !piece.empty(); piece = connection.receive()) raw += piece;
  return parse_reply(raw);
}

// What all clients share.
struct Tally {
  std::atomic<int64_t> requests{0}, tokens{0}, left{0}, bad{0}, checked{0}, cached{0}, faults{0};
  std::mutex mutex;
  std::map<std::string, std::string> answers;  // to greedy requests
  std::map<std::string, int64_t> kinds;        // of faults

  void fault(const std::string& what) {
    ++faults;
    const std::lock_guard lock(mutex);
    if (kinds[what]++ == 0) std::fprintf(stderr, "soak: fault: %s\n", what.c_str());
  }
};

class Client {
 public:
  Client(const Flags& flags, Tally& tally, unsigned number)
      : flags_(flags),
        tally_(tally),
        random_(flags.seed * 1000 + number),
        name_("client-" + std::to_string(number)) {}

  void once() {
    const int what = pick(0, 99);
    try {
      if (what < 50) return greedy(what < 35);
      if (what < 65) return chat();
      if (what < 75) return choices();
      if (what < 90) return leave();
      return nonsense();
    } catch (const std::exception& error) {
      tally_.fault(error.what());
    }
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Texts that begin alike, of a few or of some thousand tokens.
  std::string text(int longest = 9) {
    const int length = pick(0, std::min(longest, flags_.longest));
    int words = length < 5 ? pick(1, 20) : length < 9 ? pick(50, 250) : pick(400, 900);
    const int story = pick(0, 3);
    std::string out;
    std::mt19937 words_of(
        static_cast<unsigned>(story));  // the same words from the start, whatever the length
    words = words / 10 * 10 + 1;        // few different lengths, so that requests come again
    for (int i = 0; i < words; ++i) {
      out += static_cast<char>('a' + words_of() % 26);
      out += i % 7 == 0 ? "lpha the " : "o ";
    }
    return out;
  }

  // Long answers get prompts of a few tokens, so that both fit the context.
  Json completion(int most) {
    return {{"prompt", text(most > 400 ? 4 : 9)}, {"max_tokens", pick(0, 3) * most / 4 + 1}, {"user", name_}};
  }

  Json usage_of(const Json& body) {
    const Json usage = body.at("usage");
    tally_.tokens += usage.at("completion_tokens").get<int64_t>();
    if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].is_object()) {
      tally_.cached += usage["prompt_tokens_details"].value("cached_tokens", int64_t{0});
    }
    return usage;
  }

  // The events of a stream, which must end as it should.
  std::vector<Json> events(const Reply& reply) {
    std::vector<Json> out;
    bool done = false;
    for (size_t at = 0; at < reply.body.size();) {
      const size_t end = reply.body.find("\n\n", at);
      if (end == std::string::npos) throw Error("a stream ends in an event");
      const std::string event = reply.body.substr(at, end - at);
      at = end + 2;
      if (event.rfind("data: ", 0) != 0) continue;  // a comment
      if (event == "data: [DONE]") {
        done = true;
        continue;
      }
      out.push_back(Json::parse(event.substr(6)));
      if (out.back().contains("error")) throw Error("an error in a stream: " + out.back()["error"].dump());
    }
    if (!done) throw Error("a stream ends without [DONE]");
    return out;
  }

  Reply good(const std::string& path, const Json& body) {
    Reply reply = ask(flags_.port, http("POST", path, body.dump()));
    if (reply.status != 200) {
      throw Error("status " + std::to_string(reply.status) +
                  " to a good request: " + reply.body.substr(0, 200));
    }
    ++tally_.requests;
    return reply;
  }

  void greedy(bool stream) {
    // Long answers outgrow what was free when they were let in: then sequences are preempted.
    const bool is_long = pick(0, 5) == 0 && flags_.longest > 4;
    Json body = completion(is_long ? 1600 : 48);
    body["temperature"] = 0;
    body["ignore_eos"] = true;
    const std::string key = body.at("prompt").get<std::string>() + "|" + body.at("max_tokens").dump();
    std::string answer;
    if (stream) {
      body["stream"] = true;
      body["return_progress"] = pick(0, 1) == 0;
      body["stream_options"] = {{"include_usage", true}};
      for (const Json& event : events(good("/v1/completions", body))) {
        for (const Json& choice : event.at("choices")) answer += choice.at("text").get<std::string>();
        if (event.contains("usage") && event["usage"].is_object() && event["choices"].empty())
          usage_of(event);
      }
    } else {
      const Json whole = Json::parse(good("/v1/completions", body).body);
      answer = whole.at("choices").at(0).at("text");
      const Json usage = usage_of(whole);
      if (usage.at("completion_tokens") != body["max_tokens"]) throw Error("an answer is too short");
    }
    const std::lock_guard lock(tally_.mutex);
    const auto [known, added] = tally_.answers.emplace(key, answer);
    if (added) return;
    ++tally_.checked;
    if (known->second != answer) throw Error("the same greedy request got another answer");
  }

  void chat() {
    const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", text()}}})},
                       {"max_tokens", pick(1, 60)},
                       {"stream", true},
                       {"user", name_},
                       {"stream_options", {{"include_usage", true}}}};
    const std::vector<Json> got = events(good("/v1/chat/completions", body));
    usage_of(got.back());
  }

  void choices() {
    Json body = completion(30);
    body["n"] = pick(2, 4);
    body["temperature"] = 1.0;
    body["logprobs"] = 2;
    const Json whole = Json::parse(good("/v1/completions", body).body);
    if (whole.at("choices").size() != body["n"].get<size_t>()) throw Error("choices are missing");
    usage_of(whole);
  }

  // Goes away: while asking, while the prompt is read, or in the middle of the answer.
  void leave() {
    Json body = completion(400);
    body["stream"] = pick(0, 1) == 0;
    body["ignore_eos"] = true;
    const std::string request = http("POST", "/v1/completions", body.dump());
    Connection connection(flags_.port);
    const int when = pick(0, 3);
    if (when == 0) {
      connection.send(request.substr(0, request.size() / 2));
    } else {
      connection.send(request);
      if (when == 1) std::this_thread::sleep_for(std::chrono::milliseconds(pick(0, 300)));
      if (when >= 2 && body["stream"] == Json(true)) {
        for (int i = pick(1, 20); i > 0; --i) {
          if (connection.receive().empty()) break;
        }
      }
    }
    ++tally_.left;
  }

  void refused(const std::string& request, std::initializer_list<int> allowed) {
    const Reply reply = ask(flags_.port, request);
    for (const int status : allowed) {
      if (reply.status == status) {
        ++tally_.bad;
        return;
      }
    }
    throw Error("status " + std::to_string(reply.status) + " to: " + request.substr(0, request.find("\r\n")));
  }

  void nonsense() {
    switch (pick(0, 6)) {
      case 0:
        return refused(http("POST", "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\":"), {400});
      case 1:
        return refused(http("POST", "/v1/completions", R"({"prompt": "x", "temperature": -3})"), {400});
      case 2:
        return refused(http("POST", "/v1/completions", R"({"prompt": "x", "nonsense": true})"), {400});
      case 3:
        return refused(http("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 100000000})"), {400});
      case 4:
        return refused(http("DELETE", "/v1/completions", ""), {405});
      case 5:
        return refused(http("GET", "/v1/nothing", ""), {404});
      default:
        return refused("\x01\x02 no request at all\r\n\r\n", {400});
    }
  }

  const Flags& flags_;
  Tally& tally_;
  std::mt19937 random_;
  std::string name_;
};

// Kilobytes that the process holds in memory; 0 when it is gone.
int64_t resident_kb(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

api::MetricsPage metrics(uint16_t port) {
  return api::parse_metrics(ask(port, http("GET", "/metrics", "")).body);
}

// Who has gone is noticed soon; then nothing may be left.
bool ends_idle(const Flags& flags) {
  namespace metric = api::metric;
  std::string left;
  for (int i = 0; i < 300; ++i) {
    left.clear();
    const api::MetricsPage page = metrics(flags.port);
    for (const char* name : {metric::kRequestsRunning, metric::kRequestsWaiting, metric::kCacheUsage}) {
      const double value = page.sum(name).value_or(-1);
      if (value != 0) left += std::string(left.empty() ? "" : ", ") + name + " " + std::to_string(value);
    }
    if (left.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::printf("at the end: %s\n",
              left.empty() ? "nothing running, nothing waiting, no block held" : left.c_str());
  return left.empty();
}

bool memory_is_flat(const std::vector<int64_t>& resident_by_10_s) {
  const size_t warm = resident_by_10_s.size() / 5;
  if (resident_by_10_s.size() < 10) {
    std::printf("memory: too short a run to tell\n");
    return true;
  }
  const int64_t first = resident_by_10_s[warm], last = resident_by_10_s.back();
  constexpr int64_t kAllowedKb = 32 << 10;  // what allocators keep
  const bool flat = last <= first + first / 20 + kAllowedKb;
  std::printf("memory: %.1f MiB after the warm-up, %.1f MiB at the end: %s\n",
              static_cast<double>(first) / 1024, static_cast<double>(last) / 1024, flat ? "flat" : "GROWS");
  return flat;
}

int run(const Flags& flags) {
  namespace metric = api::metric;
  Tally tally;
  const double begin_s = monotonic_s(), end_s = begin_s + flags.minutes * 60;
  std::vector<std::thread> clients;
  for (int i = 0; i < flags.clients; ++i) {
    clients.emplace_back([&, i] {
      Client client(flags, tally, static_cast<unsigned>(i));
      while (monotonic_s() < end_s) client.once();
    });
  }
  std::printf("%7s %9s %9s %7s %6s %8s %9s %9s %9s %7s %7s\n", "minute", "answers", "tokens", "left", "bad",
              "checked", "preempted", "cached", "RSS MiB", "cache", "faults");
  std::vector<int64_t> resident;
  for (int tick = 1; monotonic_s() < end_s; ++tick) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::max(0.0, std::min(begin_s + 10 * tick, end_s) - monotonic_s())));
    resident.push_back(resident_kb(flags.pid));
    if (resident.back() == 0) tally.fault("the server is gone");
    if (tick % 6 != 0 && monotonic_s() < end_s) continue;
    double preempted = -1, cache = -1;
    try {
      const api::MetricsPage page = metrics(flags.port);
      preempted = page.sum(metric::kPreemptions).value_or(-1);
      cache = page.sum(metric::kCacheUsage).value_or(-1);
    } catch (const std::exception& error) {
      tally.fault(std::string("metrics: ") + error.what());
    }
    std::printf("%7.1f %9lld %9lld %7lld %6lld %8lld %9.0f %9lld %9.1f %7.3f %7lld\n",
                (monotonic_s() - begin_s) / 60, static_cast<long long>(tally.requests),
                static_cast<long long>(tally.tokens), static_cast<long long>(tally.left),
                static_cast<long long>(tally.bad), static_cast<long long>(tally.checked), preempted,
                static_cast<long long>(tally.cached), static_cast<double>(resident.back()) / 1024, cache,
                static_cast<long long>(tally.faults));
    std::fflush(stdout);
    if (resident.back() == 0) break;
  }
  for (std::thread& client : clients) client.join();
  bool good = false;
  try {
    good = ends_idle(flags);
  } catch (const std::exception& error) {
    tally.fault(error.what());
  }
  good = memory_is_flat(resident) && good;
  for (const auto& [what, count] : tally.kinds) {
    std::printf("fault, %lld times: %s\n", static_cast<long long>(count), what.c_str());
  }
  std::printf("%s\n", good && tally.faults == 0 ? "passed" : "FAILED");
  return good && tally.faults == 0 ? 0 : 1;
}

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--port") {
      flags.port = static_cast<uint16_t>(std::stoi(value));
    } else if (flag == "--pid") {
      flags.pid = std::stoi(value);
    } else if (flag == "--minutes") {
      flags.minutes = std::stod(value);
    } else if (flag == "--clients") {
      flags.clients = std::stoi(value);
    } else if (flag == "--seed") {
      flags.seed = static_cast<unsigned>(std::stoi(value));
    } else if (flag == "--longest") {
      flags.longest = std::stoi(value);
    } else {
      throw Error("there is no flag " + flag, "soak");
    }
  }
  if (argc % 2 == 0 || flags.port == 0 || flags.pid == 0 || flags.minutes <= 0 || flags.clients < 1 ||
      flags.longest < 0) {
    throw Error("needs --port and --pid of a running spark-engine", "soak",
                "benchmarks/soak/run starts both");
  }
  return flags;
}

}  // namespace
}  // namespace spark

int main(int argc, char** argv) {
  try {
    return spark::run(spark::parse(argc, argv));
  } catch (const spark::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.describe().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return 1;
}
