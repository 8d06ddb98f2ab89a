// What faults make of a node, without a lab; with one they are tried in tests/e2e/lab.sh.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "common/file.h"
#include "common/process.h"
#include "ops/lab/eater.h"
#include "ops/lab/fault_scripts.h"
#include "ops/lab/ports.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

LabState state_with(std::vector<LabFault> faults, const std::string& docker = "docker 1") {
  return {.boot_id = {},
          .plan = plan_lab({.directory = "/tmp/lab", .nodes = 3, .spark_program = "/opt/spark"}),
          .network = {},
          .nodes = {},
          .docker = docker,
          .image = {},
          .faults = std::move(faults)};
}

WantedPort port(const std::vector<LabFault>& faults, const std::string& node, const std::string& name) {
  const LabPlan plan = state_with({}).plan;
  const std::vector<WantedPort> ports = wanted_ports(plan, plan.node(node), faults);
  return *std::find_if(ports.begin(), ports.end(), [&](const WantedPort& each) { return each.name == name; });
}

const std::string kPort0 = "enp1s0f0np0";
const std::string kPort1 = "enp1s0f1np1";
const LabFault kSwap = {"swap", "node1", "", ""};
const LabFault kMtu = {"mtu", "node1", "node2", "1500"};

TEST(LabPorts, AreMadeOfTheFaultsThatStand) {
  EXPECT_EQ(port({}, "node1", kPort0).mac, "58:ff:01:00:00:01");
  EXPECT_EQ(port({}, "node1", kPort0).mtu, 9000);
  EXPECT_EQ(port({kMtu}, "node1", kPort0).mtu, 1500);
  EXPECT_EQ(port({kMtu}, "node1", kPort1).mtu, 9000);
  EXPECT_EQ(port({kMtu}, "node2", kPort1).mtu, 9000);
  EXPECT_EQ(port({kSwap}, "node1", kPort0).mac, "58:ff:01:00:00:03");
  EXPECT_EQ(port({kSwap}, "node1", kPort1).mac, "58:ff:01:00:00:01");
  EXPECT_EQ(port({{"subnet", "node1", "node2", ""}}, "node1", kPort0).address, "10.99.1.1/24");
  const LabFault cable = {"cable", "node1", "node2", ""};
  EXPECT_FALSE(port({cable}, "node1", kPort0).up);
  EXPECT_TRUE(port({cable}, "node2", kPort1).up);
  EXPECT_FALSE(port({cable}, "node2", kPort1).carrier);
}

// What a port has stays with it when its cable leaves: undoing one of two faults leaves nothing of it.
TEST(LabPorts, FaultsOfOnePortDoNotUndoOneAnother) {
  for (const std::vector<LabFault>& faults : {std::vector{kMtu, kSwap}, std::vector{kSwap, kMtu}}) {
    EXPECT_EQ(port(faults, "node1", kPort0).mtu, 1500);
    EXPECT_EQ(port(faults, "node1", kPort1).mtu, 9000);
    EXPECT_EQ(port(faults, "node1", kPort0).mac, "58:ff:01:00:00:03");
  }
  const std::string healthy = fault_scripts(state_with({}), kSwap).undo;
  EXPECT_EQ(fault_scripts(state_with({}), kMtu).undo, healthy);
  EXPECT_NE(fault_scripts(state_with({kSwap}), kMtu).undo, healthy);
}

TEST(LabFaults, ScriptsAreShell) {
  for (const FaultKind& kind : fault_kinds()) {
    const bool pair = std::string(kind.wants) == "NODE PEER";
    const LabFault fault = {kind.name, "node1", pair ? "node2" : "", kind.standard_value};
    const FaultScripts scripts = fault_scripts(state_with({fault}), fault);
    for (const std::string& script : {scripts.make, scripts.undo}) {
      const ProcessResult result = run_process({"sh", "-n"}, {.input = change_script(1, script)});
      EXPECT_EQ(result.exit_code, 0) << kind.name << ": " << result.error << script;
    }
  }
}

// The prelude, with its files in a folder of this test.
ProcessResult run_change(const std::filesystem::path& folder, int64_t number, const std::string& script) {
  std::string text = change_script(number, script);
  const std::string place = "/run/spark-lab";
  for (size_t at; (at = text.find(place)) != std::string::npos;)
    text.replace(at, place.size(), folder.string());
  return run_process({"sh", "-s"}, {.input = text});
}

TEST(LabFaults, AScriptOfAKilledCommandComesTooLate) {
  const test::TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path();
  EXPECT_EQ(run_change(folder, 5, "echo five\n").output, "five\n");
  EXPECT_EQ(run_change(folder, 5, "echo again\n").output, "again\n");
  EXPECT_EQ(run_change(folder, 7, "echo seven\n").output, "seven\n");
  const ProcessResult late = run_change(folder, 6, "echo six\n");
  EXPECT_EQ(late.output, "");
  EXPECT_NE(late.exit_code, 0);
  write_file_atomic(folder / "change", "");  // killed in the middle of writing it
  EXPECT_EQ(run_change(folder, 8, "echo eight\n").output, "eight\n");
  EXPECT_NE(run_change(folder, 9, "false\necho nine\n").exit_code, 0) << "a script ends at its first failure";
}

TEST(LabFaults, WhatKeepsOthersFromHealingIsUndoneFirst) {
  const std::vector<LabFault> faults = {
      kMtu, {"freeze", "node2", "", ""}, {"disk", "node2", "", ""}, {"clock", "node2", "", "30"}, kSwap};
  std::string order;
  for (const LabFault& fault : healing_order(faults, "", "")) order += fault.kind + " ";
  EXPECT_EQ(order, "freeze disk swap clock mtu ");
  order.clear();
  for (const LabFault& fault : healing_order(faults, "", "node1")) order += fault.kind + " ";
  EXPECT_EQ(order, "swap mtu ");
}

TEST(LabFaults, ALabWithoutEnginesHasNoneToStop) {
  const LabFault docker = {"docker", "node1", "", ""};
  EXPECT_NO_THROW(checked_fault(state_with({}), docker));
  EXPECT_THROW(checked_fault(state_with({}, "processes: asked for no container engine"), docker), Error);
}

TEST(LabFaults, ADamagedRecordIsAnError) {
  EXPECT_THROW(fault_scripts(state_with({}), {"flood", "node1", "", ""}), Error);
  const LabPlan plan = state_with({}).plan;
  EXPECT_THROW(wanted_ports(plan, plan.node("node1"), {{"mtu", "node1", "node2", "x"}}), Error);
}

// A figure that is older than the first bite must not be eaten a second time.
TEST(LabMemory, LateFiguresCostOneSmallBite) {
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_EQ(next_bite(8 * kGib, kGib, true), 7 * kGib);
  EXPECT_EQ(next_bite(8 * kGib, kGib, false), int64_t{64} << 20);
  EXPECT_EQ(next_bite(kGib + (int64_t{10} << 20), kGib, false), int64_t{10} << 20);
  EXPECT_EQ(next_bite(kGib + 4096, kGib, true), 0);
}

}  // namespace
}  // namespace spark::ops
