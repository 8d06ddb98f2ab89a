// The cable map as a picture: machines with their two ports as on the back, cables from port to port, so that
// a person can hold it beside the machines.
//
//   write_file_atomic("cables.svg", layout_svg(layout));
#pragma once

#include <string>

#include "ops/fabric/layout.h"

namespace spark::ops {

// A complete SVG document; the same layout gives the same bytes. Colours are never the only carrier of
// meaning: every cable carries its number, every port its name.
std::string layout_svg(const FabricLayout& layout);

}  // namespace spark::ops
