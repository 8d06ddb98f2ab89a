// Nodes by the names that a person types.
#pragma once

#include <string>

#include "ops/site/site.h"

namespace spark::app {

// Throws Error that names the nearest name, or lists all.
const ops::Node& find_node(const ops::Site& site, const std::string& name);

}  // namespace spark::app
