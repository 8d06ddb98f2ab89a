// The script that nodes run, and reading what it prints.
#include "ops/watch/sample.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/file.h"
#include "common/process.h"
#include "ops/watch/script.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

// Runs the script with a PATH on which `programs` stand for a node's own.
class WatchScript : public testing::Test {
 protected:
  void program(const std::string& name, const std::string& body) {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  NodeSample run(const WatchQuestion& question) {
    const char* path = std::getenv("PATH");
    ProcessOptions options;
    options.environment = {"PATH=" + folder_.string() + ":" + (path == nullptr ? "/usr/bin:/bin" : path)};
    const ProcessResult result = run_process({"sh", "-c", watch_script(question)}, options);
    text_ = result.output + result.error;
    return read_watch_answer("node1", result.output);
  }

  const test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
  std::string text_;
};

TEST_F(WatchScript, ReadsThisMachine) {
  const NodeSample sample = run({.service = "no-such-service"});
  ASSERT_EQ(sample.answer, WatchAnswer::kAnswered) << text_;
  EXPECT_EQ(sample.boot.size(), 36u);
  EXPECT_GT(sample.up_s, 0);
  ASSERT_TRUE(sample.available_kib && sample.total_kib);
  EXPECT_LE(*sample.available_kib, *sample.total_kib);
  EXPECT_TRUE(sample.swapped_in_pages);
  EXPECT_NE(sample.service.state, ServiceState::kRunning);
  EXPECT_FALSE(sample.guard);
  EXPECT_FALSE(sample.api);
}

TEST_F(WatchScript, RunningAndEndedContainers) {
  program("docker", "echo \"running $PPID 0 false 2026-11-29T20:00:00.5Z\"");
  const NodeSample runs = run({.service = "dsv41", .container = true});
  EXPECT_EQ(runs.service.state, ServiceState::kRunning) << text_;
  EXPECT_EQ(runs.service.kind, "container");
  EXPECT_EQ(runs.service.started, "2026-11-29T20:00:00.5Z");
  EXPECT_GT(runs.service.pid, 0);
  EXPECT_FALSE(runs.service.exit_code);
  program("docker", "echo 'exited 0 137 true 2026-11-29T20:00:00.5Z'");
  const NodeSample ended = run({.service = "dsv41", .container = true});
  EXPECT_EQ(ended.service.state, ServiceState::kStopped) << text_;
  EXPECT_EQ(ended.service.exit_code, 137);
  EXPECT_TRUE(ended.service.out_of_memory);
}

TEST_F(WatchScript, EngineThatFailsHangsOrKnowsNothing) {
  program("docker", "echo 'Error: No such container: dsv41' >&2; exit 1");
  NodeSample sample = run({.service = "dsv41", .container = true});
  EXPECT_EQ(sample.service.state, ServiceState::kAbsent) << text_;
  EXPECT_EQ(sample.engine_problem, "");
  program("docker",
          "echo; echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1");
  sample = run({.service = "dsv41", .container = true, .known_pid = ::getpid()});
  EXPECT_EQ(sample.service.state, ServiceState::kUnknown) << text_;
  EXPECT_EQ(sample.engine_problem,
            "fails: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.");
  EXPECT_EQ(sample.alive.count(::getpid()), 1u) << text_;
  program("docker", "exec sleep 30");
  sample = run({.service = "dsv41", .container = true, .limit_s = 0.5});
  EXPECT_EQ(sample.answer, WatchAnswer::kAnswered);
  EXPECT_NE(sample.engine_problem.find("no answer within 0.5 s"), std::string::npos) << text_;
}

TEST_F(WatchScript, UnitsOfSystemd) {
  program("systemctl",
          "printf 'LoadState=loaded\\nActiveState=active\\nMainPID=99\\nExecMainStatus=0\\nResult=success\\n"
          "ActiveEnterTimestampMonotonic=4711\\n'");
  NodeSample sample = run({.service = "dsv41"});
  EXPECT_EQ(sample.service.state, ServiceState::kRunning) << text_;
  EXPECT_EQ(sample.service.kind, "unit");
  EXPECT_EQ(sample.service.pid, 99);
  EXPECT_EQ(sample.service.started, "4711");
  program("systemctl",
          "printf 'LoadState=loaded\\nActiveState=failed\\nExecMainStatus=9\\nResult=oom-kill\\n'");
  sample = run({.service = "dsv41"});
  EXPECT_EQ(sample.service.state, ServiceState::kStopped) << text_;
  EXPECT_EQ(sample.service.exit_code, 9);
  EXPECT_TRUE(sample.service.out_of_memory);
  program("systemctl", "printf 'LoadState=not-found\\nActiveState=inactive\\n'");
  EXPECT_EQ(run({.service = "dsv41"}).service.state, ServiceState::kAbsent) << text_;
}

TEST_F(WatchScript, GpuValuesAndFailures) {
  program("nvidia-smi", "echo '612, 12.31, 97, [N/A]'");
  NodeSample sample = run({.service = "dsv41", .gpu = true});
  ASSERT_TRUE(sample.gpu) << text_;
  EXPECT_EQ(sample.gpu->clock_mhz, 612);
  EXPECT_EQ(sample.gpu->power_w, 12.31);
  EXPECT_EQ(sample.gpu->utilisation, 97);
  EXPECT_FALSE(sample.gpu->temperature_c);
  program("nvidia-smi", "echo 'Unable to determine the device handle'; exit 15");
  sample = run({.service = "dsv41", .gpu = true});
  EXPECT_FALSE(sample.gpu);
  EXPECT_NE(sample.gpu_problem.find("Unable to determine"), std::string::npos) << text_;
}

const char* const kPage =
    "# HELP vllm:num_requests_running x\nvllm:num_requests_running{model_name=\"m\"} 2.0\n"
    "vllm:num_requests_waiting{model_name=\"m\"} 1.0\nvllm:generation_tokens_total{model_name=\"m\"} 4711.0\n"
    "vllm:iteration_tokens_total_count{model_name=\"m\"} "
    "99\nvllm:iteration_tokens_total_sum{model_name=\"m\"} 5\n"
    "vllm:prompt_tokens_total{model_name=\"m\"} 12\nvllm:e2e_request_latency_seconds_count 7\n";

TEST_F(WatchScript, MetricsThroughCurl) {
  write_file_atomic(folder_ / "page", std::string(kPage));
  program("curl", "cat " + (folder_ / "page").string() + "; printf '\\nhttp 200\\n'");
  NodeSample sample = run({.service = "dsv41", .metrics_url = "http://127.0.0.1:1/metrics"});
  ASSERT_TRUE(sample.api) << text_;
  EXPECT_EQ(sample.api->problem, "");
  EXPECT_EQ(sample.api->running, 2);
  EXPECT_EQ(sample.api->waiting, 1);
  EXPECT_EQ(sample.api->progress.size(), 3u);
  EXPECT_EQ(sample.api->progress.at("vllm:iteration_tokens_total_count"), 99);
  program("curl", "echo 'curl: (7) Failed to connect to 127.0.0.1 port 1: Connection refused' >&2; exit 7");
  sample = run({.service = "dsv41", .metrics_url = "http://127.0.0.1:1/metrics"});
  ASSERT_TRUE(sample.api) << text_;
  EXPECT_EQ(sample.api->problem,
            "cannot be asked: Failed to connect to 127.0.0.1 port 1: Connection refused");
  program("curl", "printf 'internal error\\nhttp 500\\n'");
  EXPECT_EQ(run({.service = "dsv41", .metrics_url = "http://127.0.0.1:1/metrics"}).api->problem,
            "answers with HTTP status 500");
  program("curl", "exec sleep 30");
  EXPECT_EQ(
      run({.service = "dsv41", .metrics_url = "http://127.0.0.1:1/metrics", .limit_s = 0.5}).api->problem,
      "gives no answer within 0.5 s");
}

// A server that wants the key, and programs that note how they were called.
TEST_F(WatchScript, AnApiWithAKeyIsToldItThroughAPipe) {
  write_file_atomic(folder_ / "page", std::string(kPage));
  const std::string place = folder_.string();
  program("curl",
          "echo \"$*\" >>" + place + "/calls; while read -r line; do [ \"$line\" != 'Authorization: Bearer " +
              "abc$1' ] || known=1; done; [ -n \"$known\" ] || { printf '\\nhttp 401\\n'; exit; }; cat " +
              place + "/page; printf '\\nhttp 200\\n'");
  WatchQuestion question = {.service = "dsv41", .metrics_url = "http://127.0.0.1:1/metrics"};
  EXPECT_EQ(run(question).api->problem,
            "answers with HTTP status 401: it wants another key; set SPARK_API_KEY, or "
            "engine.secret_environment_file");
  write_file_atomic(folder_ / "shell.env", std::string("SPARK_API_KEY='abc$1'\n"));
  write_file_atomic(folder_ / "docker.env", std::string("# keys\nSPARK_API_KEY=old\nSPARK_API_KEY=abc$1\n"));
  write_file_atomic(folder_ / "key", std::string(" abc$1\n"));
  std::vector<ApiKeySource> sources(4);
  sources[0].given = "abc$1";
  sources[0].secret_file = "/none";
  sources[1].secret_file = place + "/shell.env";
  sources[2].secret_file = place + "/docker.env";
  sources[2].plain_variables = true;
  sources[3].secret_file = "/none";
  sources[3].key_file = place + "/key";
  for (ApiKeySource& source : sources) {
    source.variable = "SPARK_API_KEY";
    question.api_key = source;
    const NodeSample sample = run(question);
    ASSERT_TRUE(sample.api) << text_;
    EXPECT_EQ(sample.api->problem, "") << text_;
    EXPECT_EQ(sample.api->running, 2);
    EXPECT_EQ(text_.find("abc"), std::string::npos) << text_;
  }
  EXPECT_EQ(read_file(folder_ / "calls").find("abc"), std::string::npos);
}

TEST(WatchAnswers, GuardOfThisBoot) {
  const std::string status =
      "spark-watch 1\nboot b1\nup 1000.00\nguard state=watching\nguard reason=\nguard phase=steady\n"
      "guard threshold_kib=3145728\nguard interval_ms=2000\nguard minimum_kib=5000000\nguard "
      "sampled_ms=999500\n"
      "guard pid=77\nguard boot=b1\nguard alive\nprocess 77 12345\n";
  const NodeSample sample = read_watch_answer("node1", status + "end\n");
  ASSERT_TRUE(sample.guard);
  EXPECT_TRUE(sample.guard->alive);
  EXPECT_EQ(sample.guard->threshold_kib, 3145728);
  EXPECT_NEAR(*sample.guard->silent_s, 0.5, 1e-6);
  // Neither engine nor systemd: the guard's process is the service.
  EXPECT_EQ(sample.service.state, ServiceState::kRunning);
  EXPECT_EQ(sample.service.pid, 77);
  // A status that an earlier boot left behind says nothing.
  std::string old = status;
  old.replace(old.find("boot=b1"), 7, "boot=b0");
  EXPECT_FALSE(read_watch_answer("node1", old + "end\n").guard);
}

TEST(WatchAnswers, CutAndGarbledAnswersAreNoAnswers) {
  EXPECT_EQ(read_watch_answer("node1", "").answer, WatchAnswer::kFailed);
  EXPECT_EQ(read_watch_answer("node1", "spark-watch 1\nboot b1\n").answer, WatchAnswer::kFailed);
  const std::string whole =
      "hello from .profile\nspark-watch 1\nboot b1\nup 12.5\navailable 99999999999999999999\ngpu values x,,\n"
      "container state\nunit ActiveState\nguard\nguard pid=-\nprocess\napi\napi http\napi vllm:x\nend\n";
  const NodeSample sample = read_watch_answer("node1", whole);
  EXPECT_EQ(sample.answer, WatchAnswer::kAnswered);
  EXPECT_FALSE(sample.available_kib);
  uint64_t state = 7;
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
    for (int change = 0; change < 5; ++change) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      text[(state >> 33) % text.size()] = static_cast<char>(state >> 20);
    }
    read_watch_answer("node1", text);  // must not crash
  }
}

TEST(WatchAnswers, MetricsAddresses) {
  EXPECT_EQ(metrics_url("http://127.0.0.1:8000/v1/models"), "http://127.0.0.1:8000/metrics");
  EXPECT_EQ(metrics_url("https://api.example"), "https://api.example/metrics");
  EXPECT_EQ(metrics_url("ftp://x/y"), "");
  EXPECT_EQ(metrics_url("http:///x"), "");
}

}  // namespace
}  // namespace spark::ops
