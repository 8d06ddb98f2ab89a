// Cables found by the machines themselves: what `lldpctl -f json` prints on every node becomes a node map in
// cable order.
//
//   ssh node1 sudo lldpctl -f json > node1.json        (on every node; lldpd must run)
//   NodeMap map = import_neighbours({.ssh_user = "spark", .reports = {{"node1", "192.0.2.1", text}, ...}});
//
// Every fault names the machine, the port and where its cable leads. Anything but a triangle of three or one
// ring of four is refused: two machines, a switch, two cables between the same pair.
#pragma once

#include <string>
#include <vector>

#include "common/json.h"
#include "ops/site/node_map.h"

namespace spark::ops {

struct NeighbourReport {
  std::string node;           // host name, as its neighbours see it (LLDP system name, up to the first dot)
  std::string management_ip;  // empty: the first IPv4 address that its neighbours report for it
  std::string text;           // output of lldpctl -f json on that node
};

struct ImportRequest {
  std::string ssh_user;
  std::vector<NeighbourReport> reports;  // the first is the head; the others in any order
  int64_t first_octet = 10;
};

// What one interface sees at the other end of its cable.
struct PortNeighbour {
  std::string netdev;  // local interface
  std::string node;    // system name of the other end, up to the first dot
  std::string port;    // its interface, if it says one
};

// One machine's `lldpctl -f json`, taken apart; a text of another form is one fault at `source`.
std::vector<PortNeighbour> read_port_neighbours(const std::string& text, const std::string& source,
                                                Faults& faults);

// Throws Error with every fault. The map's ranks follow the cables from the head's port 0.
NodeMap import_neighbours(const ImportRequest& request);

}  // namespace spark::ops
