// `spark bench`: measures a live OpenAI-compatible service and writes bench.json.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <thread>

#include "../flag_checks.h"
#include "bench/suites/decode_suite.h"
#include "commands.h"
#include "common/error.h"
#include "common/file.h"
#include "ops/site/deployment_identity.h"
#include "site_options.h"

namespace spark::app {
namespace {

std::atomic<bool> g_interrupted{false};

constexpr size_t kMaxReportBytes = size_t{64} << 20;

struct BenchFlags {
  std::string base_url;
  std::string model;
  std::string api_key_file;
  std::string cases = "prose,code";
  std::vector<int> concurrency = {1, 2};
  size_t min_samples = 3;
  size_t max_samples = 6;
  double precision = 2;
  uint64_t seed = 0;
  double idle_timeout = 300;
  double stall_timeout = 300;
  std::string output;
  std::string report;
  bool json = false;
  bool for_profile = false;  // --cluster-config or --nodes-config says what the service was started from
};

std::string utc_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

std::string host_description() {
  std::string model = "unknown CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
}

std::string api_key(const std::string& file) {
  if (file.empty()) return {};
  std::string key = read_file(file, 4096);
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty()) throw Error("holds no key", file);
  return key;
}

// As in the file; what a server said need not be valid UTF-8.
std::string json_text(const Json& report) {
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print(const Json& report, const std::string& source, bool json) {
  const std::string table = bench::report_table(report, source);
  if (json) {
    std::cout << json_text(report);
    std::cerr << table;
  } else {
    std::cout << table;
  }
}

bench::DecodeSuiteOptions suite_options(const BenchFlags& flags) {
  bench::DecodeSuiteOptions options;
  options.cases = bench::select_cases(flags.cases);
  options.concurrency.clear();  // each once, in the order given
  for (const int streams : flags.concurrency) {
    if (std::find(options.concurrency.begin(), options.concurrency.end(), streams) ==
        options.concurrency.end()) {
      options.concurrency.push_back(streams);
    }
  }
  options.min_samples = flags.min_samples;
  options.max_samples = flags.max_samples;
  options.precision_pct = flags.precision;
  options.seed = flags.seed;
  options.wave.idle_timeout_s = flags.idle_timeout;
  options.wave.stream.stall_timeout_s = flags.stall_timeout;
  return options;
}

// Read before anything is measured: a profile with a fault is told first, not after the run.
Json deployment_of(const SiteOptions& site_options) {
  const ops::Repository repository(site_options.repository);
  const ops::Site site = site_options.load(repository);
  ops::throw_if_any_fault(site);
  return ops::deployment_identity(site);
}

void measure(const BenchFlags& flags, const SiteOptions& site_options, Outcome& outcome) {
  const bench::DecodeSuiteOptions options = suite_options(flags);
  const bench::HttpClient client({flags.base_url, api_key(flags.api_key_file)}, &g_interrupted);
  bench::Report report;
  if (flags.for_profile) report.deployment = deployment_of(site_options);
  report.model = bench::served_model(client, flags.model);
  report.server_version = bench::served_version(client);
  report.started_utc = utc_stamp();
  report.url = client.base_url();
  report.client_version = SPARK_VERSION;
  report.host = host_description();
  report.prompt_set = bench::prompt_set_id();
  report.precision_pct = flags.precision;
  report.min_samples = flags.min_samples;
  report.max_samples = flags.max_samples;
  report.seed = flags.seed;

  const std::string folder = flags.output.empty() ? "results/bench/" + report.started_utc : flags.output;
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error("cannot be created: " + failure.message(), folder);
  const std::string path = folder + "/bench.json";

  std::signal(SIGINT, [](int) { g_interrupted = true; });
  std::signal(SIGTERM, [](int) { g_interrupted = true; });
  try {
    bench::run_decode_suite(client, report.model, options, report,
                            [](const std::string& line) { std::cerr << line << std::endl; });
  } catch (const Error& error) {
    report.aborted = g_interrupted ? "interrupted" : error.describe();
  }
  if (g_interrupted && report.aborted.empty()) report.aborted = "interrupted";
  report.finished_utc = utc_stamp();
  const std::string text = json_text(bench::report_json(report));
  std::optional<Error> unsaved;
  try {
    write_file_atomic(path, text);
  } catch (const Error& error) {
    unsaved = error;
  }
  print(parse_json(text, path), path,
        flags.json);  // also when it could not be saved: it took long to measure
  if (unsaved) throw *unsaved;
  std::cerr << "report: " << path << "\n";
  if (g_interrupted) {
    outcome.code = ExitCode::kInterrupted;
  } else if (!report.aborted.empty()) {
    outcome.code = ExitCode::kAborted;
  } else if (report.failed()) {
    outcome.code = ExitCode::kFindings;
  }
}

void run(const BenchFlags& flags, const SiteOptions& site_options, Outcome& outcome) {
  if (!flags.report.empty()) {
    print(parse_json(read_file(flags.report, kMaxReportBytes), flags.report), flags.report, flags.json);
    return;
  }
  if (flags.base_url.empty()) {
    throw CLI::ValidationError(
        "--base-url", "is missing; give the service's address, e.g. --base-url http://127.0.0.1:8000");
  }
  if (flags.max_samples < flags.min_samples) {
    throw CLI::ValidationError("--max-samples", "is below --min-samples; raise it or lower --min-samples");
  }
  try {
    measure(flags, site_options, outcome);
  } catch (const bench::Unreachable& error) {
    std::cerr << "error: " << error.describe() << "\n";
    outcome.code = ExitCode::kUnreachable;
  }
}

}  // namespace

void add_bench_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure a live service: tokens per second and time to first token, with confidence intervals.\n"
      "The service receives nothing but API requests. Nobody else may use it meanwhile: a sample that "
      "overlaps\n"
      "with foreign traffic is discarded and repeated. With --cluster-config PROFILE before \"bench\" the "
      "report "
      "records\n"
      "the shape of the service, which a reference of that profile must have.");
  command->add_option("--base-url", flags->base_url, "Address of the service, e.g. http://127.0.0.1:8000");
  command->add_option("--model", flags->model, "Model name to ask for (default: the first one served)");
  command->add_option("--api-key-file", flags->api_key_file, "File that holds the bearer key");
  command->add_option("--cases", flags->cases, "Comma-separated: prose, code, prose-fixed, code-fixed")
      ->capture_default_str();
  command->add_option("--concurrency", flags->concurrency, "Streams at a time, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--min-samples", flags->min_samples, "Samples of a point at least")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_option("--max-samples", flags->max_samples, "Samples of a point at most")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command
      ->add_option("--precision", flags->precision,
                   "Wanted half-width of the 95 % interval, percent of the mean")
      ->check(number_between(0.01, 100))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Order in which points are sampled")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--idle-timeout", flags->idle_timeout, "Seconds to wait for the service to be idle")
      ->check(number_between(0, 86400))
      ->capture_default_str();
  command
      ->add_option("--stall-timeout", flags->stall_timeout,
                   "Seconds to wait for a stream's next token before the request counts as failed")
      ->check(number_between(1, 86400))
      ->capture_default_str();
  command->add_option("--output", flags->output, "Folder of the report (default: results/bench/<UTC time>)");
  command->add_option("--report", flags->report, "Print the table of an existing bench.json and exit");
  command->add_flag("--json", flags->json, "Print the report as JSON on stdout, the table on stderr");
  command->callback([flags, &app, &outcome, &options] {
    flags->for_profile = app.count("--cluster-config") + app.count("--nodes-config") > 0;
    run(*flags, options, outcome);
  });
}

}  // namespace spark::app
