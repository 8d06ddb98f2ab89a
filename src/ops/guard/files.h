// Reading small kernel files and talking to Unix sockets with fixed buffers and deadlines.
#pragma once

#include <string_view>

#include "common/descriptor.h"
#include "ops/guard/text.h"

namespace spark::ops {

// One buffer for whatever is being read; the guard has one thread and uses a text before it reads the next.
inline constexpr size_t kGuardBufferBytes = 64 << 10;

// From the beginning, whatever was read before. A null data() is a failure; an empty file is not.
std::string_view read_again(int fd);
std::string_view read_path(const char* path);

Descriptor open_path(const char* path, int flags);
PathText joined(std::string_view a, std::string_view b, std::string_view c = {});

int64_t now_ms();  // monotonic

// Sends the request to a Unix socket and returns the answer until the other side closes or the buffer is
// full. A null data() is a failure.
std::string_view ask_socket(std::string_view path, std::string_view request, int64_t timeout_ms);

}  // namespace spark::ops
