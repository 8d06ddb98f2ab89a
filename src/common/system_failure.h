// The standard library's errors in this program's form: what failed, where, what to do.
#pragma once

#include <system_error>

#include "common/error.h"

namespace spark {

//   cannot create directory: Permission denied [/x]  ->  /x: cannot create directory: Permission denied
Error explained(const std::system_error& error);

}  // namespace spark
