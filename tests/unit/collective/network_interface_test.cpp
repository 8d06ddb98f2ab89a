#include "engine/collective/network_interface.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "unit/temporary_folder.h"

namespace spark::engine {
namespace {

TEST(NetworkInterface, IsTheOneThatLeadsToTheAddress) {
  std::string why;
  EXPECT_EQ(interface_towards("127.0.0.1", 29501, why), "lo");
  EXPECT_EQ(interface_towards("127.1.2.3", 29501, why), "lo");
}

TEST(NetworkInterface, IsUnknownWhereTheAddressNamesNone) {
  std::string why;
  EXPECT_EQ(interface_towards("0.0.0.0", 29501, why), "");
  EXPECT_EQ(why, "");
  EXPECT_EQ(interface_towards("no-such-host.invalid", 29501, why), std::nullopt);
  EXPECT_NE(why, "");
}

TEST(NetworkInterface, BringsTheRdmaPortsOfTheSameWire) {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const fs::path port = fs::path(folder.path()) / "enp1s0f1np1";
  fs::create_directories(port / "device" / "infiniband" / "rocep1s0f1");
  fs::create_directories(fs::path(folder.path()) / "eth0");
  std::ofstream(port / "dev_port") << "0\n";
  EXPECT_EQ(devices_of("enp1s0f1np1", folder.path()), "enp1s0f1np1,rocep1s0f1:1");
  EXPECT_EQ(devices_of("eth0", folder.path()), "eth0");
  std::ofstream(port / "dev_port") << "1\n";
  EXPECT_EQ(devices_of("enp1s0f1np1", folder.path()), "enp1s0f1np1,rocep1s0f1:2");
}

}  // namespace
}  // namespace spark::engine
