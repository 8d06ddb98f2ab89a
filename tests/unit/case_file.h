// Text-file tests of the site rooms: tests/data/<room>/*.test. A case is a block of "key: value" lines,
// values are JSON; blank lines separate cases, lines that start with # are comments.
//
//   name: a cable is missing
//   cables: ["node1:0 node2:1", "node2:0 node3:1"]
//   error: ["node3 port 0", "sees no neighbour"]
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/json.h"

namespace spark::test {

struct FileCase {
  std::string place;  // file:line
  Json fields = Json::object();

  bool has(const std::string& key) const { return fields.contains(key); }
  const Json& operator[](const std::string& key) const {
    if (!has(key)) throw Error("has no \"" + key + "\"", place);
    return fields.at(key);
  }
};

inline std::vector<FileCase> read_cases(const std::string& path) {
  std::vector<FileCase> cases;
  std::istringstream lines(read_file(path));
  std::string line;
  bool open = false;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      open = false;
      continue;
    }
    const std::string place = path + ":" + std::to_string(number);
    if (!open) cases.push_back({place, Json::object()});
    open = true;
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) throw Error("is no \"key: value\" line", place);
    const std::string key = line.substr(0, colon);
    const std::string value = line.substr(colon + 2);
    cases.back().fields[key] = key == "name" ? Json(value) : parse_json(value, place);
  }
  if (cases.empty()) throw Error("holds no case", path);
  return cases;
}

// What `call` throws, in full; "" when it throws nothing.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.describe();
  }
  return {};
}

}  // namespace spark::test
