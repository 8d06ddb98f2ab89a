// What a benchmark report records of the service that it measured, beside what the service itself says: what
// `read_report_shape` (ops/site/site.h) and a reader ask for before two reports are compared.
//
//   report.deployment = deployment_identity(site);  // "topology": {"nodes": ["node1", ...]}, "engine": ...
#pragma once

#include "common/json.h"
#include "ops/site/site.h"

namespace spark::ops {

// Members of the report's "identity": the profile and the hash of what it resolves to, engine, nodes, tensor
// parallel size, transport and kernel family.
Json deployment_identity(const Site& site);

}  // namespace spark::ops
