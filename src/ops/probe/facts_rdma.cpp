// RDMA devices and PCIe functions.
#include <algorithm>

#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

const std::string kClass = "/sys/class/infiniband/";

// "4: ACTIVE" -> "ACTIVE"
std::string after_colon(const std::string& text) {
  const size_t colon = text.find(':');
  return trimmed(colon == std::string::npos ? text : text.substr(colon + 1));
}

// "TOTAL_ERR_COR 12" at the end of aer_dev_correctable, or the sum of its lines.
int64_t aer_total(const std::string& content) {
  int64_t sum = 0;
  for (const std::string& line : lines_of(content)) {
    const auto words = words_of(line);
    const auto count = words.size() == 2 ? whole_number(words[1]) : std::nullopt;
    if (!count || *count < 0) continue;
    if (words[0].rfind("TOTAL_", 0) == 0) return *count;
    if (sum < (int64_t{1} << 53)) sum += *count;
  }
  return sum;
}

class DeviceReader {
 public:
  explicit DeviceReader(const FactReader& reader) : reader_(reader) {}

  void read() {
    for (const auto& [path, content] : reader_.dump().files) {
      if (path.rfind(kClass, 0) != 0) continue;
      const size_t slash = path.find('/', kClass.size());
      if (slash == std::string::npos) continue;
      take(device(path.substr(kClass.size(), slash - kClass.size())), path.substr(slash + 1), path, content);
    }
    for (auto& [name, device] : devices_) {
      std::sort(device.gids.begin(), device.gids.end(),
                [](const Gid& a, const Gid& b) { return a.index < b.index; });
    }
  }

  void read_mtu() {
    const CommandAnswer* answer = reader_.answer("rdma-info");
    if (answer == nullptr) return;
    RdmaDevice* current = nullptr;
    for (const std::string& line : lines_of(answer->output)) {
      const auto words = words_of(line);
      if (words.size() >= 2 && words[0] == "hca_id:") {
        const auto found = devices_.find(words[1]);
        current = found == devices_.end() ? nullptr : &found->second;
      } else if (words.size() >= 2 && words[0] == "active_mtu:" && current != nullptr) {
        current->active_mtu = whole_number(words[1]);
      }
    }
  }

  std::vector<RdmaDevice> result() const {
    std::vector<RdmaDevice> all;
    for (const auto& [name, device] : devices_) all.push_back(device);
    return all;
  }

 private:
  RdmaDevice& device(const std::string& name) {
    RdmaDevice& found = devices_[name];
    found.name = name;
    return found;
  }

  void take(RdmaDevice& device, const std::string& rest, const std::string& path,
            const std::string& content) {
    const std::string value = trimmed(content.substr(0, content.find('\n')));
    const size_t slash = rest.rfind('/');
    const std::string name = rest.substr(slash == std::string::npos ? 0 : slash + 1);
    if (rest == "fw_ver") device.firmware = value;
    if (rest == "ports/1/state") device.state = after_colon(value);
    if (rest == "ports/1/phys_state") device.phys_state = after_colon(value);
    if (rest == "ports/1/link_layer") device.link_layer = value;
    if (rest == "ports/1/rate") device.rate_gbps = decimal(value.substr(0, value.find(' ')));
    if (rest == "device/current_link_speed") device.pcie_speed = value;
    if (rest == "device/max_link_speed") device.pcie_max_speed = value;
    if (rest == "device/current_link_width") device.pcie_width = reader_.number(path);
    if (rest == "device/max_link_width") device.pcie_max_width = reader_.number(path);
    if (name.rfind("aer_dev_", 0) == 0) device.aer[name.substr(8)] = aer_total(content);
    if (rest.rfind("ports/1/counters/", 0) == 0 || rest.rfind("ports/1/hw_counters/", 0) == 0) {
      if (const auto count = reader_.number(path)) device.counters[name] = *count;
    }
    if (rest.rfind("ports/1/gids/", 0) == 0) add_gid(device, name, value);
  }

  void add_gid(RdmaDevice& device, const std::string& slot, const std::string& gid) {
    const auto index = whole_number(slot);
    const std::string base = kClass + device.name + "/ports/1/gid_attrs/";
    if (!index || *index < 0) return reader_.fault(device.name, "has the GID slot \"" + slot + "\"");
    device.gids.push_back(
        {*index, reader_.text(base + "types/" + slot), gid, reader_.text(base + "ndevs/" + slot)});
  }

  const FactReader& reader_;
  std::map<std::string, RdmaDevice> devices_;
};

// 0000:01:00.0 0x15b3;0x1021;0x020000;32.0 GT/s PCIe;4;32.0 GT/s PCIe;4
void read_pci(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("pci");
  if (answer == nullptr) return;
  std::vector<PciFunction> functions;
  for (const std::string& line : lines_of(answer->output)) {
    const auto fields = split(line, ';');
    const auto front = words_of(fields[0]);
    if (fields.size() != 7 || front.size() != 2) {
      reader.fault("pci", "has the line \"" + line.substr(0, 60) + "\"");
      continue;
    }
    functions.push_back({front[0], front[1], fields[1], fields[2], fields[3], fields[5],
                         whole_number(fields[4]), whole_number(fields[6])});
  }
  reader.facts().network.pci = std::move(functions);
}

}  // namespace

void read_rdma(const FactReader& reader) {
  DeviceReader devices(reader);
  devices.read();
  devices.read_mtu();
  reader.facts().network.rdma = devices.result();
  read_pci(reader);
}

}  // namespace spark::ops::probe
