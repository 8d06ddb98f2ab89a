// What to do about a file that cannot be read, by the system's error: "copy it again" helps only a damaged
// one.
//
//   throw Error("cannot be opened: " + std::string(std::strerror(error)), path, read_advice(error));
#pragma once

#include <string>

namespace spark {

// Empty when the error speaks for itself.
std::string read_advice(int error);

}  // namespace spark
