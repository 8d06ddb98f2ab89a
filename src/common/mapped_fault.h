// What a program says when a file that it has mapped loses bytes: one cut short in place, or on a disk that
// fails, raises SIGBUS where it is read, which no caller can catch.
//
//   explain_lost_pages(1);        // once, at the start
//   MappedFile file("shard");     // notes itself
//
// From then on such a read ends the process with one message that names the file, and the exit code given.
// Every other SIGBUS ends it as before.
#pragma once

#include <cstddef>
#include <string_view>

namespace spark {

void explain_lost_pages(int exit_code);

// A mapping of [data, data + size). The first kNotedMappings at a time are known by name.
constexpr size_t kNotedMappings = 1024;
void note_mapping(const void* data, size_t size, std::string_view path);
void forget_mapping(const void* data);

}  // namespace spark
