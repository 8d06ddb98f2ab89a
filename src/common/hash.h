// SHA-256, as lowercase hexadecimal: file identities, fingerprints, pins.
//
//   sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#pragma once

#include <string>
#include <string_view>

namespace spark {

std::string sha256_hex(std::string_view bytes);

// The same of a file of any size; Error when it cannot be read to its end.
std::string sha256_hex_of_file(const std::string& path);

}  // namespace spark
