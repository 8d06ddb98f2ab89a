// Where a path of a machine is below a folder that stands for its root. Links on the way are followed as that
// machine would: an absolute one begins at the folder, and nothing leads out of it. The last name is not
// followed, nor does anything have to exist.
//
//   path_inside("/srv/image", "/etc/sysctl.d/a.conf")   // "/srv/image/usr/lib/a.conf" when
//                                                       // /srv/image/etc/sysctl.d is a link to /usr/lib
#pragma once

#include <string>

namespace spark::ops {

// Throws Error when links lead in a circle.
std::string path_inside(const std::string& root, const std::string& path);

}  // namespace spark::ops
