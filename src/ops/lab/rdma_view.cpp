#include "ops/lab/rdma_view.h"

#include <cstdio>
#include <filesystem>

#include "common/file.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"

namespace spark::ops {
namespace {

std::string link_local_gid(int64_t rank, size_t port) {
  char text[64];
  std::snprintf(text, sizeof text, "fe80:0000:0000:0000:5aff:%02llxff:fe00:%04llx",
                static_cast<long long>(rank + 1), static_cast<long long>(port + 1));
  return text;
}

// As mlx5 reports them for Ethernet: the RDMA MTU is the largest step that fits the interface's.
int rdma_mtu(int mtu) {
  for (const int step : {4096, 2048, 1024, 512}) {
    if (mtu >= step + 58) return step;
  }
  return 256;
}

template <typename T>
T changed(const std::map<std::string, T>& changes, const std::string& name, T standard) {
  const auto found = changes.find(name);
  return found == changes.end() ? standard : found->second;
}

}  // namespace

std::map<std::string, std::string> rdma_view(const LabNode& node, const RdmaChanges& changes) {
  std::map<std::string, std::string> files;
  for (size_t i = 0; i < node.interfaces.size(); ++i) {
    const LabInterface& interface = node.interfaces[i];
    const PortPath* port = path_of_netdev(interface.name);
    if (port == nullptr) continue;
    const std::string device = std::string(port->device) + "/";
    const std::string base = device + "ports/1/";
    const bool down = changed(changes.down, interface.name, false);
    files[device + "fw_ver"] = "28.45.4028\n";
    files[device + "node_type"] = "1: CA\n";
    files[base + "state"] = down ? "1: DOWN\n" : "4: ACTIVE\n";
    files[base + "phys_state"] = down ? "3: Disabled\n" : "5: LinkUp\n";
    files[base + "rate"] = "200 Gb/sec (4X HDR)\n";
    files[base + "link_layer"] = "Ethernet\n";
    // ibv_devinfo's active_mtu has no file in the kernel's tree; this one is the lab's own.
    files[base + "spark_lab_active_mtu"] =
        std::to_string(rdma_mtu(changed(changes.mtu, interface.name, interface.mtu))) + "\n";
    const std::string address = changed(changes.address, interface.name, interface.address);
    const std::string ipv4 = gid_of_ipv4(address.substr(0, address.find('/')));
    const std::string local = link_local_gid(node.rank, i);
    const std::string gids[] = {local, local, ipv4, ipv4};
    for (size_t slot = 0; slot < 4; ++slot) {
      const std::string number = std::to_string(slot);
      files[base + "gids/" + number] = gids[slot] + "\n";
      files[base + "gid_attrs/types/" + number] = slot % 2 == 0 ? "IB/RoCE v1\n" : "RoCE v2\n";
      files[base + "gid_attrs/ndevs/" + number] = interface.name + "\n";
    }
  }
  return files;
}

void write_rdma_view(const std::string& folder, const std::map<std::string, std::string>& files) {
  for (const auto& [path, content] : files) {
    const std::filesystem::path target = std::filesystem::path(folder) / path;
    std::filesystem::create_directories(target.parent_path());
    write_file_atomic(target, content, 0444);
  }
}

}  // namespace spark::ops
