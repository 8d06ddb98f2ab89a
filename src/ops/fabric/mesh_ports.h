// What the NIC-forwarded mesh (transport rocenante-mesh4, for qualification only) needs of a node map's
// mesh_ports: every device of the peer map with interface, PCI address, MAC and address, all well-formed and
// each once.
#pragma once

#include "ops/site/finding.h"
#include "ops/site/node_map.h"

namespace spark::ops {

void check_mesh_ports(const NodeMap& map, Findings& findings);

}  // namespace spark::ops
