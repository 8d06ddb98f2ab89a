// The small text forms that configuration uses: hexadecimal, commits, digests, addresses, whole numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spark::ops {

bool is_hex(std::string_view text);     // non-empty, digits of either case
bool is_commit(std::string_view text);  // 40 lowercase or uppercase hexadecimal digits
bool is_sha256(std::string_view text);  // 64 hexadecimal digits
bool is_ipv4(std::string_view text);    // strict dotted quad: no leading zeros, no blanks
bool is_ip(std::string_view text);      // IPv4 or IPv6
// A name that is safe as an SSH destination and in a unit name: starts with a letter or digit.
bool is_host_name(std::string_view text);
std::optional<int64_t> whole_number(std::string_view text);  // decimal, nothing else around it

// Docker's sizes, "16g": a number with b, k, m or g, in bytes.
std::optional<int64_t> docker_size(const std::string& text);

// Single-quoted where a POSIX shell needs it; the words joined by blanks can be pasted.
std::string shell_quote(const std::string& word);

}  // namespace spark::ops
