// Steps of a start through an SSH client that runs them on this machine, beside programs that stand for a
// node's.
#include "ops/launch/remote_actions.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/file.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

// With -W an API that wants the key "sesame", with a command the node's shell.
constexpr const char* kFakeSsh = R"sh(
forward=
while [ "$1" != -- ]; do [ "$1" != -W ] || forward=$2; shift; done
shift 2
[ -n "$forward" ] || PATH=$S:$PATH HOME=$S exec sh -c "$*"
status='401 Unauthorized' body='{}'
while read -r line && [ -n "${line%?}" ]; do
  case $line in
  "Authorization: Bearer sesame"?) status='200 OK' ;;
  GET*) models=1 ;;
  esac
done
case $status$models in
200*1) body='{"data": [{"id": "m"}]}' ;;
200*) body='{"usage": {"completion_tokens": 1}}' ;;
esac
printf 'HTTP/1.0 %s\r\nContent-Length: %s\r\n\r\n%s' "$status" "${#body}" "$body"
)sh";

class Actions : public testing::Test {
 protected:
  Actions() {
    ::unsetenv("SPARK_API_KEY");
    fs::create_directories(folder_ + "/checkout/bin");
    program("ssh", kFakeSsh);
    program("sudo", "shift\nexec \"$@\"\n");
    program("checkout/bin/spark-guard", "printf 'state=waiting\\nsamples=1\\n'\n");
    site_.profile.deployment.path = folder_ + "/checkout";
  }

  void program(const std::string& path, const std::string& text) const {
    write_file_atomic(folder_ + "/" + path, "#!/bin/sh\nS=" + folder_ + "\n" + text, 0755);
  }
  StepResult perform(StepKind kind) {
    RemoteActionsOptions options;
    options.evidence_folder = folder_ + "/evidence";
    RemoteActions actions(site_, remote_, std::move(options));
    return actions.perform({{kind, "node3", {}}}, {}).front();
  }

  const test::TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
  Site site_ = load_site(Repository(SPARK_SOURCE_DIR), {.profile = "config/cluster-4k.json",
                                                        .nodes = "config/nodes.example.json",
                                                        .site_file = "config/site.example.json"});
  Remote remote_ = Remote({.ssh_program = folder_ + "/ssh", .keep_s = 0});
};

TEST_F(Actions, ARefusedContainerSaysWhyAndKeepsAllThatWasSaid) {
  program("docker", R"sh(
case "$1 $2" in
"container inspect") echo "Error: No such container: x" >&2; exit 1 ;;
esac
echo "WARNING: something else" >&2
echo "docker: open /etc/spark/api.env: no such file or directory" >&2
echo >&2
echo "Run 'docker run --help' for more information" >&2
exit 125
)sh");
  const StepResult result = perform(StepKind::kLaunch);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.problem, "docker run: open /etc/spark/api.env: no such file or directory");
  const std::string kept = read_file(folder_ + "/evidence/node3.start");
  EXPECT_NE(kept.find("WARNING: something else"), std::string::npos) << kept;
  EXPECT_NE(kept.find("docker run --help"), std::string::npos) << kept;
}

TEST_F(Actions, OneLineNeedsNoFile) {
  program("docker", "echo running 1 0 false now sha256:1 image:1\n");
  const StepResult result = perform(StepKind::kArm);
  EXPECT_NE(result.problem.find("runs already"), std::string::npos) << result.problem;
  EXPECT_FALSE(fs::exists(folder_ + "/evidence"));
}

TEST_F(Actions, AnApiThatRefusesTheKeyIsNotAskedAgain) {
  program("docker", "[ \"$1\" != container ] || echo running 1 0 false now sha256:1 image:1\n");
  program("checkout/bin/spark-guard", "printf 'state=watching\\nsamples=1\\n'\n");
  site_.profile.deployment.ready_timeout_seconds = 30;
  StepResult result = perform(StepKind::kReady);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.problem.find("the API wants a key, and spark finds none"), std::string::npos)
      << result.problem;
  site_.profile.secret_environment_file = folder_ + "/api.env";
  write_file_atomic(folder_ + "/api.env", "VLLM_API_KEY=other\n");
  result = perform(StepKind::kReady);
  EXPECT_NE(result.problem.find("refuses the key that spark has"), std::string::npos) << result.problem;
  EXPECT_EQ(result.problem.find("other"), std::string::npos) << "no key in a message";
  write_file_atomic(folder_ + "/api.env", "VLLM_API_KEY=sesame\n");
  result = perform(StepKind::kReady);
  EXPECT_TRUE(result.ok) << result.problem;
  EXPECT_EQ(result.values["model"], "m");
}

}  // namespace
}  // namespace spark::ops
