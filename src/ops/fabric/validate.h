// Does the node map describe a fabric that the profile's transport can run on: a triangle of three or a ring
// of four directly cabled nodes?
//
//   Findings findings = validate_fabric(profile, map);   // empty: the cables add up
//
// Pure: form has been checked by read_node_map. `rule` is one of the ids below, `where` a path in the node
// map
// ("nodes[2].roce_peer_hcas.1") or in the profile ("fabric.transport"), `file` is left to the caller.
//
//   fabric.nodes       three or four nodes; two nodes and switched fabrics are refused with the reason
//   fabric.ranks       ranks are exactly 0..n-1 (otherwise nothing below is checked)
//   fabric.identity    name and management_ip distinct, non-empty, well-formed
//   fabric.mesh-paths  mesh_paths is 2, or 4 on the forwarded mesh
//   fabric.transport   known; four nodes need a neighbour ring; ring4 and mesh4 need four; direct needs three
//   fabric.peers       peer-map keys, one or two devices each (mesh: two), reciprocal counts, no device
//   twice,
//                      equal counts for all peers on one-shot transports
//   fabric.subnets     a strict /24 per device on rings; each subnet at exactly the two ends of one cable;
//   one-shot: at
//                      the same stripe position
//   fabric.stripes     one-shot: one stripe count over all ranks
//   fabric.gid-index   not negative, in the GID table
//   fabric.mesh-ports  what the forwarded mesh needs of mesh_ports
#pragma once

#include "ops/site/finding.h"
#include "ops/site/node_map.h"
#include "ops/site/profile.h"

namespace spark::ops {

Findings validate_fabric(const ClusterProfile& profile, const NodeMap& map);

}  // namespace spark::ops
