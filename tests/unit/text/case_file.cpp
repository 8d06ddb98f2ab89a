#include "unit/text/case_file.h"

#include <sstream>

#include "common/error.h"
#include "common/file.h"

namespace spark::text {

const Json& FileCase::operator[](const std::string& key) const {
  const auto found = fields.find(key);
  if (found == fields.end()) throw Error("the case has no line \"" + key + ":\"", place);
  return *found;
}

std::string data_path(const std::string& name) {
  return std::string(SPARK_TEST_DATA) + "/" + name;
}

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_file(data_path("golden/tiny-tokenizer.json"));
  return tokenizer;
}

std::vector<FileCase> read_cases(const std::string& name) {
  std::istringstream lines(read_file(data_path("text/" + name)));
  std::vector<FileCase> cases;
  bool open = false;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) open = false;
    if (line.empty() || line[0] == '#') continue;
    const std::string place = name + ":" + std::to_string(number);
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) throw Error("must be \"key: value\"", place);
    if (!open) cases.push_back({place, Json::object()});
    open = true;
    const std::string key = line.substr(0, colon);
    const std::string value = line.substr(colon + 2);
    cases.back().fields[key] = key == "name" ? Json(value) : parse_json(value, place);
  }
  if (cases.empty()) throw Error("has no case", name);
  return cases;
}

}  // namespace spark::text
