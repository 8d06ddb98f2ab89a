// The scripts of the steps, run by the real shell beside programs that stand for Docker, systemd and the
// guard: what is called, in which order, and what is refused.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/file.h"
#include "common/process.h"
#include "ops/launch/node_scripts.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFakeGuard = R"sh(
case $1 in
status) [ -f "$S/guard" ] && cat "$S/guard" ;;
switch) echo "guard switch" >>"$S/calls"; sed -i 's/^phase=.*/phase=steady/' "$S/guard" ;;
esac
)sh";

// Beside a process: it waits for the pid file, and leaves when that process has ended.
constexpr const char* kFakeProcessGuard = R"sh(
pid=
[ ! -s "$S/spark-launch/svc.pid" ] || read -r pid <"$S/spark-launch/svc.pid"
case $1 in
status)
  [ -f "$S/guard" ] || exit 1
  if [ -n "$pid" ] && grep -qs . "/proc/$pid/cmdline"; then # a dead child that nobody has waited for has none
    sed -i 's/^state=.*/state=watching/' "$S/guard"
  elif grep -q watching "$S/guard"; then
    rm -f "$S/guard"
    exit 1
  fi
  cat "$S/guard" ;;
switch) sed -i 's/^phase=.*/phase=steady/' "$S/guard" ;;
*) printf 'state=waiting\nsamples=1\nphase=startup\nthreshold_kib=5242880\ninterval_ms=250\navailable_kib=9999999\nguard_pid=%s\n' $$ >"$S/guard.new"
  mv "$S/guard.new" "$S/guard"
  trap 'rm -f "$S/guard"; exit 0' TERM
  while [ -f "$S/guard" ]; do sleep 0.05; done ;;
esac
)sh";

constexpr const char* kFakeSystemdRun = R"sh(
unit=
for word; do case $word in --unit=*) unit=${word#--unit=} ;; esac; done
echo "systemd-run $unit" >>"$S/calls"
echo "$*" >>"$S/lines"
case $unit in
*-memguard)
  [ ! -e "$S/refuse" ] || { echo "Job failed" >&2; exit 1; }
  printf 'state=waiting\nsamples=1\nphase=startup\nthreshold_kib=5242880\ninterval_ms=250\navailable_kib=9999999\nguard_pid=1\n' >"$S/guard" ;;
*) echo active >"$S/unit.$unit"; "$S/watch" ;;
esac
)sh";

constexpr const char* kFakeSystemctl = R"sh(
verb=$1
for last; do :; done
unit=${last%.service}
case $verb in
daemon-reload) echo "systemctl daemon-reload" >>"$S/calls" ;;
start) echo "systemctl start $unit" >>"$S/calls"; echo active >"$S/unit.$unit"; "$S/watch" ;;
show)
  case $* in *FragmentPath*) [ ! -e "$S/transient" ] || echo "$S/transient"; exit 0 ;; esac
  state=inactive load=not-found
  [ ! -f "$S/unit.$unit" ] || { state=$(cat "$S/unit.$unit"); load=loaded; }
  printf 'LoadState=%s\nActiveState=%s\nMainPID=%s\nExecMainStatus=0\n' "$load" "$state" "$(cat "$S/pid" 2>/dev/null || echo 42)" ;;
stop | kill)
  echo "systemctl $verb $unit" >>"$S/calls"
  rm -f "$S/guard"
  case $unit in *-memguard) ;; *) rm -f "$S/unit.$unit" ;; esac ;;
esac
)sh";

// A container is a file "STATUS ID".
constexpr const char* kFakeDocker = R"sh(
for last; do :; done
case "$1 $2" in
"container inspect")
  [ -f "$S/c.$last" ] || { echo "Error: No such container: $last" >&2; exit 1; }
  read -r status id <"$S/c.$last"
  echo "$status $id 0 false 2026-11-29T22:00:00Z sha256:1 image:1" ;;
run*)
  echo "docker run" >>"$S/calls"
  echo "running new" >"$S/c.svc"
  "$S/watch"
  echo new ;;
stop*) echo "docker stop" >>"$S/calls"; read -r status id <"$S/c.$last"; echo "exited $id" >"$S/c.$last"; rm -f "$S/guard" ;;
start*) echo "docker start" >>"$S/calls"; read -r status id <"$S/c.$last"; echo "running $id" >"$S/c.$last"; "$S/watch" ;;
kill*) echo "docker kill" >>"$S/calls"; read -r status id <"$S/c.$last"; echo "exited $id" >"$S/c.$last" ;;
rename*) echo "docker rename $2 $3" >>"$S/calls"; mv "$S/c.$2" "$S/c.$3" ;;
rm*) echo "docker rm" >>"$S/calls"; rm -f "$S/c.$last" ;;
esac
)sh";

class NodeScript : public testing::Test {
 protected:
  NodeScript() {
    fs::create_directories(folder_ + "/bin");
    fs::create_directories(folder_ + "/checkout/bin");
    program("bin/docker", kFakeDocker);
    program("bin/systemctl", kFakeSystemctl);
    program("bin/systemd-run", kFakeSystemdRun);
    program("bin/sudo", "shift\nexec \"$@\"\n");
    program("checkout/bin/spark-guard", kFakeGuard);
    program("watch", "sed -i 's/^state=.*/state=watching/' \"$S/guard\"\n");
    launch_.node = "node2";
    launch_.ssh_user = "spark";
    launch_.service = "svc";
    launch_.working_directory = folder_ + "/checkout";
    launch_.command = {"docker", "run", "-d", "--name", "svc", "image:1"};
    launch_.guard = {"svc-memguard", GuardPhase::kStartup, 5, 0.25, 120};
    context_.steady = {"svc-memguard", GuardPhase::kSteady, 3, 2, 0};
    context_.run = "run-1";
    context_.owner = "\"by\":\"me\"}";
    context_.claim = "{\"run\":\"run-1\",\"by\":\"me\"}";
  }

  void program(const std::string& path, const std::string& text) const {
    write_file_atomic(folder_ + "/" + path, "#!/bin/sh\nS=" + folder_ + "\n" + text, 0755);
  }
  void container(const std::string& name, const std::string& text) const {
    write_file_atomic(folder_ + "/c." + name, text + "\n");
  }
  std::string container(const std::string& name) const {
    const std::string path = folder_ + "/c." + name;
    return fs::exists(path) ? read_file(path) : std::string();
  }
  void use_unit() {
    launch_.runtime = LaunchRuntime::kUnit;
    launch_.command = {"/opt/spark-engine", "--flag"};
    launch_.memory_max_gib = 112;
  }

  ProcessResult run(StepKind kind, std::map<std::string, std::string> parameters = {}) {
    fs::remove(folder_ + "/calls");
    std::string script = step_script(launch_, {kind, "node2", std::move(parameters)}, context_);
    for (const std::string place :
         {"/run/spark-launch", "/run/systemd/system", "/run/spark-guard", "/var/log/spark"}) {
      const std::string here = folder_ + place.substr(place.rfind('/'));
      for (size_t at = 0; (at = script.find(place, at)) != std::string::npos; at += here.size())
        script.replace(at, place.size(), here);
    }
    return run_process({"sh"}, {.input = std::move(script),
                                .environment = {"PATH=" + folder_ + "/bin:/usr/bin:/bin", "HOME=" + folder_,
                                                "XDG_RUNTIME_DIR=" + folder_},
                                .timeout_s = 60});
  }
  // Arms and launches; the process's id.
  std::string launch_process() {
    expect_done(StepKind::kArm);
    const ProcessResult launched = run(StepKind::kLaunch);
    EXPECT_EQ(launched.exit_code, 0) << launched.error;
    return read_values(launched.output)["id"];
  }
  void use_process(std::vector<std::string> command) {
    program("checkout/bin/spark-guard", kFakeProcessGuard);
    launch_.runtime = LaunchRuntime::kProcess;
    launch_.systemd = false;
    launch_.command = std::move(command);
  }
  static bool lives(const std::string& pid) {
    std::string line;
    std::ifstream file("/proc/" + pid + "/cmdline");
    return std::getline(file, line) && !line.empty();
  }
  std::vector<std::string> kept() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ + "/spark-launch")) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    return names;
  }
  std::string calls() const {
    const std::string path = folder_ + "/calls";
    return fs::exists(path) ? read_file(path) : std::string();
  }
  void expect_done(StepKind kind, std::map<std::string, std::string> parameters = {}) {
    const ProcessResult result = run(kind, std::move(parameters));
    EXPECT_EQ(result.exit_code, 0) << step_name(kind) << ": " << result.error << result.output;
  }
  void expect_refused(const std::string& why, StepKind kind,
                      std::map<std::string, std::string> parameters = {}) {
    const ProcessResult result = run(kind, std::move(parameters));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.error.find(why), std::string::npos) << result.error;
  }

  const test::TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
  RankLaunch launch_;
  NodeScriptContext context_;
};

TEST_F(NodeScript, AContainerFromArmToStop) {
  expect_done(StepKind::kArm);
  EXPECT_EQ(calls(), "systemd-run svc-memguard\n");
  const std::string line = read_file(folder_ + "/lines");
  for (const char* part :
       {"--unit=svc-memguard", "--property=Type=notify", "--property=OOMScoreAdjust=-1000",
        "--property=Restart=on-failure", "--setenv=CONTAINER_NAME=svc", "--setenv=THRESHOLD_GIB=5"})
    EXPECT_NE(line.find(part), std::string::npos) << part;
  const ProcessResult launched = run(StepKind::kLaunch);
  EXPECT_EQ(launched.exit_code, 0) << launched.error;
  EXPECT_EQ(read_values(launched.output)["id"], "new");
  EXPECT_EQ(calls(), "docker run\n");
  expect_done(StepKind::kSteady);
  EXPECT_EQ(calls(), "guard switch\n");
  // The guard leaves by itself when its service ends: nothing has to end it before.
  expect_done(StepKind::kStop, {{"remove", "1"}});
  EXPECT_EQ(calls(), "docker stop\ndocker rm\n");
  EXPECT_EQ(container("svc"), "");
  expect_done(StepKind::kStop);
  EXPECT_EQ(calls(), "");
}

TEST_F(NodeScript, NothingStartsWithoutAnArmedGuard) {
  expect_refused("no armed guard", StepKind::kLaunch);
  EXPECT_EQ(calls(), "");
  write_file_atomic(folder_ + "/refuse", "");
  expect_refused("exited before its first protected sample: Job failed", StepKind::kArm);
  fs::remove(folder_ + "/refuse");
  container("svc", "running old");
  expect_refused("runs already", StepKind::kArm);
  EXPECT_EQ(calls(), "");
}

TEST_F(NodeScript, AServiceThatItsGuardLosesIsKilled) {
  expect_done(StepKind::kArm);
  program("watch", "rm -f \"$S/guard\"\n");
  expect_refused("it was killed", StepKind::kLaunch);
  EXPECT_EQ(calls(), "docker run\ndocker kill\n");
  EXPECT_EQ(container("svc"), "exited new\n");
}

TEST_F(NodeScript, AUnitFromArmToStop) {
  use_unit();
  expect_done(StepKind::kArm);
  expect_done(StepKind::kLaunch);
  EXPECT_EQ(calls(), "systemd-run svc\n");
  const std::string line = read_file(folder_ + "/lines");
  for (const char* part : {"--unit=svc ", "--property=User=spark", "--property=MemoryMax=112G",
                           "--property=MemorySwapMax=0", "/opt/spark-engine --flag"})
    EXPECT_NE(line.find(part), std::string::npos) << part;
  expect_done(StepKind::kSteady);
  expect_done(StepKind::kStop);
  EXPECT_EQ(calls().substr(0, 19), "systemctl stop svc\n");
  expect_done(StepKind::kStop);
}

TEST_F(NodeScript, ARetiredServiceComesBackGuarded) {
  container("svc", "running old");
  write_file_atomic(folder_ + "/guard", "state=watching\nsamples=9\nthreshold_kib=5242880\n");
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(calls(), "docker stop\ndocker rename svc svc-pre-1\n");
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(calls(), "");
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  EXPECT_EQ(calls(), "docker rename svc-pre-1 svc\nsystemd-run svc-memguard\ndocker start\n");
  EXPECT_EQ(container("svc"), "running old\n");
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  EXPECT_EQ(calls(), "");
}

TEST_F(NodeScript, AProcessWhoseIdCannotBeKeptIsNotStarted) {
  program("engine", "echo ran >>\"$S/ran\"\nwhile :; do sleep 0.1; done\n");
  use_process({folder_ + "/engine"});
  expect_done(StepKind::kArm);
  fs::create_directories(folder_ + "/spark-launch/svc.pid.new/in the way");  // as a full disk would be
  expect_refused("it was not started: tee: " + folder_ + "/spark-launch/svc.pid.new: Is a directory",
                 StepKind::kLaunch);
  EXPECT_FALSE(fs::exists(folder_ + "/ran")) << "no service runs without a guard";
  fs::remove_all(folder_ + "/spark-launch/svc.pid.new");
  // One that ended left its id: it is not taken for that of the next.
  write_file_atomic(folder_ + "/spark-launch/svc.pid", "999999999\n");
  const std::string pid = read_values(run(StepKind::kLaunch).output)["id"];
  EXPECT_TRUE(lives(pid)) << pid;
  expect_done(StepKind::kStop);
}

TEST_F(NodeScript, AReplacedProcessComesBackAsItWas) {
  program("engine", "echo \"$MODE $*\" >>\"$S/ran\"\nwhile :; do sleep 0.1; done\n");
  use_process({folder_ + "/engine", "--flag", "two  words"});
  launch_.environment = {{"MODE", "a 'b'\nc"}};
  const std::string first = launch_process();
  expect_done(StepKind::kKeep, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(kept(), std::vector<std::string>{"svc-pre-1"});
  EXPECT_TRUE(lives(first));
  expect_done(StepKind::kDiscard, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(kept(), std::vector<std::string>{});
  expect_done(StepKind::kKeep, {{"backup", "svc-pre-1"}});
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-1"}});
  EXPECT_FALSE(lives(first));
  EXPECT_EQ(kept(), std::vector<std::string>{"svc-pre-1"});
  EXPECT_EQ(fs::status(folder_ + "/spark-launch/svc-pre-1").permissions(), fs::perms::owner_all)
      << "an environment may hold a key";
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-1"}});
  launch_.environment = {{"MODE", "new"}};
  const std::string second = launch_process();
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}, {"id", second}});
  EXPECT_FALSE(lives(second));
  expect_done(StepKind::kDisarm);
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  const std::string ran = "a 'b'\nc --flag two  words\n";
  for (int i = 0; i < 100 && read_file(folder_ + "/ran").size() < 2 * ran.size() + 22; ++i) ::usleep(20'000);
  EXPECT_EQ(read_file(folder_ + "/ran"), ran + "new --flag two  words\n" + ran);
  const std::string third = read_file(folder_ + "/spark-launch/svc.pid");
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}});
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}, {"id", second}});
  EXPECT_EQ(read_file(folder_ + "/spark-launch/svc.pid"), third) << "what was restored is not removed";
  expect_done(StepKind::kSteady);
  expect_done(StepKind::kStop);
  EXPECT_FALSE(lives(third.substr(0, third.find('\n'))));
  EXPECT_EQ(kept(), std::vector<std::string>{});
}

TEST_F(NodeScript, TheIdOfAnEndedProcessMayBeAnothersNow) {
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    for (;;) ::pause();
  }
  use_process({folder_ + "/engine"});
  fs::create_directories(folder_ + "/spark-launch");
  for (const StepKind kind : {StepKind::kRemove, StepKind::kStop}) {
    write_file_atomic(folder_ + "/spark-launch/svc.pid", std::to_string(other) + "\n");
    expect_done(kind);
    EXPECT_FALSE(fs::exists(folder_ + "/spark-launch/svc.pid"));
    EXPECT_TRUE(lives(std::to_string(other)));
  }
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

TEST_F(NodeScript, AProcessComesBackThoughItsProgramWasBuiltAnew) {
  fs::copy_file("/bin/sleep", folder_ + "/engine");
  use_process({folder_ + "/engine", "60"});
  launch_process();
  fs::remove(folder_ + "/engine");
  program("engine", "exit 3\n");
  for (const char* backup : {"svc-pre-1", "svc-pre-2"}) {  // the second time it runs from what was kept
    expect_done(StepKind::kRetire, {{"backup", backup}});
    EXPECT_TRUE(fs::exists(folder_ + "/spark-launch/" + backup + "/program"));
    expect_done(StepKind::kArm);
    run(StepKind::kLaunch);  // what it starts ends at once, before or after the guard has seen it
    expect_done(StepKind::kRemove, {{"backup", backup}});
    expect_done(StepKind::kDisarm);
    expect_done(StepKind::kRestore, {{"backup", backup}, {"start", "1"}});
    std::string pid = read_file(folder_ + "/spark-launch/svc.pid");
    pid.pop_back();
    EXPECT_EQ(fs::read_symlink("/proc/" + pid + "/exe"), folder_ + "/spark-launch/svc.kept/program");
  }
  // A retirement that was interrupted before it stopped anything, and one whose successor is there.
  fs::create_directories(folder_ + "/spark-launch/svc-pre-3");
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-3"}});
  EXPECT_EQ(kept(), std::vector<std::string>{"svc.kept"});
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-4"}});
  expect_done(StepKind::kDiscard, {{"backup", "svc-pre-4"}});
  EXPECT_EQ(kept(), std::vector<std::string>{});
  const ProcessResult nothing = run(StepKind::kRestore, {{"backup", "svc-pre-4"}, {"start", "1"}});
  EXPECT_EQ(read_values(nothing.output)["lost"], "1") << nothing.error;
}

TEST_F(NodeScript, AReplacedUnitComesBackAsItWas) {
  use_unit();
  fs::create_directories(folder_ + "/system");
  const std::string file = "[Service]\nExecStart=@/proc/self/exe \"/opt/spark-engine\"\n";
  write_file_atomic(folder_ + "/transient", file);
  write_file_atomic(folder_ + "/pid", std::to_string(::getpid()));
  expect_done(StepKind::kArm);
  expect_done(StepKind::kLaunch);
  expect_done(StepKind::kRetire, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(kept(), std::vector<std::string>{"svc-pre-1"});
  expect_done(StepKind::kArm);
  expect_done(StepKind::kLaunch);
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}, {"id", "1"}});
  expect_done(StepKind::kDisarm);
  expect_done(StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  EXPECT_EQ(calls(), "systemd-run svc-memguard\nsystemctl daemon-reload\nsystemctl start svc\n");
  EXPECT_EQ(read_file(folder_ + "/system/svc.service"), "# Kept by spark cluster start\n" + file);
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}, {"id", "1"}});
  EXPECT_EQ(calls(), "") << "what was restored is not removed";
  expect_done(StepKind::kStop);
  EXPECT_FALSE(fs::exists(folder_ + "/system/svc.service")) << "it would be in the way of the next start";
  EXPECT_EQ(kept(), std::vector<std::string>{});
  fs::create_directories(folder_ + "/spark-launch/svc-pre-7");
  fs::create_directories(folder_ + "/spark-launch/other-pre-7");
  EXPECT_EQ(read_values(run(StepKind::kPrune).output)["pruned"], "svc-pre-7");
  EXPECT_EQ(kept(), std::vector<std::string>{"other-pre-7"});
  // A unit of which there is no file is not stopped.
  expect_done(StepKind::kArm);
  expect_done(StepKind::kLaunch);
  fs::remove(folder_ + "/transient");
  expect_refused("it was not stopped", StepKind::kRetire, {{"backup", "svc-pre-2"}});
  EXPECT_EQ(calls(), "");
}

TEST_F(NodeScript, ARestoreWithoutAGuardStaysStopped) {
  container("svc-pre-1", "exited old");
  write_file_atomic(folder_ + "/refuse", "");
  expect_refused("first protected sample", StepKind::kRestore, {{"backup", "svc-pre-1"}, {"start", "1"}});
  EXPECT_EQ(container("svc"), "exited old\n");
}

TEST_F(NodeScript, OnlyWhatTheStartMadeIsRemoved) {
  container("svc", "running other");
  expect_done(StepKind::kRemove, {{"id", "mine"}});
  EXPECT_EQ(container("svc"), "running other\n");
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(container("svc"), "running other\n");
  container("svc-pre-1", "exited old");
  expect_done(StepKind::kRemove, {{"backup", "svc-pre-1"}});
  EXPECT_EQ(container("svc"), "");
  EXPECT_EQ(container("svc-pre-1"), "exited old\n");
}

TEST_F(NodeScript, TheGuardOfARunningServiceIsNotEnded) {
  container("svc", "running old");
  write_file_atomic(folder_ + "/guard", "state=watching\nsamples=9\n");
  expect_done(StepKind::kDisarm);
  EXPECT_TRUE(fs::exists(folder_ + "/guard"));
  container("svc", "exited old");
  write_file_atomic(folder_ + "/guard", "state=waiting\nsamples=9\n");
  expect_done(StepKind::kDisarm);
  EXPECT_FALSE(fs::exists(folder_ + "/guard"));
}

// On a busy machine a guard may miss a question; it is gone when it misses three, and at once when it said
// so.
TEST_F(NodeScript, AGuardIsAskedAgainBeforeItCountsAsGone) {
  container("svc", "running old");
  fs::create_directories(folder_ + "/spark-guard");
  write_file_atomic(folder_ + "/spark-guard/svc.status", "state=watching\nguard_pid=1\n");
  program("checkout/bin/spark-guard",
          "echo asked >>\"$S/calls\"\n[ \"$(wc -l <\"$S/calls\")\" -ge 3 ] && echo state=watching\n");
  const auto look = [this] {
    fs::remove(folder_ + "/calls");
    std::string script = look_script(launch_);
    for (size_t at = 0; (at = script.find("/run/spark-guard", at)) != std::string::npos; at += folder_.size())
      script.replace(at, 16, folder_ + "/spark-guard");
    return read_values(
        run_process({"sh"}, {.input = script, .environment = {"PATH=" + folder_ + "/bin:/usr/bin:/bin"}})
            .output)["guard_alive"];
  };
  EXPECT_EQ(look(), "1");
  EXPECT_EQ(calls(), "asked\nasked\nasked\n");
  program("checkout/bin/spark-guard", "echo asked >>\"$S/calls\"\nexit 1\n");
  EXPECT_EQ(look(), "0");
  EXPECT_EQ(calls(), "asked\nasked\nasked\n");
  write_file_atomic(folder_ + "/spark-guard/svc.status", "state=ended\n");
  EXPECT_EQ(look(), "0");
  EXPECT_EQ(calls(), "asked\n");
}

TEST_F(NodeScript, WhatAGuardSaidLastGoesWithItsService) {
  const std::string status = folder_ + "/spark-guard/svc.status";
  fs::create_directories(folder_ + "/spark-guard");
  const auto killed = [&] {
    container("svc", "exited old");
    write_file_atomic(status, "state=killed\nreason=low-memory\n");
  };
  killed();
  expect_done(StepKind::kStop);
  expect_done(StepKind::kPrune);
  EXPECT_TRUE(fs::exists(status)) << "the container is there, and so is what became of it";
  expect_done(StepKind::kStop, {{"remove", "1"}});
  EXPECT_FALSE(fs::exists(status));
  killed();
  fs::remove(folder_ + "/c.svc");
  expect_done(StepKind::kPrune);
  EXPECT_FALSE(fs::exists(status));
}

TEST_F(NodeScript, AClaimThatWasCutShortIsNobodys) {
  const std::string path = folder_ + "/" + kClaimFile;
  program("bin/tee", "echo '{\"ru' >\"$1\"\necho \"tee: $1: No space left on device\" >&2\nexit 1\n");
  expect_refused("the claim cannot be written: tee: " + path, StepKind::kClaim);
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_EQ(entry.path().string().find(path), std::string::npos) << entry.path() << " is left";
  fs::remove(folder_ + "/bin/tee");
  for (const char* torn : {"", "{\"run\":\"run-0\",\"by\":\"yo"}) {
    write_file_atomic(path, torn);
    expect_done(StepKind::kClaim);
    EXPECT_EQ(read_file(path), context_.claim + "\n");
  }
}

TEST_F(NodeScript, AClaimIsForOneMachine) {
  expect_done(StepKind::kClaim);
  expect_done(StepKind::kClaim);
  const std::string path = folder_ + "/" + kClaimFile;
  EXPECT_EQ(read_file(path), context_.claim + "\n");
  context_.run = "run-2";
  context_.claim = "{\"run\":\"run-2\",\"by\":\"me\"}";
  expect_done(StepKind::kRelease);  // not ours to release
  EXPECT_TRUE(fs::exists(path));
  expect_done(StepKind::kClaim);  // of a dead command of ours
  EXPECT_EQ(read_file(path), context_.claim + "\n");
  context_.run = "run-3";
  context_.owner = "\"by\":\"you\"}";
  context_.claim = "{\"run\":\"run-3\",\"by\":\"you\"}";
  expect_refused("--take-over", StepKind::kClaim);
  context_.take_over = true;
  expect_done(StepKind::kClaim);
  expect_done(StepKind::kRelease);
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace spark::ops
