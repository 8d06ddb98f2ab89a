// The folder that holds the sockets of shared connections.
#pragma once

#include <string>

namespace spark::ops {

// Creates it with mode 0700, or checks that it is this user's own and closed to others.
void make_control_folder(const std::string& folder);

}  // namespace spark::ops
