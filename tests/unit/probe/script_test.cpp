// The script itself, run by this machine's sh: on recorded trees, on the machine, with tools missing or
// hanging.
#include "ops/probe/script.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "common/clock.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/process.h"
#include "ops/probe/gather.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

using Folder = test::TemporaryFolder;

// Content, mode and modification time of everything below a folder.
std::map<std::string, std::string> tree_of(const std::string& folder) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    struct stat info {};
    ::lstat(entry.path().c_str(), &info);
    std::string state = std::to_string(info.st_mode) + " " + std::to_string(info.st_mtim.tv_sec) + "." +
                        std::to_string(info.st_mtim.tv_nsec);
    if (entry.is_regular_file()) state += " " + sha256_hex(read_file(entry.path().string()));
    tree[entry.path().string()] = state;
  }
  return tree;
}

ProbeDump healthy_dump() {
  Faults faults;
  return parse_dump(read_file(std::string(SPARK_TEST_DATA) + "/probe/spark-64k.dump"), faults);
}

void write_program(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  write_file_atomic(path, "#!/bin/sh\n" + text + "\n", 0755);
}

// What becomes of the script when `bin` is all that PATH offers, beside /usr/sbin and /sbin.
ProbeDump run_with_path(const std::string& bin, ProbeRequest request, Faults& faults) {
  const std::string script = probe_script(request);
  const ProcessResult result =
      run_process({"/usr/bin/env", "PATH=" + bin, "/bin/sh", "-c", script}, {.timeout_s = 60});
  return parse_dump(result.output, faults);
}

void link_tools(const Folder& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const char* place : {"/usr/bin/", "/bin/"}) {
      if (!fs::exists(place + std::string(name))) continue;
      fs::create_symlink(place + std::string(name), folder / name);
      break;
    }
  }
}

TEST(Script, ARecordedTreeAnswersAsTheNodeDid) {
  const Folder folder;
  const std::string root = folder / "node1";
  const ProbeDump recorded = healthy_dump();
  record_dump(recorded, root);
  const auto before = tree_of(folder.path());
  const ProbeRequest request{.root = root};
  const NodeAnswer answer = probe_here("node1", request);
  Faults faults;
  const ProbeDump read = parse_dump(answer.text, faults);
  EXPECT_EQ(read.files, recorded.files);
  for (const auto& [name, command] : recorded.commands) {
    ASSERT_NE(read.command(name), nullptr) << name;
    EXPECT_EQ(read.command(name)->output, command.output) << name;
    EXPECT_EQ(read.command(name)->status, command.status) << name;
    EXPECT_EQ(read.command(name)->error, command.error) << name;
  }
  EXPECT_EQ(tree_of(folder.path()), before) << "the probe changed the tree that it read";
}

TEST(Script, ThisMachineAnswersAndNothingIsWritten) {
  const Folder folder;
  fs::create_directories(folder / "model");
  write_file_atomic(
      folder / "model/model.safetensors.index.json",
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string shard(8, '\0');
  shard[0] = static_cast<char>(header.size());
  write_file_atomic(folder / "model/model-00001-of-00001.safetensors", shard + header + std::string(8, '\0'));
  const auto before = tree_of(folder.path());
  ProbeRequest request{.service = "nothing", .image = "nothing", .model_folder = folder / "model"};
  request.mount_sources = {folder.path(), folder / "absent"};
  request.files = {folder / "keys"};
  request.guard_program = folder / "spark-guard";
  const NodeAnswer answer = probe_here("here", request);
  EXPECT_EQ(answer.outcome, ProbeOutcome::kAnswered) << answer.problem;
  std::string faults;
  for (const Fault& fault : answer.faults) faults += fault.where + " " + fault.what + "\n";
  EXPECT_EQ(faults, "");
  EXPECT_FALSE(answer.facts.kernel.release.empty());
  EXPECT_TRUE(answer.facts.memory.total_kib);
  EXPECT_TRUE(answer.facts.host.clock_start_s);
  ASSERT_TRUE(answer.facts.model.index);
  EXPECT_EQ(answer.facts.model.total_bytes, 8);
  const ShardFacts& found = answer.facts.model.shards.at("model-00001-of-00001.safetensors");
  EXPECT_EQ(found.bytes, static_cast<int64_t>(16 + header.size()));
  EXPECT_EQ(found.needed_bytes, found.bytes);
  EXPECT_EQ(answer.facts.deployment.mounts.at(folder / "absent"), "-");
  EXPECT_EQ(answer.facts.deployment.mounts.at(folder / "keys"), "-");
  EXPECT_EQ(answer.facts.why("guard-program"), "is not installed");
  EXPECT_EQ(tree_of(folder.path()), before);
}

TEST(Script, NamesOfASiteAreNeverCommands) {
  const Folder folder;
  const std::string trap = folder / "trap";
  const std::string evil = "x'; touch " + trap + "; echo '";
  ProbeRequest request{.container = evil,
                       .service = evil,
                       .image = "$(touch " + trap + ")",
                       .model_folder = "`touch " + trap + "`",
                       .checkout = evil};
  request.candidate = "$(touch " + trap + ")";
  request.mount_sources = {evil, "$(touch " + trap + ")"};
  request.files = {evil};
  request.guard_program = evil;
  request.peers = {{"dev'; touch " + trap + "; '", "net", "$(touch " + trap + ")"}};
  Faults faults;
  parse_dump(probe_here("here", request).text, faults);
  EXPECT_FALSE(fs::exists(trap));
}

TEST(Script, WorksWhereToolsAreMissing) {
  const Folder folder;
  link_tools(folder, {"sed", "cut", "cat", "grep", "id", "sleep", "sh"});
  Faults faults;
  const ProbeDump dump = run_with_path(folder.path(), {}, faults);
  EXPECT_TRUE(dump.complete);
  EXPECT_TRUE(faults.empty()) << faults[0].where << " " << faults[0].what;
  EXPECT_NE(dump.file("/proc/meminfo"), nullptr);
  ASSERT_NE(dump.command("gpu"), nullptr);
  EXPECT_EQ(dump.command("gpu")->failure(), "is not installed");
}

TEST(Script, AHangingToolEndsAtItsLimit) {
  for (const bool with_timeout : {true, false}) {
    const Folder folder;
    link_tools(folder, {"sed", "cut", "cat", "grep", "id", "sleep", "sh", "date"});
    if (with_timeout) link_tools(folder, {"timeout"});
    write_program(folder / "nvidia-smi", "exec sleep 50");
    Faults faults;
    const double begin = monotonic_s();
    const ProbeDump dump = run_with_path(folder.path(), {.limit_s = 1}, faults);
    EXPECT_LT(monotonic_s() - begin, 30) << "two calls of one second each, beside everything else";
    ASSERT_NE(dump.command("gpu"), nullptr);
    EXPECT_EQ(dump.command("gpu")->failure(), "took longer than its limit") << with_timeout;
    EXPECT_TRUE(dump.complete);
  }
}

TEST(Script, HalfAScriptDoesNothing) {
  const std::string script = probe_script({});
  const ProcessResult result =
      run_process({"sh", "-c", script.substr(0, script.rfind("probe()") - 1)}, {.timeout_s = 20});
  EXPECT_EQ(result.output, "");
}

TEST(Script, ContentThatLooksLikeAFrameStaysContent) {
  const Folder folder;
  link_tools(folder, {"sed", "cut", "cat", "grep", "id", "sleep", "sh", "timeout"});
  write_program(folder / "nvidia-smi",
                "echo '@files'; echo '|etc/shadow:x'; echo '#end'; printf 'no line end'");
  Faults faults;
  const ProbeDump dump = run_with_path(folder.path(), {}, faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(dump.command("gpu")->output, "@files\n|etc/shadow:x\n#end\nno line end");
  EXPECT_EQ(dump.file("/etc/shadow"), nullptr);
}

TEST(Script, SecretsStayOnTheNode) {
  const Folder folder;
  link_tools(folder, {"sed", "cut", "cat", "grep", "id", "sleep", "sh", "timeout"});
  write_program(folder / "docker",
                "echo '    \"VLLM_API_KEY=hunter2\",'; echo '    \"HF_TOKEN=abc\"'; echo '    \"MODE=1\"'");
  Faults faults;
  const ProbeDump dump = run_with_path(folder.path(), {.container = "s", .service = "s"}, faults);
  const std::string& output = dump.command("container")->output;
  EXPECT_EQ(output.find("hunter2"), std::string::npos) << output;
  EXPECT_EQ(output.find("abc"), std::string::npos) << output;
  EXPECT_NE(output.find("MODE=1"), std::string::npos) << output;
}

TEST(Script, WhatDockerSaysOnceIsNotAskedAgain) {
  const Folder folder;
  link_tools(folder, {"sed", "cut", "cat", "grep", "id", "sleep", "sh", "timeout"});
  const std::string log = folder / "asked";
  const auto docker = [&](const std::string& profile_image, const char* running) {
    write_program(folder / "docker",
                  "echo \"$1 $2 $4\" >>" + log +
                      "; case \"$1 $2\" in 'info --format') echo '{\"ContainersRunning\":" + running +
                      ",\"ServerVersion\":\"20\"}' ;; 'image inspect') echo 'a warning' >&2; printf '[\\n "
                      "{\\n  \"Id\": \"%s\"\\n }\\n]\\n' " +
                      profile_image +
                      " ;; 'container inspect') printf '[{\"Id\": \"c0ffee\", \"State\": {\"Running\": "
                      "true}, \"Image\": \"sha256:aa\"}]\\n' ;; ps*) echo 'c0ffee i name' ;; esac");
  };
  const auto asked = [&] {
    const std::string text = read_file(log);
    fs::remove(log);
    return std::count(text.begin(), text.end(), '\n');
  };
  const ProbeRequest request{.container = "s", .service = "s", .image = "i:1"};
  Faults faults;
  docker("sha256:aa", "1");
  ProbeDump dump = run_with_path(folder.path(), request, faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(asked(), 4) << "info, ps, the image, the container: which has this very image";
  EXPECT_EQ(dump.command("container-image")->output, dump.command("image")->output);
  EXPECT_EQ(dump.command("image")->error, "a warning");
  EXPECT_EQ(read_facts(dump, faults).docker.container_image->id, "sha256:aa");
  EXPECT_EQ(read_facts(dump, faults).docker.running.size(), 1U);
  docker("sha256:bb", "0");
  dump = run_with_path(folder.path(), request, faults);
  EXPECT_EQ(asked(), 4) << "info, no ps, both images, the container";
  EXPECT_EQ(dump.command("docker-containers")->output, "");
  EXPECT_TRUE(faults.empty());
}

TEST(Script, AProcessAndItsGuardAreFound) {
  const std::string service = "spark-probe-test-" + std::to_string(::getpid());
  const ProbeRequest request{.service = service, .runtime = "process"};
  const NodeAnswer answer = probe_here("here", request);
  ASSERT_TRUE(answer.facts.service.process) << answer.facts.why("service-process");
  EXPECT_FALSE(answer.facts.service.process->recorded);
  ASSERT_TRUE(answer.facts.service.guard) << answer.facts.why("guard");
  EXPECT_TRUE(answer.facts.service.guard->empty());
  EXPECT_FALSE(answer.facts.service.guarded());
}

TEST(Record, RefusesPathsThatLeaveTheFolder) {
  const Folder folder;
  ProbeDump dump;
  dump.files["/../../etc/passwd"] = "x";
  EXPECT_THROW(record_dump(dump, folder / "out"), Error);
  EXPECT_FALSE(fs::exists(folder / "out"));
  dump.files = {{"/.commands/gpu", "x"}};
  EXPECT_THROW(record_dump(dump, folder / "out"), Error);
}

}  // namespace
}  // namespace spark::ops
