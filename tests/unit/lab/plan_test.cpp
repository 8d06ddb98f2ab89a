// The pure parts of the lab; what needs root is in tests/e2e/lab.sh.
#include "ops/lab/plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "common/file.h"
#include "common/json.h"
#include "common/process.h"
#include "ops/lab/cgroups.h"
#include "ops/lab/directory.h"
#include "ops/lab/faults.h"
#include "ops/lab/image.h"
#include "ops/lab/node_root.h"
#include "ops/lab/rdma_view.h"
#include "ops/lab/state.h"
#include "ops/lab/texts.h"
#include "ops/site/site.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

LabPlan plan_of(int64_t nodes) {
  return plan_lab({.directory = "/tmp/lab", .nodes = nodes, .spark_program = "/opt/spark"});
}

class LabFolder : public testing::Test {
 protected:
  test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST(LabPlan, TriangleAndRingHaveTwoStripesPerCable) {
  EXPECT_EQ(plan_of(3).links.size(), 6u);
  EXPECT_EQ(plan_of(4).links.size(), 8u);
  for (const int64_t nodes : {3, 4}) {
    const LabPlan plan = plan_of(nodes);
    std::set<std::string> ends;
    for (const LabLink& link : plan.links) {
      ends.insert(std::to_string(link.rank_a) + link.interface_a);
      ends.insert(std::to_string(link.rank_b) + link.interface_b);
      // Port 0 leads to port 1 of the next node.
      EXPECT_NE(link.interface_a.find("f0np0"), std::string::npos);
      EXPECT_NE(link.interface_b.find("f1np1"), std::string::npos);
      EXPECT_EQ(link.rank_b, (link.rank_a + 1) % nodes);
    }
    EXPECT_EQ(ends.size(), plan.links.size() * 2);
    for (const LabNode& node : plan.nodes) EXPECT_EQ(node.interfaces.size(), 4u);
  }
  EXPECT_EQ(plan_of(3).node("node3").interfaces[0].address, "10.13.1.3/24");
}

TEST(LabPlan, RefusesWhatCannotBe) {
  EXPECT_THROW(plan_lab({.directory = "/tmp/lab", .nodes = 2}), Error);
  EXPECT_THROW(plan_lab({.directory = "lab", .nodes = 3}), Error);
  EXPECT_THROW(plan_lab({.directory = "/tmp/a b", .nodes = 3}), Error);
  EXPECT_THROW(plan_lab({.directory = "/tmp/lab", .memory_bytes = 1000}), Error);
  EXPECT_THROW(plan_of(3).node("node4"), Error);
}

TEST(LabPlan, TwoDirectoriesTwoIdentities) {
  EXPECT_NE(plan_lab({.directory = "/tmp/a"}).id, plan_lab({.directory = "/tmp/b"}).id);
  EXPECT_EQ(plan_of(3).id.size(), 8u);
}

TEST(LabTexts, EveryCableIsMadeInsideNamespaces) {
  const std::string batch = link_batch(plan_of(3), 100, {101, 102, 103});
  EXPECT_NE(
      batch.find("link add name enp1s0f0np0 address 58:ff:01:00:00:01 mtu 9000 netns 101 type veth peer name "
                 "enp1s0f1np1 address 58:ff:02:00:00:03 mtu 9000 netns 102\n"),
      std::string::npos);
  EXPECT_NE(batch.find("link add name enP7s7 netns 103 type veth peer name node3 netns 100\n"),
            std::string::npos);
}

TEST(LabTexts, ScriptsAreShell) {
  const LabPlan plan = plan_of(4);
  for (const std::string& script : {start_ssh_script({"k", "p", "u"}), checkout_script("/root/x y"),
                                    start_docker_script(plan, "node1"), load_image_script()}) {
    const ProcessResult result = run_process({"sh", "-n"}, {.input = script});
    EXPECT_EQ(result.exit_code, 0) << result.error << script;
  }
}

TEST(LabTexts, SshKnowsEveryNodeByALabsOwnName) {
  const LabPlan plan = plan_of(3);
  EXPECT_EQ(known_hosts(plan, {{"node1", "ssh-ed25519 AAAA\n"}}),
            "node1." + plan.id + ".spark-lab ssh-ed25519 AAAA\n");
  const std::string text = ssh_configuration(plan);
  EXPECT_NE(text.find("ProxyCommand /opt/spark lab connect --dir /tmp/lab node2"), std::string::npos);
  EXPECT_NE(text.find("StrictHostKeyChecking yes"), std::string::npos);
}

TEST(LabMemory, MeminfoTellsTheNodesMemory) {
  const std::string text = node_meminfo(
      "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   2 kB\nBuffers:  7 kB\nSwapTotal:  9 kB\n",
      int64_t{4} << 30, int64_t{1} << 30);
  EXPECT_EQ(
      text,
      "MemTotal:            4194304 kB\nMemFree:             3145728 kB\nMemAvailable:        3145728 kB\n"
      "Buffers:  7 kB\nSwapTotal:                 0 kB\n");
  EXPECT_NE(node_meminfo("MemAvailable: 2 kB\n", 1024, 4096).find("           0 kB"), std::string::npos);
}

TEST(LabRdma, ShowsGidsAsASparkDoes) {
  const LabNode node = plan_of(3).node("node1");
  const auto files = rdma_view(node, {});
  EXPECT_EQ(files.at("rocep1s0f0/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:0a0c:0101\n");
  EXPECT_EQ(files.at("rocep1s0f0/ports/1/gid_attrs/types/3"), "RoCE v2\n");
  EXPECT_EQ(files.at("roceP2p1s0f1/ports/1/gid_attrs/ndevs/2"), "enP2p1s0f1np1\n");
  EXPECT_EQ(files.at("rocep1s0f0/ports/1/state"), "4: ACTIVE\n");
  RdmaChanges changes;
  changes.down["enp1s0f0np0"] = true;
  changes.address["enp1s0f1np1"] = "10.99.1.1/24";
  const auto broken = rdma_view(node, changes);
  EXPECT_EQ(broken.at("rocep1s0f0/ports/1/state"), "1: DOWN\n");
  EXPECT_EQ(broken.at("rocep1s0f1/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:0a63:0101\n");
}

TEST_F(LabFolder, StateSurvivesWritingAndReading) {
  LabState state{.boot_id = boot_id(),
                 .plan = plan_lab({.directory = folder_, .nodes = 4}),
                 .network = {1, 2},
                 .nodes = {{3, 4}, {5, 6}, {7, 8}, {9, 10}},
                 .docker = "docker 1",
                 .image = "i",
                 .faults = {{"mtu", "node1", "node2", "1500"}}};
  write_lab_state(state);
  const auto read = read_lab_state(folder_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->nodes[3].start_ticks, 10u);
  EXPECT_EQ(read->plan.nodes.size(), 4u);
  EXPECT_EQ(read->faults[0].value, "1500");
  EXPECT_THROW(load_lab(folder_), Error);  // process 1 did not start at tick 2
  EXPECT_FALSE(read_lab_state(folder_ / "none"));
  state.nodes.pop_back();
  write_lab_state(state);
  EXPECT_THROW(read_lab_state(folder_), Error);  // a node without a process
  write_file_atomic(folder_ / kLabStateFile, "{\"boot_id\": 3}");
  EXPECT_THROW(read_lab_state(folder_), Error);
}

TEST_F(LabFolder, ForeignFilesAreNeverClaimed) {
  EXPECT_NO_THROW(claim_directory(folder_));
  write_file_atomic(folder_ / "thesis.tex", "years of work");
  EXPECT_THROW(claim_directory(folder_), Error);
  remove_lab_files(folder_);
  EXPECT_TRUE(fs::exists(folder_ / "thesis.tex"));
}

TEST_F(LabFolder, WhatAKilledCommandLeftIsRemoved) {
  fs::create_directories(folder_ / "shared/origin.git");
  write_file_atomic(folder_ / "known_hosts.unfinished-q7Xb2a", "a write that was never finished");
  write_file_atomic(folder_ / "known_hosts.backup1", "of the user");
  write_file_atomic(folder_ / "my_known_hosts.unfinished-q7Xb2a", "of the user");
  remove_lab_files(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "shared"));
  EXPECT_FALSE(fs::exists(folder_ / "known_hosts.unfinished-q7Xb2a"));
  EXPECT_TRUE(fs::exists(folder_ / "known_hosts.backup1"));
  EXPECT_TRUE(fs::exists(folder_ / "my_known_hosts.unfinished-q7Xb2a"));
}

// A command that was killed leaves programs that write until they notice.
TEST_F(LabFolder, FilesOfALabAreRemovedUnderAWriter) {
  fs::create_directories(folder_ / "shared");
  std::jthread writer([&] {
    for (int i = 0; i < 3000; ++i) {
      std::error_code gone;
      const fs::path object = folder_ / "shared/objects" / std::to_string(i % 50);
      fs::create_directories(object, gone);
      fs::remove(object, gone);
    }
  });
  for (int i = 0; i < 100; ++i) remove_lab_files(folder_);
  writer.join();
  remove_lab_files(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "shared"));
}

TEST_F(LabFolder, OneCommandAtATime) {
  EXPECT_THROW(lock_lab(folder_, 0), Error);  // there is no lab
  EXPECT_FALSE(fs::exists(folder_ / ".spark-lab"));
  const Descriptor lock = lock_lab(folder_, 0, LabLock::kClaim);
  EXPECT_THROW(lock_lab(folder_, 0.1), Error);
  EXPECT_THROW(lock_lab(folder_, 0.1, LabLock::kClaim), Error);
}

// Whoever waits for a command that removes the lab must not end up with the lock of a file that nobody sees.
TEST_F(LabFolder, TheLockOfARemovedLabIsWorthNothing) {
  const fs::path lab = folder_ / "lab";
  Descriptor remover = lock_lab(lab, 0, LabLock::kClaim);
  std::jthread removal([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    fs::remove_all(lab);
    remover.close();
  });
  const Descriptor next = lock_lab(lab, 10, LabLock::kClaim);
  EXPECT_TRUE(fs::exists(lab / ".spark-lab"));
  EXPECT_THROW(lock_lab(lab, 0.1), Error) << "somebody else has the same lab";
}

TEST_F(LabFolder, AMovedLabIsKnownByItsMarker) {
  LabState state{.boot_id = boot_id(),
                 .plan = plan_lab({.directory = folder_, .nodes = 3}),
                 .network = *identify_process(::getpid()),
                 .nodes = {{3, 4}, {5, 6}, {7, 8}},
                 .docker = {},
                 .image = {},
                 .faults = {}};
  const Descriptor lock = lock_lab(folder_, 0, LabLock::kClaim);
  write_lab_state(state);
  EXPECT_EQ(marked_id(folder_), "");
  EXPECT_NO_THROW(load_lab(folder_));
  mark_lab(lock.get(), state.plan.id);
  EXPECT_EQ(marked_id(folder_), state.plan.id);
  EXPECT_NO_THROW(load_lab(folder_));
  mark_lab(lock.get(), "0123abcd");
  EXPECT_THROW(load_lab(folder_), Error);
  mark_lab(lock.get(), "../../etc");
  EXPECT_EQ(marked_id(folder_), "") << "an ID is eight digits and nothing else";
}

TEST(LabTexts, AProxyCommandIsReadByAShell) {
  const std::string text = ssh_configuration(
      plan_lab({.directory = "/tmp/a&b;(c)", .nodes = 3, .spark_program = "/opt/my bin/100%"}));
  EXPECT_NE(text.find("ProxyCommand '/opt/my bin/100%%' lab connect --dir '/tmp/a&b;(c)' node1\n"),
            std::string::npos)
      << text;
}

TEST_F(LabFolder, SiteOfTheLabLoadsWithoutFaults) {
  for (const int64_t nodes : {3, 4}) {
    LabOptions options{.directory = folder_ / std::to_string(nodes), .nodes = nodes};
    options.repository = SPARK_SOURCE_DIR;
    fs::create_directories(options.directory + "/shared");
    const LabPlan plan = plan_lab(options);
    ASSERT_TRUE(write_site(plan));
    const Repository repository(plan.path("site"));
    const Site site = load_site(repository, {.profile = kLabProfile});
    std::string faults;
    for (const FileFault& fault : site.faults)
      faults += fault.file + ": " + fault.fault.where + ": " + fault.fault.what + "\n";
    EXPECT_EQ(faults, "");
    EXPECT_EQ(site.nodes.nodes.size(), static_cast<size_t>(nodes));
    EXPECT_EQ(site.profile.deployment.path, kLabDeployment);
    EXPECT_FALSE(fs::exists(plan.path("site/config/cluster.local.json")));
    EXPECT_EQ(
        run_process({"git", "-C", plan.path("site"), "rev-parse", "--abbrev-ref", "main@{upstream}"}).output,
        "origin/main\n");
  }
}

TEST_F(LabFolder, ImageOfTheSameProgramHasTheSameId) {
  const std::string program = fs::read_symlink("/proc/self/exe");
  const std::string first = write_image({program, "t:1"}, folder_ / "w", folder_ / "a.tar");
  const std::string second = write_image({program, "t:1"}, folder_ / "w", folder_ / "b.tar");
  EXPECT_EQ(first, second);
  EXPECT_EQ(read_file(folder_ / "a.tar"), read_file(folder_ / "b.tar"));
  EXPECT_FALSE(fs::exists(folder_ / "w"));
  const std::string list = run_process({"tar", "-tf", folder_ / "a.tar"}).output;
  EXPECT_NE(list.find("./manifest.json"), std::string::npos);
  EXPECT_NE(list.find(first.substr(7) + ".json"), std::string::npos);
}

TEST(LabImage, NamesLibrariesAndTheLoader) {
  bool libc = false;
  for (const std::string& path : libraries_of(fs::read_symlink("/proc/self/exe"))) {
    EXPECT_TRUE(fs::exists(path)) << path;
    libc |= path.find("libc.so") != std::string::npos;
  }
  EXPECT_TRUE(libc);
}

TEST(LabProcesses, AreNotConfusedWithLaterOnes) {
  const auto self = identify_process(::getpid());
  ASSERT_TRUE(self);
  EXPECT_TRUE(process_lives(*self));
  EXPECT_FALSE(process_lives({self->pid, self->start_ticks + 1}));
  EXPECT_FALSE(identify_process(0x3fffffff));
  EXPECT_TRUE(kill_process({self->pid, self->start_ticks + 1}, 0.1));  // gone already, and nobody was hurt
}

TEST(LabFaults, SizesAreRead) {
  EXPECT_EQ(parse_size("1024"), 1024);
  EXPECT_EQ(parse_size("512M"), int64_t{512} << 20);
  EXPECT_EQ(parse_size("2GiB"), int64_t{2} << 30);
  for (const char* wrong : {"", "M", "-1", "1T", "1.5G", "99999999999G"})
    EXPECT_THROW(parse_size(wrong), Error) << wrong;
}

TEST(LabFaults, NeedALab) {
  EXPECT_THROW(inject_fault("/nonexistent", {"mtu", "node1", "node2", ""}), Error);
  EXPECT_THROW(heal_faults("/nonexistent", "", ""), Error);
}

// A lab on file whose network is this process and whose nodes are gone: nothing can be run in one of them.
LabState recorded_lab(const std::string& directory, std::vector<LabFault> faults) {
  const ProcessIdentity self = *identify_process(::getpid());
  const ProcessIdentity gone = {self.pid, self.start_ticks + 1};
  const LabState state = {
      .boot_id = boot_id(),
      .plan = plan_lab({.directory = directory, .nodes = 4, .spark_program = "/opt/spark"}),
      .network = self,
      .nodes = {gone, gone, gone, gone},
      .docker = "docker 1",
      .image = {},
      .faults = std::move(faults)};
  lock_lab(directory, 1, LabLock::kClaim);  // makes it a lab's directory
  write_lab_state(state);
  return state;
}

TEST_F(LabFolder, AStateThatCannotBeLookedAtIsAnErrorWithAPlace) {
  // A name that is too long fails as a directory of somebody else's does, for root as well.
  const std::string long_name = folder_ / std::string(300, 'x');
  try {
    read_lab_state(long_name);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), long_name);
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST_F(LabFolder, RefusedFaultsAreNotRecorded) {
  recorded_lab(folder_, {});
  for (const LabFault& fault :
       {LabFault{"cable", "node1", "node3", ""}, LabFault{"mtu", "node1", "node2", "abc"},
        LabFault{"memory", "node3", "", "abc"}, LabFault{"clock", "node1", "", "1e9"}}) {
    try {
      inject_fault(folder_, fault);
      ADD_FAILURE() << fault.kind << " was taken";
    } catch (const Error& error) {
      // Refused for what was asked, not because nothing could be asked for.
      EXPECT_STRNE(error.what(), "there is no lab here") << fault.kind;
    }
  }
  EXPECT_TRUE(read_lab_state(folder_)->faults.empty());
}

// A command that waits for another one must see what that one recorded.
TEST_F(LabFolder, CommandsAtTheSameTimeKeepEachOthersRecords) {
  LabState state = recorded_lab(folder_, {});
  Descriptor other = lock_lab(folder_, 0);
  std::jthread injection([&] { EXPECT_THROW(inject_fault(folder_, {"ssh", "node2", "", ""}), Error); });
  std::jthread healing([&] { EXPECT_EQ(heal_faults(folder_, "clock", "").failed.size(), 1u); });
  // Time to read the record too early; whoever reads it in time passes whatever the machine does.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  state.faults = {{"clock", "node1", "", "30"}};
  write_lab_state(state);
  other.close();
  injection.join();
  healing.join();
  const std::vector<LabFault> faults = read_lab_state(folder_)->faults;
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].kind, "clock");
  EXPECT_EQ(faults[1].kind, "ssh") << "what could not be taken back is in the record";
}

TEST_F(LabFolder, OneFaultThatStaysKeepsNoOtherFromBeingHealed) {
  recorded_lab(folder_, {{"cable", "node1", "node3", ""}, {"cable", "node2", "node4", ""}});
  const HealedFaults result = heal_faults(folder_, "", "");
  EXPECT_TRUE(result.healed.empty());
  ASSERT_EQ(result.failed.size(), 2u);
  EXPECT_EQ(result.failed[0].where, "cable node2 node4");
  EXPECT_EQ(result.failed[1].what, "node1: has no cable to node3");
}

TEST(LabCgroups, FindsSomethingOrNothingWithoutFailing) {
  const Cgroups cgroups = Cgroups::find();
  EXPECT_TRUE(cgroups.process_files("spark-lab-test-that-does-not-exist").empty());
  EXPECT_TRUE(cgroups.kill_and_remove("spark-lab-test-that-does-not-exist"));
}

}  // namespace
}  // namespace spark::ops
