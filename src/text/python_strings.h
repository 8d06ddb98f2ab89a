// The string constants of a Python module, read without running it. Internal to this room.
//
//   const PythonStrings constants = python_strings(source, "encoding.py");
//   constants.values.at("dsml_token");   // "｜DSML｜"
//
// A constant is an assignment that begins a line without indentation and has one string literal, plain or
// triple-quoted, on its right: NAME = "a", NAME: str = 'a', NAME = """a""". Everything else is passed over,
// an assignment of f-strings, byte strings or sums too. The last assignment of a name counts, and if it is no
// constant the name has none; NAME += "b" appends. Every line end of the module (\r\n, \r) counts as \n.
//
// Throws Error ("FILE:LINE") for a literal that does not end. A constant with an escape that Python refuses
// or that is not supported (\N{...}) is no value: its error stands beside the values.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/error.h"

namespace spark::text {

// A character of a name; beyond ASCII none counts.
bool is_python_name_byte(char c);

struct PythonStrings {
  std::map<std::string, std::string> values;
  std::map<std::string, Error> unreadable;
  std::string code;  // the module with blanks for its comments and for what its literals say
};

PythonStrings python_strings(std::string_view module, const std::string& source);

}  // namespace spark::text
