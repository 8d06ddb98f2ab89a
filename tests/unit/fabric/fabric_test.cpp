#include <gtest/gtest.h>

#include <map>

#include "ops/fabric/addresses.h"
#include "ops/fabric/drawing.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/lldp.h"
#include "ops/fabric/ports.h"
#include "ops/fabric/validate.h"
#include "unit/case_file.h"

namespace spark::ops {
namespace {

using test::error_of;

NodeMap parse_map(const std::string& text) {
  Faults faults;
  NodeMap map = read_node_map(parse_json(text, "map"), faults);
  throw_if_any(faults, "map");
  return map;
}

NodeMap shipped(const std::string& path) {
  return parse_map(read_file(std::string(SPARK_SOURCE_DIR) + "/" + path));
}

AddressRequest seeds(int count) {
  AddressRequest request{.ssh_user = "spark", .nodes = {}};
  for (int i = 1; i <= count; ++i) {
    request.nodes.push_back({"node" + std::to_string(i), "192.0.2." + std::to_string(i), {}});
  }
  return request;
}

// What matters of a map, whatever the order of its keys.
std::map<std::string, std::string> facts(const NodeMap& map) {
  std::map<std::string, std::string> all;
  for (const Node& node : map.nodes) {
    all[node.name] = std::to_string(node.rank) + node.management_ip + (node.head ? "head" : "");
    for (const PeerDevices& peer : node.peers) {
      for (const std::string& device : peer.devices)
        all[node.name + std::to_string(peer.rank)] += device + " ";
    }
    for (const DeviceSubnet& subnet : node.subnets) all[node.name + subnet.device] = subnet.cidr;
  }
  return all;
}

TEST(Addresses, PlanTheShippedExamples) {
  EXPECT_EQ(facts(plan_addresses(seeds(3))), facts(shipped("config/nodes.example.json")));
  EXPECT_EQ(facts(plan_addresses(seeds(4))), facts(shipped("config/examples/nodes-ring4.json")));
}

TEST(Addresses, WrittenMapsReadBack) {
  for (const int count : {3, 4}) {
    AddressRequest request = seeds(count);
    request.nodes[1].ssh_host = "second.example.org";
    const NodeMap map = plan_addresses(request);
    const NodeMap back = parse_map(node_map_text(map));
    EXPECT_EQ(facts(back), facts(map));
    EXPECT_EQ(back.nodes[1].ssh_host, "second.example.org");
    EXPECT_EQ(node_map_text(back), node_map_text(map));
  }
}

TEST(Addresses, RefuseWhatCannotBe) {
  EXPECT_NE(error_of([] { plan_addresses(seeds(2)); }).find("two machines are refused"), std::string::npos);
  EXPECT_NE(error_of([] { plan_addresses(seeds(5)); }).find("5 machines"), std::string::npos);
  AddressRequest request = seeds(3);
  request.nodes[2].name = "node1";
  request.nodes[1].management_ip = "192.0.2.300";
  request.ssh_user = "a b";
  const std::string text = error_of([&] { plan_addresses(request); });
  EXPECT_NE(text.find("node1: is named twice"), std::string::npos) << text;
  EXPECT_NE(text.find("192.0.2.300"), std::string::npos) << text;
  EXPECT_NE(text.find("not a login name"), std::string::npos) << text;
}

TEST(Addresses, RefuseAManagementAddressInsideTheFabric) {
  AddressRequest request = seeds(3);
  request.nodes[0].management_ip = "10.12.1.77";
  const std::string text = error_of([&] { plan_addresses(request); });
  EXPECT_NE(text.find("10.12.1.77 lies in 10.12.1.0/24"), std::string::npos) << text;
  request.first_octet = 172;
  EXPECT_EQ(plan_addresses(request).nodes[0].subnets[0].cidr, "172.12.1.0/24");
}

TEST(Layout, TriangleHasTheCablesOfTheTable) {
  const FabricLayout layout = fabric_layout(shipped("config/nodes.example.json"));
  ASSERT_EQ(layout.cables.size(), 3U);
  EXPECT_EQ(layout.stripes, 2);
  EXPECT_EQ(layout.shape, FabricShape::kTriangle);
  const Cable& last = layout.cables[2];
  EXPECT_EQ(last.a.node, "node3");
  EXPECT_EQ(last.a.port, 0);
  EXPECT_EQ(last.b.node, "node1");
  EXPECT_EQ(last.b.port, 1);
  EXPECT_EQ(last.paths[1].subnet, "10.13.2.0/24");
  EXPECT_EQ(last.paths[1].a.address, "10.13.2.3");
  EXPECT_EQ(last.paths[1].b.address, "10.13.2.1");
  EXPECT_EQ(last.paths[1].b.netdev, "enP2p1s0f1np1");
  EXPECT_EQ(last.paths[1].b.gid, "0000:0000:0000:0000:0000:ffff:0a0d:0201");
}

TEST(Layout, RingGoesAround) {
  const FabricLayout layout = fabric_layout(shipped("config/examples/nodes-ring4.json"));
  ASSERT_EQ(layout.cables.size(), 4U);
  EXPECT_EQ(layout.shape, FabricShape::kRing4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.cables[i].a.rank, static_cast<int64_t>(i));
    EXPECT_EQ(layout.cables[i].b.rank, static_cast<int64_t>((i + 1) % 4));
    EXPECT_EQ(layout.cables[i].a.port, 0);
    EXPECT_EQ(layout.cables[i].b.port, 1);
  }
  ASSERT_EQ(layout.rail(1).size(), 4U);
  EXPECT_EQ(layout.rail(1)[3]->subnet, "10.14.2.0/24");
  EXPECT_EQ(layout.rail(0)[3]->subnet, "10.14.1.0/24");
}

TEST(Layout, RefusesBrokenMapsWithEveryFault) {
  NodeMap map = shipped("config/examples/nodes-ring4.json");
  map.nodes[2].subnets[0].cidr = "10.34.1.0/16";
  map.nodes[3].subnets.pop_back();
  const std::string text = error_of([&] { fabric_layout(map); });
  EXPECT_NE(text.find("nodes[2].roce_subnets.rocep1s0f0"), std::string::npos) << text;
  EXPECT_NE(text.find("nodes[3].roce_subnets.roceP2p1s0f1"), std::string::npos) << text;
  map.nodes.resize(2);
  EXPECT_NE(error_of([&] { fabric_layout(map); }).find("on two nodes the weights leave no useful context"),
            std::string::npos);
}

TEST(Layout, OtherDevicesAndMissingSubnetsAreShownAsUnknown) {
  NodeMap map = shipped("config/nodes.example.json");
  for (Node& node : map.nodes) node.subnets.clear();
  map.nodes[0].peers[0].devices[0] = "mlx5_0";
  const FabricLayout layout = fabric_layout(map);
  EXPECT_EQ(layout.cables[0].a.port, -1);
  EXPECT_EQ(layout.cables[0].paths[0].a.netdev, "");
  EXPECT_EQ(layout.cables[0].paths[0].a.address, "");
  EXPECT_NE(layout_text(layout, map).find("mlx5_0"), std::string::npos);
  EXPECT_NE(layout_svg(layout).find("mlx5_0"), std::string::npos);
  const std::string text = error_of([&] { netplan_files(map); });
  EXPECT_NE(text.find("node1 mlx5_0: is not a device of a Spark's fabric ports"), std::string::npos) << text;
  EXPECT_NE(text.find("node3 rocep1s0f0: has no subnet"), std::string::npos) << text;
}

TEST(Drawing, NamesEveryCableAndEscapes) {
  NodeMap map = shipped("config/examples/nodes-ring4.json");
  const FabricLayout layout = fabric_layout(map);
  const std::string svg = layout_svg(layout);
  EXPECT_EQ(svg, layout_svg(layout));
  for (const char* part :
       {"Cable 4: node4 port 0 to node1 port 1", "enP2p1s0f1np1 10.14.2.1", ">port 0<", "rank 3"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  FabricLayout hostile = layout;
  hostile.cables[0].a.node = "<&\">";
  EXPECT_EQ(layout_svg(hostile).find("<&\">"), std::string::npos);
}

TEST(Netplan, EveryPortHasItsAddressAndARevert) {
  const auto files = netplan_files(shipped("config/nodes.example.json"));
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[1].ssh, "spark@node2");
  for (const char* part : {"enp1s0f1np1:\n      addresses: [10.12.1.2/24]\n      mtu: 9000", "link-local: []",
                           "enP2p1s0f0np0:\n      addresses: [10.23.2.2/24]"}) {
    EXPECT_NE(files[1].netplan.find(part), std::string::npos) << part << files[1].netplan;
  }
  EXPECT_NE(files[1].revert.find("rm -f /etc/netplan/40-cx7.yaml"), std::string::npos);
  EXPECT_NE(files[1].revert.find("ip address del 10.23.2.2/24 dev enP2p1s0f0np0"), std::string::npos);
  const std::string commands = netplan_commands(shipped("config/nodes.example.json"), "out dir");
  EXPECT_NE(commands.find("'out dir/node1'/40-cx7.yaml"), std::string::npos) << commands;
  EXPECT_NE(commands.find("ping -c2 -M do -s 8972 10.12.1.2"), std::string::npos) << commands;
}

// The report of one machine in the form of lldpctl -f json.
std::string report_of(const std::string& node, const Json& cables, const Json& dropped) {
  Json interfaces = Json::array();
  const auto add = [&](const std::string& here, const std::string& there) {
    if (here.substr(0, here.find(':')) != node) return;
    const std::string far = there.substr(0, there.find(':'));
    const int port = std::stoi(here.substr(here.find(':') + 1));
    const int far_port = std::stoi(there.substr(there.find(':') + 1));
    for (const int path : {1, 2}) {
      const std::string netdev = port_path(port, path).netdev;
      bool skip = false;
      for (const Json& entry : dropped) skip = skip || entry == node + " " + netdev;
      if (skip) continue;
      const std::string far_name =
          far_port > 1 ? "swp" + std::to_string(far_port) : port_path(far_port, path).netdev;
      Json chassis = {{"id", {{"type", "mac"}, {"value", "02:00:00:00:00:01"}}},
                      {"mgmt-ip", {"fe80::1", "192.0.2.9"}}};
      interfaces.push_back(
          {{netdev,
            {{"via", "LLDP"},
             {"chassis", {{far + ".example.org", chassis}}},
             {"port", {{"id", {{"type", "ifname"}, {"value", far_name}}}, {"descr", "fabric"}}}}}});
    }
  };
  for (const Json& entry : cables) {
    const std::string cable = entry.get<std::string>();
    const std::string a = cable.substr(0, cable.find(' ')), b = cable.substr(cable.find(' ') + 1);
    add(a, b);
    add(b, a);
  }
  return Json{{"lldp", {{"interface", interfaces.size() == 1 ? interfaces[0] : interfaces}}}}.dump();
}

TEST(Import, FileCases) {
  for (const test::FileCase& entry : test::read_cases(std::string(SPARK_TEST_DATA) + "/fabric/import.test")) {
    SCOPED_TRACE(entry.place);
    ImportRequest request{.ssh_user = "spark", .reports = {}};
    int number = 0;
    for (const Json& node : entry["nodes"]) {
      const std::string name = node.get<std::string>();
      std::string text = report_of(name, entry["cables"], entry.has("drop") ? entry["drop"] : Json::array());
      if (entry.has("raw") && entry["raw"].contains(name)) text = entry["raw"][name].get<std::string>();
      request.reports.push_back({name, "192.0.2." + std::to_string(++number), text});
    }
    NodeMap map;
    const std::string error = error_of([&] { map = import_neighbours(request); });
    if (entry.has("order")) {
      ASSERT_EQ(error, "");
      Json order = Json::array();
      for (const Node& node : map.nodes) order.push_back(node.name);
      EXPECT_EQ(order, entry["order"]);
      EXPECT_TRUE(map.nodes[0].head);
      EXPECT_EQ(facts(parse_map(node_map_text(map))), facts(map));
      continue;
    }
    for (const Json& part : entry["error"])
      EXPECT_NE(error.find(part.get<std::string>()), std::string::npos) << part << "\n" << error;
  }
}

TEST(Import, TakesManagementAddressesFromTheNeighbours) {
  ImportRequest request{.ssh_user = "spark", .reports = {}};
  const Json cables = {"a:0 b:1", "b:0 c:1", "c:0 a:1"};
  for (const char* node : {"a", "b", "c"})
    request.reports.push_back({node, "", report_of(node, cables, Json::array())});
  // All neighbours report one address in this data: the map is refused for that, and names it.
  EXPECT_NE(error_of([&] { import_neighbours(request); }).find("192.0.2.9"), std::string::npos);
  request.reports[0].management_ip = "192.0.2.1";
  request.reports[1].management_ip = "192.0.2.2";
  EXPECT_EQ(import_neighbours(request).with_rank(2)->management_ip, "192.0.2.9");
}

// Any prefix or byte change of a report ends in a map or an Error.
TEST(Import, SurvivesDamagedReports) {
  const Json cables = {"a:0 b:1", "b:0 c:1", "c:0 a:1"};
  const std::string good = report_of("a", cables, Json::array());
  uint64_t state = 1;
  for (int round = 0; round < 400; ++round) {
    std::string text = good;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    if (round % 2 == 0) {
      text.resize(state % good.size());
    } else {
      text[(state >> 33) % text.size()] = static_cast<char>(state >> 20 & 0x7f);
    }
    ImportRequest request{.ssh_user = "spark",
                          .reports = {{"a", "192.0.2.1", text},
                                      {"b", "192.0.2.2", report_of("b", cables, Json::array())},
                                      {"c", "192.0.2.3", report_of("c", cables, Json::array())}}};
    error_of([&] { import_neighbours(request); });
  }
}

}  // namespace
}  // namespace spark::ops
