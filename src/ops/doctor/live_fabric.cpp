// Live rules about cables, interfaces, addresses and routes: what a person has to touch, by cable and port.
#include <algorithm>

#include "ops/doctor/live_context.h"
#include "ops/fabric/ports.h"

namespace spark::ops::live {
namespace {

const Link* link_at(const LiveContext& context, const PathEnd& end) {
  const LiveNode* node = context.find(end.end->node);
  return node == nullptr ? nullptr : node->facts.network.link(end.mine->netdev);
}

bool has_address(const Link& link, const std::string& address) {
  return std::any_of(link.addresses.begin(), link.addresses.end(),
                     [&](const LinkAddress& each) { return each.address == address && each.prefix == 24; });
}

// Nothing else explains why packets do not pass here.
bool sound(const LiveContext& context, const PathEnd& end) {
  const Link* link = link_at(context, end);
  return link != nullptr && link->up && link->carrier && link->mtu == kFabricMtu &&
         (end.mine->address.empty() || has_address(*link, end.mine->address));
}

const PathFacts* path_at(const LiveContext& context, const PathEnd& end) {
  const LiveNode* node = context.find(end.end->node);
  if (node == nullptr) return nullptr;
  const auto found = node->facts.network.paths.find(end.mine->device);
  return found == node->facts.network.paths.end() ? nullptr : &found->second;
}

std::string interfaces_of(const std::vector<PathEnd>& ends) {
  std::string text;
  for (const PathEnd& end : ends) text += (text.empty() ? "" : ", ") + end.end->node + " " + end.mine->netdev;
  return text;
}

// One cable whose ends are known: how many of its path ends carry nothing.
void judge_cable(LiveContext& context, const Cable& cable) {
  std::vector<PathEnd> down, off, known;
  for (const PathEnd& end : context.ends_of(cable)) {
    const Link* link = link_at(context, end);
    if (link == nullptr) continue;
    known.push_back(end);
    if (!link->up)
      off.push_back(end);
    else if (!link->carrier)
      down.push_back(end);
  }
  for (const PathEnd& end : off) {
    context.error(end.place(),
                  "the interface " + end.mine->netdev + " is switched off; it belongs to " + end.cable_name(),
                  "up",
                  "on " + end.end->node + ": sudo ip link set " + end.mine->netdev +
                      " up; then correct its netplan file");
  }
  if (down.empty()) return;
  const std::string name = down.front().cable_name();
  if (down.size() + off.size() == known.size()) {
    // An end that is switched off takes the light away from the other end: then the cable is not the cause.
    if (!off.empty()) return;
    context.error(name, "carries nothing: no carrier on " + interfaces_of(down), "a carrier at both ends",
                  "plug the cable in firmly at " + down.front().of->a.node + " port " +
                      std::to_string(down.front().of->a.port) + " and " + down.front().of->b.node + " port " +
                      std::to_string(down.front().of->b.port) + "; then exchange it for another one");
    return;
  }
  for (const PathEnd& end : down) {
    const bool other_off = std::any_of(off.begin(), off.end(), [&](const PathEnd& each) {
      return each.stripe == end.stripe && each.end->node == end.other->node;
    });
    if (other_off) continue;
    context.error(end.place(), end.mine->netdev + " has no carrier, other paths of " + name + " have one",
                  "a carrier on both paths",
                  "on " + end.end->node + ": sudo ip link set " + end.mine->netdev +
                      " down and up while nothing uses RDMA; if it stays, reseat the cable at port " +
                      std::to_string(end.end->port));
  }
}

// Both functions of a port hear the announcements of both functions at the other end, so ports are compared.
bool same_end(const LldpPeer& peer, const PathEnd& end) {
  const PortPath* port = path_of_netdev(peer.port);
  const bool right_port = peer.port.empty() ||
                          (port == nullptr ? peer.port == end.theirs->netdev : port->port == end.other->port);
  return peer.node == end.other->node && right_port;
}

std::string port_of_netdev(const std::string& netdev) {
  const PortPath* path = path_of_netdev(netdev);
  return path == nullptr ? netdev : "port " + std::to_string(path->port);
}

}  // namespace

void fabric_link(LiveContext& context) {
  if (!context.layout) return;
  for (const LiveNode& node : context.nodes()) {
    if (!node.facts.network.links) {
      context.unknown(node, "the state of the interfaces", "addresses");
      continue;
    }
    for (const PathEnd& end : context.path_ends(node.name())) {
      if (end.mine->netdev.empty() || node.facts.network.link(end.mine->netdev) != nullptr) continue;
      context.error(
          end.place(),
          "the interface " + end.mine->netdev + " does not exist; it belongs to " + end.cable_name(),
          "an interface for every path", "sudo modprobe mlx5_core; sudo dmesg | grep mlx5");
    }
  }
  for (const Cable& cable : context.layout->cables) judge_cable(context, cable);
}

void fabric_mtu(LiveContext& context, const LiveNode& node) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    const Link* link = link_at(context, end);
    if (link == nullptr || link->mtu == kFabricMtu) continue;
    context.error(end.place(),
                  end.mine->netdev + " has an MTU of " + std::to_string(link->mtu) + "; it belongs to " +
                      end.cable_name(),
                  std::to_string(kFabricMtu) + " at both ends",
                  "on " + node.name() + ": sudo ip link set " + end.mine->netdev + " mtu " +
                      std::to_string(kFabricMtu) +
                      " with the service stopped, and mtu: 9000 in /etc/netplan/40-cx7.yaml");
  }
}

void fabric_address(LiveContext& context, const LiveNode& node) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    const Link* link = link_at(context, end);
    if (link == nullptr || end.mine->address.empty()) continue;
    std::string others;
    bool found = false, dynamic = false;
    for (const LinkAddress& each : link->addresses) {
      if (each.ipv6) continue;
      if (each.address == end.mine->address && each.prefix == 24) {
        found = true;
        dynamic = each.dynamic;
      } else {
        others += (others.empty() ? "" : ", ") + each.address + "/" + std::to_string(each.prefix);
      }
    }
    const std::string fix =
        "spark fabric netplan writes the file for " + node.name() + "; apply it with the service stopped";
    if (!found) {
      context.error(end.place(),
                    end.mine->netdev + " has " + (others.empty() ? "no address" : "the address " + others),
                    end.mine->address + "/24, as " + end.cable_name() + " needs", fix);
    } else if (!others.empty()) {
      context.warn(end.place(), end.mine->netdev + " has further addresses: " + others,
                   "one address: more move the GID to another slot", fix);
    } else if (dynamic) {
      context.warn(end.place(), end.mine->netdev + " has its address from DHCP", "a static address", fix);
    }
  }
}

void fabric_ipv6(LiveContext& context, const LiveNode& node) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    const Link* link = link_at(context, end);
    if (link == nullptr) continue;
    const auto found =
        std::find_if(link->addresses.begin(), link->addresses.end(),
                     [](const LinkAddress& each) { return each.ipv6 && each.address.rfind("fe80", 0) != 0; });
    if (found == link->addresses.end()) continue;
    context.warn(end.place(), end.mine->netdev + " has the IPv6 address " + found->address,
                 "none: it takes slots of the GID table",
                 "link-local: [] and accept-ra: false in /etc/netplan/40-cx7.yaml");
  }
}

void fabric_duplicates(LiveContext& context) {
  std::map<std::string, std::string> holders;
  for (const LiveNode& node : context.nodes()) {
    if (!node.facts.network.links) continue;
    for (const Link& link : *node.facts.network.links) {
      // Bridges of container engines have the same address everywhere.
      if (link.name == "lo" || link.name.rfind("docker", 0) == 0 || link.name.rfind("br-", 0) == 0) continue;
      for (const LinkAddress& each : link.addresses) {
        if (each.ipv6) continue;
        const std::string holder = node.name() + " " + link.name;
        const auto [found, first] = holders.emplace(each.address, holder);
        if (first) continue;
        context.error(node.name(),
                      link.name + " has " + each.address + ", which " + found->second + " has as well",
                      "every address once", "correct one of the two; `spark fabric show` lists whose it is");
      }
    }
  }
}

void fabric_cabling(LiveContext& context) {
  if (!context.layout) return;
  for (const LiveNode& node : context.nodes()) {
    const auto& lldp = node.facts.network.lldp;
    if (!lldp) {
      context.unknown(node, "where its cables lead", "lldp");
      continue;
    }
    for (const PathEnd& end : context.path_ends(node.name())) {
      const Link* link = link_at(context, end);
      if (link == nullptr || !link->carrier) continue;
      const auto here = [&](const LldpPeer& peer) { return peer.netdev == end.mine->netdev; };
      const auto seen = std::find_if(lldp->begin(), lldp->end(), here);
      const bool right = std::any_of(lldp->begin(), lldp->end(),
                                     [&](const LldpPeer& peer) { return here(peer) && same_end(peer, end); });
      if (right) continue;
      if (seen == lldp->end()) {
        context.warn(end.place(), "no neighbour announces itself on " + end.mine->netdev,
                     end.other->node + " through " + end.cable_name(),
                     "sudo systemctl enable --now lldpd on " + end.other->node);
      } else {
        context.error(
            end.place(), "its cable leads to " + seen->node + " " + port_of_netdev(seen->port),
            end.other->node + " port " + std::to_string(end.other->port) + ", as " + end.cable_name(),
            "move the plug at " + node.name() + " port " + std::to_string(end.end->port) +
                ", or correct the node map: spark fabric import");
      }
    }
  }
}

void fabric_path(LiveContext& context) {
  if (!context.layout) return;
  std::vector<std::pair<const Cable*, PathEnd>> dead;
  for (const Cable& cable : context.layout->cables) {
    size_t silent = 0, asked = 0;
    std::vector<PathEnd> failing;
    for (const PathEnd& end : context.ends_of(cable)) {
      const PathFacts* path = path_at(context, end);
      const PathEnd back{end.cable, end.of, end.stripe, end.other, end.end, end.theirs, end.mine, end.subnet};
      if (path == nullptr || !sound(context, end) ||
          (context.find(end.other->node) != nullptr && !sound(context, back)))
        continue;
      if (!path->answers) {
        if (const LiveNode* node = context.find(end.end->node))
          context.unknown(*node, "whether " + end.theirs->address + " answers", "ping-" + end.mine->device);
        continue;
      }
      ++asked;
      if (!*path->answers) ++silent, failing.push_back(end);
    }
    if (asked > 0 && silent == asked && asked >= 2) {
      dead.emplace_back(&cable, failing.front());
      continue;
    }
    for (const PathEnd& end : failing) {
      const bool too_long = path_at(context, end)->answer.find("too long") != std::string::npos;
      context.error(end.place(),
                    end.theirs->address + " (" + end.other->node +
                        ") does not answer to packets of 9000 bytes through " + end.mine->netdev +
                        (too_long ? ": the path takes smaller ones only" : ""),
                    "an answer",
                    "ping -c2 -M do -s 8972 " + end.theirs->address + " on " + end.end->node + "; look at " +
                        end.cable_name());
    }
  }
  // Every port has light and the right address, yet nobody answers: plugs are in each other's ports.
  std::string suspect;
  if (dead.size() == 2) {
    const Cable &one = *dead[0].first, &two = *dead[1].first;
    for (const CableEnd* end : {&one.a, &one.b}) {
      if (end->node == two.a.node || end->node == two.b.node) suspect = end->node;
    }
  }
  for (const auto& [cable, end] : dead) {
    context.error(
        end.cable_name(), "is plugged in, but the two ends do not hear one another", "answers on both paths",
        suspect.empty()
            ? "see where it really leads: sudo lldpctl on both machines; compare with `spark fabric show`"
            : "the two plugs at " + suspect + " are probably exchanged: swap port 0 and port 1 there");
  }
}

void fabric_route(LiveContext& context, const LiveNode& node) {
  for (const PathEnd& end : context.path_ends(node.name())) {
    const PathFacts* path = path_at(context, end);
    if (path == nullptr || !path->route_known || !sound(context, end)) continue;
    if (path->route_netdev == end.mine->netdev && path->route_gateway.empty()) continue;
    const std::string evidence =
        path->route_netdev.empty()
            ? "there is no route to " + end.theirs->address
            : "packets to " + end.theirs->address + " leave through " + path->route_netdev +
                  (path->route_gateway.empty() ? "" : " to the gateway " + path->route_gateway);
    context.error(end.place(), evidence, "directly through " + end.mine->netdev,
                  "ip route get " + end.theirs->address +
                      "; remove the other route, or the interface that claims this subnet");
  }
}

void fabric_forwarding(LiveContext& context, const LiveNode& node) {
  const NetworkFacts& network = node.facts.network;
  if (!network.forwards) return context.unknown(node, "net.ipv4.ip_forward", "files");
  if (!*network.forwards) return;
  if (network.forward_policy.empty()) return context.unknown(node, "the FORWARD policy", "forward");
  if (network.forward_policy != "ACCEPT") return;
  context.warn(node.name(), "forwards packets between all interfaces (ip_forward=1, FORWARD policy ACCEPT)",
               "policy DROP: traffic around a broken cable would pass through this node unnoticed",
               "sudo iptables -P FORWARD DROP (Docker sets this itself unless its iptables are off)");
}

}  // namespace spark::ops::live
