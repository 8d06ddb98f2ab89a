// What several nodes have in common is said once: "node1, node2, node3: ...".
#pragma once

#include "ops/site/finding.h"

namespace spark::ops {

// For people; a script reads the findings as they are. Findings of nodes that differ in nothing but the node
// become one, at the place of the first.
Findings grouped_by_node(const Findings& findings);

}  // namespace spark::ops
