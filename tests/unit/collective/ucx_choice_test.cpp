#include "engine/collective/ucx_choice.h"

#include <gtest/gtest.h>

namespace spark::engine {
namespace {

TEST(UcxChoice, RanksOfOneMachineHaveNoNetwork) {
  const UcxChoice choice = choose_ucx(true, false, "", {});
  EXPECT_EQ(choice.transports, "posix,self");
  EXPECT_EQ(choice.devices, "");
  EXPECT_TRUE(choice.uses_shared_memory);
}

TEST(UcxChoice, RanksOfSeveralMachinesHaveOneInterface) {
  const UcxChoice apart = choose_ucx(false, true, "eth1,rocep1s0f0:1", {});
  EXPECT_EQ(apart.transports, "^sm");
  EXPECT_EQ(apart.devices, "eth1,rocep1s0f0:1");
  EXPECT_FALSE(apart.uses_shared_memory);
  const UcxChoice both = choose_ucx(true, true, "eth1", {});
  EXPECT_EQ(both.transports, "^sysv,cma");
  EXPECT_EQ(both.devices, "eth1");
  EXPECT_TRUE(both.uses_shared_memory);
}

TEST(UcxChoice, TheEnvironmentKnowsBetter) {
  const UcxChoice devices = choose_ucx(false, true, "eth1", {nullptr, "mlx5_0:1"});
  EXPECT_EQ(devices.transports, "^sm");
  EXPECT_EQ(devices.devices, "");
  // On one machine too: whoever names a device wants it.
  EXPECT_EQ(choose_ucx(true, false, "", {nullptr, "mlx5_0:1"}).transports, "^sysv,cma");
  const UcxChoice transports = choose_ucx(false, true, "eth1", {"rc,tcp", nullptr});
  EXPECT_EQ(transports.transports, "");
  EXPECT_EQ(transports.devices, "");
}

// The variable that only shared memory reads is set only where something reads it.
TEST(UcxChoice, TellsWhetherSharedMemoryIsUsed) {
  for (const char* with : {"all", "^tcp", "sm,tcp", "tcp,posix"}) {
    EXPECT_TRUE(choose_ucx(true, false, "", {with, nullptr}).uses_shared_memory) << with;
  }
  for (const char* without : {"tcp", "rc,tcp", "self"}) {
    EXPECT_FALSE(choose_ucx(true, false, "", {without, nullptr}).uses_shared_memory) << without;
  }
}

}  // namespace
}  // namespace spark::engine
