// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace spark {

std::string format_bytes(uint64_t bytes);            // binary units: "3.50 GiB"
std::string format_count(uint64_t count);            // thousands separators: "2,845,543"
std::string format_fixed(double value, int digits);  // "12.30"

}  // namespace spark
