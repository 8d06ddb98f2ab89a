// The string constants of a Python module, read without running it. Internal to this room.
//
//   const auto constants = python_strings(source, "encoding.py");   // {"dsml_token": "｜DSML｜", ...}
//
// A constant is an assignment that begins a line without indentation and has one string literal, plain or
// triple-quoted, on its right: NAME = "a", NAME: str = 'a', NAME = """a""". Everything else is passed over,
// an assignment of f-strings, byte strings or sums too. The last assignment of a name counts.
//
// Throws Error ("FILE:LINE") for a literal that does not end, and for a constant with an escape that Python
// refuses or that is not supported (\N{...}).
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace spark::text {

// A character of a name; beyond ASCII none counts.
bool is_python_name_byte(char c);

std::map<std::string, std::string> python_strings(std::string_view module, const std::string& source);

}  // namespace spark::text
