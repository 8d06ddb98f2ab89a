// Interfaces, routes, neighbours, sockets.
#include "ops/fabric/lldp.h"
#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

bool has_flag(const JsonReader& entry, const std::string& flag) {
  const Json* flags = entry.field("flags").json();
  if (flags == nullptr || !flags->is_array()) return false;
  for (const Json& each : *flags) {
    if (each.is_string() && each.get<std::string>() == flag) return true;
  }
  return false;
}

// Runs `body` over the entries of a JSON answer; what has another form becomes faults of that section.
template <typename Body>
bool for_entries(const FactReader& reader, const std::string& section, Body&& body) {
  const Json document = reader.json(section);
  if (document.is_null()) return false;
  Faults faults;
  for (const JsonReader& entry : JsonReader(document, "", faults).items()) {
    // `ip` prints an empty object where a filter leaves nothing of an entry.
    if (entry.json() != nullptr && entry.json()->is_object() && !entry.json()->empty()) body(entry);
  }
  if (!faults.empty()) reader.fault(section, faults[0].where + " " + faults[0].what);
  return true;
}

std::string text_or_empty(const JsonReader& entry, const char* key) {
  return entry.field(key).optional_string().value_or(std::string());
}

Link read_link(const FactReader& reader, const JsonReader& entry) {
  Link link;
  link.name = entry.field("ifname").string();
  link.mac = text_or_empty(entry, "address");
  link.mtu = entry.field("mtu").integer(0, 1 << 20);
  link.up = has_flag(entry, "UP");
  link.carrier = has_flag(entry, "LOWER_UP");
  if (entry.field("addr_info").present()) {
    for (const JsonReader& address : entry.field("addr_info").items()) {
      if (address.json() == nullptr || !address.json()->is_object() || address.json()->empty()) continue;
      LinkAddress found;
      found.address = text_or_empty(address, "local");
      found.prefix = address.field("prefixlen").optional_integer(0, 128).value_or(0);
      found.ipv6 = text_or_empty(address, "family") == "inet6";
      found.dynamic = address.field("dynamic").optional_boolean().value_or(false);
      link.addresses.push_back(std::move(found));
    }
  }
  const auto speed = reader.number("/sys/class/net/" + link.name + "/speed");
  if (speed && *speed > 0) link.speed_mbps = speed;
  return link;
}

void read_paths(const FactReader& reader) {
  for (const auto& [name, answer] : reader.dump().commands) {
    if (name.rfind("route-", 0) == 0) {
      PathFacts& path = reader.facts().network.paths[name.substr(6)];
      if (!answer.ok()) {
        // ip's status 2 is the kernel's "unreachable"; anything else says nothing about the route.
        if (answer.status == 2) path.route_known = true;
        continue;
      }
      path.route_known = for_entries(reader, name, [&](const JsonReader& entry) {
        path.route_netdev = text_or_empty(entry, "dev");
        path.route_gateway = text_or_empty(entry, "gateway");
      });
    } else if (name.rfind("ping-", 0) == 0) {
      PathFacts& path = reader.facts().network.paths[name.substr(5)];
      if (answer.status == kCommandMissing) {
        reader.facts().failures[name] = answer.failure();
        continue;
      }
      const bool forbidden = answer.error.find("not permitted") != std::string::npos;
      if (forbidden) {
        reader.facts().failures[name] = answer.failure();
      } else {
        path.answers = answer.ok();
        path.answer = answer.error.empty() ? answer.output : answer.error;
      }
    }
  }
}

void read_listeners(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("listeners");
  if (answer == nullptr) return;
  std::vector<Listener> listeners;
  for (const std::string& line : lines_of(answer->output)) {
    const auto words = words_of(line);
    const size_t colon = words.size() < 4 ? std::string::npos : words[3].rfind(':');
    const auto port = colon == std::string::npos ? std::nullopt : whole_number(words[3].substr(colon + 1));
    if (!port) {
      reader.fault("listeners", "has the line \"" + line.substr(0, 60) + "\"");
      continue;
    }
    std::string process = words.size() > 5 ? words[5] : std::string();
    const size_t open = process.find("((\"");
    if (open != std::string::npos) process = process.substr(open + 3, process.find('"', open + 3) - open - 3);
    listeners.push_back({words[3].substr(0, colon), *port, process});
  }
  reader.facts().network.listeners = std::move(listeners);
}

void read_port_range(const FactReader& reader) {
  const auto words = words_of(reader.text("/proc/sys/net/ipv4/ip_local_port_range"));
  if (words.empty()) return;
  NetworkFacts& network = reader.facts().network;
  network.port_range_low = whole_number(words[0]);
  network.port_range_high = words.size() > 1 ? whole_number(words[1]) : std::nullopt;
  if (!network.port_range_low || !network.port_range_high)
    reader.fault("/proc/sys/net/ipv4/ip_local_port_range", "is \"" + words[0] + "\"");
}

void read_lldp(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("lldp");
  if (answer == nullptr) return;
  Faults faults;
  std::vector<LldpPeer> peers;
  for (const PortNeighbour& each : read_port_neighbours(answer->output, "lldp", faults))
    peers.push_back({each.netdev, each.node, each.port});
  if (!faults.empty()) return reader.fault("lldp", faults[0].what);
  reader.facts().network.lldp = std::move(peers);
}

}  // namespace

void read_links(const FactReader& reader) {
  NetworkFacts& network = reader.facts().network;
  std::vector<Link> links;
  if (for_entries(reader, "addresses",
                  [&](const JsonReader& entry) { links.push_back(read_link(reader, entry)); }))
    network.links = std::move(links);
  for_entries(reader, "neighbours", [&](const JsonReader& entry) {
    Neighbour neighbour{
        text_or_empty(entry, "dst"), text_or_empty(entry, "dev"), text_or_empty(entry, "lladdr"), {}};
    const Json* state = entry.field("state").json();
    if (state != nullptr && state->is_array() && !state->empty() && (*state)[0].is_string())
      neighbour.state = (*state)[0].get<std::string>();
    network.neighbours.push_back(std::move(neighbour));
  });
  if (const auto forwards = reader.number("/proc/sys/net/ipv4/ip_forward")) network.forwards = *forwards != 0;
  if (const CommandAnswer* forward = reader.answer("forward")) {
    for (const std::string& line : lines_of(forward->output)) {
      const auto words = words_of(line);
      if (words.size() == 3 && words[0] == "-P" && words[1] == "FORWARD") network.forward_policy = words[2];
    }
  }
  network.reserved_ports = reader.text("/proc/sys/net/ipv4/ip_local_reserved_ports");
  static const std::string kConf = "/proc/sys/net/ipv6/conf/";
  for (const auto& [path, content] : reader.dump().files) {
    if (path.rfind(kConf, 0) != 0) continue;
    const std::string name = path.substr(kConf.size(), path.find('/', kConf.size()) - kConf.size());
    network.ipv6_disabled[name] = trimmed(content) == "1";
  }
  read_port_range(reader);
  read_lldp(reader);
  read_paths(reader);
  read_listeners(reader);
}

}  // namespace spark::ops::probe
