// The benchmark against the real server: synthetic checkpoint, CPU backend, sockets, metrics.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "api/error_object.h"
#include "bench/suites/decode_suite.h"
#include "common/file.h"
#include "engine/checkpoint/synthetic.h"
#include "engine/forward/load_model.h"
#include "engine/serve/service.h"

namespace spark::bench {
namespace {

using namespace std::chrono_literals;

constexpr int32_t kTokens = 24;

std::string checkpoint_folder() {
  static const std::string kFolder = [] {
    const auto path =
        std::filesystem::temp_directory_path() / ("spark-bench-e2e-" + std::to_string(::getpid()));
    engine::create_synthetic_checkpoint(engine::SyntheticPreset::kTiny, 1, path.string(), true);
    return path.string();
  }();
  return kFolder;
}

class RunningServer {
 public:
  explicit RunningServer(std::vector<std::string> keys = {}, bool drafts = false)
      : tokenizer_(text::Tokenizer::from_file(checkpoint_folder() + "/tokenizer.json")),
        model_(
            engine::load_model({.folder = checkpoint_folder(),
                                .threads = 1,
                                .limits = {.max_sequences = 4, .max_context = 1024, .max_step_rows = 64}})),
        http_(engine::HttpOptions{.port = 0}),
        service_(*model_, tokenizer_,
                 {.served_names = {"tiny", "alias"},
                  .api_keys = std::move(keys),
                  .version = "e2e",
                  .engine = {.speculation = {.max_drafts = drafts ? 5 : 0, .adaptive = false}}}),
        thread_([this] { http_.run(service_); }) {}
  ~RunningServer() { stop(); }

  std::string address() const { return http_.address(); }
  void stop() {
    if (!thread_.joinable()) return;
    http_.drain(0);
    thread_.join();
  }

 private:
  text::Tokenizer tokenizer_;
  std::unique_ptr<engine::Decoder> model_;
  engine::HttpServer http_;
  engine::Service service_;
  std::thread thread_;
};

Case short_case() {
  return {.name = "short",
          .title = "",
          .prompt = "Say hello.",
          .thinking = false,
          .max_tokens = kTokens,
          .fixed_length = true};
}

// Somebody else's stream, from construction to destruction.
class ForeignStream {
 public:
  explicit ForeignStream(const std::string& address) : client_({address, ""}, &stop_) {
    Case endless = short_case();
    endless.max_tokens = 900;
    const std::string payload = chat_payload(endless, "tiny", 0);
    thread_ = std::thread([this, payload] {
      while (!stop_) {
        client_.post_stream("/v1/chat/completions", payload, 60, [this](std::string_view, double) {
          begun_ = true;
          return Heard::kProgress;
        });
      }
    });
    while (!begun_) std::this_thread::sleep_for(1ms);
  }
  ~ForeignStream() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> begun_{false};
  HttpClient client_;
  std::thread thread_;
};

void wait_until_idle(const HttpClient& client) {
  for (int i = 0; i < 2000; ++i) {
    const ServerCounters now = read_counters(client);
    if (now.running + now.waiting == 0) return;
    std::this_thread::sleep_for(5ms);
  }
  FAIL() << "the server stays busy";
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.describe();
  }
  return "";
}

TEST(BenchE2e, MeasuresEveryPointAndAccountsForEveryRequest) {
  RunningServer server;
  const HttpClient client({server.address() + "/v1/", ""});
  EXPECT_EQ(client.base_url(), server.address());
  EXPECT_EQ(served_version(client), "e2e");
  EXPECT_EQ(served_model(client), "tiny");
  const ServerCounters before = read_counters(client);

  Report report;
  report.model = served_model(client, "alias");
  DecodeSuiteOptions options;
  options.cases = {short_case()};
  options.min_samples = options.max_samples = 2;
  std::vector<std::string> lines;
  run_decode_suite(client, report.model, options, report,
                   [&](const std::string& line) { lines.push_back(line); });

  ASSERT_EQ(report.points.size(), 2u);
  EXPECT_TRUE(report.discarded.empty());
  EXPECT_FALSE(report.failed());
  EXPECT_EQ(lines.size(), 3u);  // the warm-up and two rounds
  std::set<std::string> outputs;
  int rates = 0;  // a sample has none if all its text came in one read
  for (const DecodePoint& point : report.points) {
    ASSERT_EQ(point.samples.size(), 2u);
    for (const DecodeSample& sample : point.samples) {
      ASSERT_EQ(sample.receipts.size(), static_cast<size_t>(point.concurrency));
      rates += sample.metrics.decode_window_tps.value_or(0) > 0 ? 1 : 0;
      for (const Receipt& receipt : sample.receipts) {
        EXPECT_TRUE(receipt.ok) << receipt.error;
        EXPECT_EQ(receipt.completion_tokens, kTokens);
        EXPECT_GT(receipt.prompt_tokens, 3);
        EXPECT_EQ(receipt.finish_reason, "length");
        EXPECT_EQ(receipt.reasoning_chars, 0);
        EXPECT_GT(receipt.content_chars, 0);
        EXPECT_LT(receipt.start_s, receipt.first_s);
        EXPECT_LE(receipt.first_s, receipt.last_s);
        EXPECT_LE(receipt.last_s, receipt.end_s);
        outputs.insert(receipt.output_sha256);
      }
    }
  }
  EXPECT_EQ(outputs.size(), 1u) << "greedy answers differ";
  EXPECT_GT(rates, 0);
  // Warm-up and two samples of one stream, and of two.
  EXPECT_EQ(read_counters(client).finished - before.finished, 9);

  const Json json = report_json(report);
  const std::string table = report_table(json, "fresh");
  EXPECT_EQ(table, report_table(parse_json(json.dump(2), "stored"), "stored"));
  EXPECT_NE(table.find("short-c2  2"), std::string::npos) << table;
}

TEST(BenchE2e, ReadsWhatBecameOfDrafts) {
  RunningServer server({}, true);
  const HttpClient client({server.address(), ""});
  Report report;
  report.model = "tiny";
  DecodeSuiteOptions options;
  options.cases = {short_case()};
  options.concurrency = {2};
  options.min_samples = options.max_samples = 2;
  run_decode_suite(client, "tiny", options, report, [](const std::string&) {});
  ASSERT_EQ(report.points.size(), 1u);
  for (const DecodeSample& sample : report.points[0].samples) {
    ASSERT_TRUE(sample.tokens_per_step.has_value());
    EXPECT_GE(*sample.tokens_per_step, 1);
    EXPECT_LE(*sample.tokens_per_step, 6);
    for (const Receipt& receipt : sample.receipts) EXPECT_EQ(receipt.completion_tokens, kTokens);
  }
  const ServerCounters counters = read_counters(client);
  EXPECT_GT(counters.drafts, 0);
  EXPECT_GT(counters.draft_tokens, counters.drafts);
  EXPECT_GT(counters.accepted_tokens, 0);
}

// It begins before the sample and outlives it, so it never enters the counter of finished requests.
TEST(BenchE2e, AForeignStreamThatOutlivesTheSampleDiscardsIt) {
  RunningServer server;
  const HttpClient client({server.address(), ""});
  std::unique_ptr<ForeignStream> foreign;
  // The first attempt meets the stranger, who comes when the service has been found idle.
  Case slow = short_case();
  slow.max_tokens = 400;
  std::thread stranger([&] {
    while (read_counters(client).running == 0) std::this_thread::sleep_for(1ms);
    foreign = std::make_unique<ForeignStream>(server.address());
  });
  std::vector<DiscardedSample> discarded;
  const std::string message = message_of([&] {
    run_wave(client, "point", {chat_payload(slow, "tiny", 0)}, {.idle_timeout_s = 0, .retries = 3},
             discarded);
  });
  stranger.join();
  foreign.reset();
  ASSERT_FALSE(discarded.empty());
  EXPECT_EQ(discarded[0].label, "point");
  EXPECT_GE(discarded[0].foreign, 1);
  EXPECT_NE(message.find("stop the other clients"), std::string::npos) << message;

  // Alone again, the same wave counts.
  wait_until_idle(client);
  discarded.clear();
  const Wave wave = run_wave(client, "point", {chat_payload(slow, "tiny", 0)}, {}, discarded);
  EXPECT_TRUE(discarded.empty());
  EXPECT_EQ(wave.receipts.at(0).completion_tokens, 400);
  EXPECT_EQ(wave.delta.finished, 1);
}

// It begins and ends within the sample.
TEST(BenchE2e, AForeignRequestWithinTheSampleDiscardsIt) {
  RunningServer server;
  const HttpClient client({server.address(), ""});
  Case slow = short_case();
  slow.max_tokens = 600;
  Case quick = short_case();
  quick.max_tokens = 2;
  Receipt theirs;
  std::thread stranger([&] {
    while (read_counters(client).running == 0) std::this_thread::sleep_for(1ms);
    theirs = stream_chat(client, chat_payload(quick, "tiny", 0), {.stall_timeout_s = 60});
  });
  std::vector<DiscardedSample> discarded;
  const Wave wave = run_wave(client, "point", {chat_payload(slow, "tiny", 0)}, {}, discarded);
  stranger.join();
  EXPECT_TRUE(theirs.ok) << theirs.error;
  ASSERT_EQ(discarded.size(), 1u);
  EXPECT_EQ(discarded[0].foreign, 1);
  EXPECT_TRUE(wave.receipts.at(0).ok);
  EXPECT_EQ(wave.delta.finished, 1);
}

TEST(BenchE2e, FailuresKeepTheirReasonAndEnterNoMean) {
  RunningServer server;
  const HttpClient client({server.address(), ""});
  Case greedy = short_case();
  greedy.max_tokens = 100000;  // more than the context
  Report report;
  report.model = "tiny";
  DecodeSuiteOptions options;
  options.cases = {greedy};
  options.concurrency = {1};
  options.min_samples = options.max_samples = 2;
  run_decode_suite(client, "tiny", options, report, [](const std::string&) {});
  EXPECT_TRUE(report.failed());
  EXPECT_EQ(report.points.at(0).failed_requests(), 2u);
  EXPECT_TRUE(report.points[0].samples.at(0).receipts.at(0).refused);
  EXPECT_TRUE(report.discarded.empty());
  const std::string table = report_table(report_json(report), "fresh");
  EXPECT_NE(table.find("FAIL: short-c1: a request failed: HTTP 400: This model's context has 1024"),
            std::string::npos)
      << table;
  const Json json = report_json(report);
  EXPECT_EQ(json["suites"]["decode"]["points"]["short-c1"]["tps"]["n"], 0);
}

TEST(BenchE2e, SaysWhatIsWrongWithTheService) {
  const auto ask = [](const std::string& url, const std::string& key = "", const std::string& model = "") {
    return message_of([&] { served_model(HttpClient({url, key}), model); });
  };
  std::string address;
  {
    RunningServer server({"sesame"});
    address = server.address();
    EXPECT_NE(ask(address).find("--api-key-file"), std::string::npos);
    EXPECT_NE(ask(address, "wrong").find("HTTP 401"), std::string::npos);
    EXPECT_EQ(ask(address, "sesame"), "");
    EXPECT_NE(ask(address, "sesame", "huge").find("it serves: tiny, alias"), std::string::npos);
    EXPECT_NE(ask(address + "/other").find("HTTP 40"), std::string::npos);
    EXPECT_THROW(served_model(HttpClient({"https" + address.substr(4), ""})), Unreachable);
  }
  EXPECT_THROW(served_model(HttpClient({address, ""})), Unreachable);
  EXPECT_THROW(read_counters(HttpClient({address, ""})), Unreachable);
  for (const char* url :
       {"", "127.0.0.1:8000", "ftp://x", "http://", "https:///x", "http://name:word@host", "http://\xff"}) {
    EXPECT_NE(ask(url).find("the service's address"), std::string::npos) << url;
  }
  EXPECT_NE(ask("http://127.0.0.1:1", "two\nlines").find("the API key"), std::string::npos);
}

TEST(BenchE2e, AServiceThatGoesAwayLeavesFailedReceipts) {
  RunningServer server;
  const HttpClient client({server.address(), ""});
  Case slow = short_case();
  slow.max_tokens = 900;
  std::thread killer([&] {
    while (read_counters(client).running == 0) std::this_thread::sleep_for(1ms);
    server.stop();
  });
  const Receipt receipt = stream_chat(client, chat_payload(slow, "tiny", 0), {.stall_timeout_s = 60});
  killer.join();
  EXPECT_FALSE(receipt.ok);
  EXPECT_FALSE(receipt.refused);
  EXPECT_FALSE(receipt.error.empty());
  std::vector<DiscardedSample> discarded;
  EXPECT_THROW(run_wave(client, "point", {chat_payload(slow, "tiny", 0)}, {}, discarded), Unreachable);
}

TEST(BenchE2e, CancellingEndsAStreamAtOnce) {
  RunningServer server;
  std::atomic<bool> cancelled{false};
  const HttpClient client({server.address(), ""}, &cancelled);
  int pieces = 0;
  const HttpReply reply = client.post_stream("/v1/chat/completions", chat_payload(short_case(), "tiny", 0),
                                             60, [&](std::string_view, double) {
                                               cancelled = ++pieces > 0;
                                               return Heard::kProgress;
                                             });
  EXPECT_EQ(reply.error, "cancelled");
  cancelled = false;
  wait_until_idle(client);
  // What the reader throws ends the transfer, comes out here, and leaves the client usable.
  EXPECT_THROW(client.post_stream("/v1/chat/completions", chat_payload(short_case(), "tiny", 0), 60,
                                  [](std::string_view, double) -> Heard { throw Error("unreadable"); }),
               Error);
  wait_until_idle(client);
  EXPECT_TRUE(stream_chat(client, chat_payload(short_case(), "tiny", 0), {.stall_timeout_s = 60}).ok);
}

// A service that says what a test wants.
class FakeService : public engine::HttpHandler {
 public:
  FakeService() : http_(engine::HttpOptions{.port = 0}), thread_([this] { http_.run(*this); }) {}
  ~FakeService() override {
    http_.drain(0);
    thread_.join();
  }
  std::string address() const { return http_.address(); }

  std::function<std::string()> metrics;
  std::string stream;

  std::optional<engine::HttpResponse> screen(const engine::HttpRequest&) override { return std::nullopt; }
  void handle(engine::HttpRequest request, std::shared_ptr<engine::HttpExchange> exchange) override {
    const bool is_metrics = request.path == "/metrics";
    exchange->respond({.content_type = "text/plain", .body = is_metrics ? metrics() : stream});
  }
  engine::HttpResponse fault(int status, const std::string&) override { return {.status = status}; }
  void give_up() override {}

 private:
  engine::HttpServer http_;
  std::thread thread_;
};

std::string metrics_page(int finished) {
  return "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
         "vllm:request_success_total{finished_reason=\"stop\"} " +
         std::to_string(finished) + "\n";
}

std::string stream_of(const std::string& tokens) {
  return "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n"
         "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"total_tokens\":1,\"completion_tokens\":" +
         tokens + "}}\n\ndata: [DONE]\n\n";
}

TEST(BenchE2e, CountersThatTellNothingAreNotTakenForAnIdleService) {
  FakeService service;
  const HttpClient client({service.address(), ""});
  for (const char* page :
       {"", "other_metric 1\n", "vllm:num_requests_running 0\n", "<html>", "x{a=\"", "x{a"}) {
    service.metrics = [page] { return page; };
    EXPECT_NE(message_of([&] { read_counters(client); }), "") << page;
  }
  service.metrics = [] { return metrics_page(7); };
  EXPECT_EQ(read_counters(client).finished, 7);
}

TEST(BenchE2e, ARestartedServiceOrImpossibleUsageDoesNotCount) {
  FakeService service;
  const HttpClient client({service.address(), ""});
  std::atomic<int> scrapes{0};
  service.stream = stream_of("2");
  service.metrics = [&] { return metrics_page(scrapes++ == 0 ? 1000 : 0); };
  std::vector<DiscardedSample> discarded;
  const std::string message =
      message_of([&] { run_wave(client, "point", {"{}"}, {.retries = 0}, discarded); });
  EXPECT_NE(message.find("do not account for it"), std::string::npos) << message;
  EXPECT_EQ(discarded.size(), 1u);

  for (const char* tokens : {"-2", "0", "9223372036854775807"}) {
    service.stream = stream_of(tokens);
    const Receipt receipt = stream_chat(client, "{}", {.stall_timeout_s = 10});
    EXPECT_FALSE(receipt.ok);
    EXPECT_NE(receipt.error.find("the usage object counts"), std::string::npos) << receipt.error;
  }
  service.stream = stream_of("2");
  EXPECT_TRUE(stream_chat(client, "{}", {.stall_timeout_s = 10}).ok);
  service.stream = "data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n";
  EXPECT_NE(stream_chat(client, "{}", {.stall_timeout_s = 10}).error.find("not valid JSON"),
            std::string::npos);
}

class Cleanup : public testing::Environment {
 public:
  void TearDown() override { std::filesystem::remove_all(checkpoint_folder()); }
};
const auto* const kCleanup = testing::AddGlobalTestEnvironment(new Cleanup);

}  // namespace
}  // namespace spark::bench
