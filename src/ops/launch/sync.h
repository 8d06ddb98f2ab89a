// What `cluster sync` asks before it moves a checkout.
#pragma once

#include "ops/launch/node_look.h"
#include "ops/site/finding.h"
#include "ops/site/site.h"

namespace spark::ops {

// The commit that a name stands for here; HEAD when empty. Throws Error.
std::string resolve_revision(const Repository& repository, const std::string& wanted);

// Fetches from the origin; throws Error when no branch of it (the profile's, where it names one) has the
// revision.
void require_published(const Repository& repository, const Site& site, const std::string& revision);

// Whether every node has a clean checkout of the right origin. Pure.
Findings judge_sync(const Site& site, const std::vector<NodeLook>& looks);

}  // namespace spark::ops
