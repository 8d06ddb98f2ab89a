#include "ops/fabric/mesh_ports.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr size_t kMaxInterfaceName = 15;

// `form` has x for a hexadecimal digit; everything else stands for itself.
bool has_form(const std::string& text, std::string_view form) {
  if (text.size() != form.size()) return false;
  for (size_t i = 0; i < form.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (form[i] == 'x' ? std::isxdigit(c) == 0 : text[i] != form[i]) return false;
  }
  return true;
}

bool is_unicast_mac(const std::string& text) {
  if (!has_form(text, "xx:xx:xx:xx:xx:xx")) return false;
  return (std::stoi(text.substr(0, 2), nullptr, 16) & 1) == 0 && text != "00:00:00:00:00:00";
}

std::string without_host(const std::string& address) {
  return address.substr(0, address.rfind('.'));
}

// "10.12.1.3/24" inside "10.12.1.0/24", and not the network or broadcast address.
bool is_inside(const std::string& address, const std::string& subnet) {
  const size_t slash = address.find('/');
  if (slash == std::string::npos || address.substr(slash) != "/24" || !is_ipv4(address.substr(0, slash)))
    return false;
  const std::string host = address.substr(0, slash);
  return without_host(host) == without_host(subnet.substr(0, subnet.find('/'))) && !host.ends_with(".0") &&
         !host.ends_with(".255");
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

class MeshPortRules {
 public:
  MeshPortRules(const NodeMap& map, Findings& findings) : map_(map), findings_(findings) {}

  void run() {
    for (size_t i = 0; i < map_.nodes.size(); ++i) {
      const Node& node = map_.nodes[i];
      std::set<std::string> interfaces;
      for (const std::string& device : node.devices()) {
        const auto port = std::find_if(node.mesh_ports.begin(), node.mesh_ports.end(),
                                       [&](const MeshPort& entry) { return entry.device == device; });
        if (port == node.mesh_ports.end()) {
          add(i, device, "", "is missing", "netdev, pci, mac and address of every device");
        } else {
          check(i, *port, interfaces);
        }
      }
    }
  }

 private:
  void check(size_t index, const MeshPort& port, std::set<std::string>& interfaces) {
    const Node& node = map_.nodes[index];
    if (port.netdev.empty() || port.netdev.size() > kMaxInterfaceName ||
        !interfaces.insert(port.netdev).second) {
      add(index, port.device, ".netdev", "is \"" + port.netdev + "\"",
          "an interface name of at most 15 characters, each once per node");
    }
    if (!has_form(port.pci, "xxxx:xx:xx.x")) {
      add(index, port.device, ".pci", "is \"" + port.pci + "\"", "a PCI address such as 0000:01:00.0");
    }
    if (!is_unicast_mac(port.mac) || !macs_.insert(lower(port.mac)).second) {
      add(index, port.device, ".mac", "is \"" + port.mac + "\"",
          "a unicast MAC address, each once in the cluster");
    }
    const auto subnet = std::find_if(node.subnets.begin(), node.subnets.end(),
                                     [&](const DeviceSubnet& entry) { return entry.device == port.device; });
    const bool inside = subnet != node.subnets.end() && is_inside(port.address, subnet->cidr);
    if (!inside || !addresses_.insert(port.address).second) {
      add(index, port.device, ".address", "is \"" + port.address + "\"",
          "an address inside " + (subnet == node.subnets.end() ? "the device's subnet" : subnet->cidr) +
              ", each once in the cluster");
    }
  }

  void add(size_t index, const std::string& device, const std::string& field, std::string evidence,
           std::string expected) {
    findings_.push_back({"fabric.mesh-ports",
                         Severity::kError,
                         {},
                         "nodes[" + std::to_string(index) + "].mesh_ports." + device + field,
                         std::move(evidence),
                         std::move(expected),
                         "complete mesh_ports, or use the transport oneshot-ring4"});
  }

  const NodeMap& map_;
  Findings& findings_;
  std::set<std::string> macs_;
  std::set<std::string> addresses_;
};

}  // namespace

void check_mesh_ports(const NodeMap& map, Findings& findings) {
  MeshPortRules(map, findings).run();
}

}  // namespace spark::ops
