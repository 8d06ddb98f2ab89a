// Text-file tests: tests/data/text/*.test. A case is a block of "key: value" lines; blank lines separate
// cases, lines that start with # are comments. Values are JSON (strings with escapes, lists, objects), so any
// text can be written.
//
//   name: a blank before a word
//   text: "Hello world"
//   ids: [532, 78, 78, 81]
#pragma once

#include <string>
#include <vector>

#include "common/json.h"
#include "text/tokenizer.h"

namespace spark::text {

struct FileCase {
  std::string place;  // file:line
  Json fields = Json::object();

  bool has(const std::string& key) const { return fields.contains(key); }
  const Json& operator[](const std::string& key) const;  // throws Error when the case lacks the key
};

// `name` is relative to tests/data/text. Throws Error for a missing, empty or malformed file.
std::vector<FileCase> read_cases(const std::string& name);

// tests/data/NAME
std::string data_path(const std::string& name);

// Of the golden tiny checkpoint, tests/data/golden/tiny-tokenizer.json.
const Tokenizer& tiny_tokenizer();

}  // namespace spark::text
