// SHA-256 (OpenSSL), as 64 lowercase hex digits.
#pragma once

#include <string>
#include <string_view>

namespace spark {

std::string sha256_hex(std::string_view data);

}  // namespace spark
