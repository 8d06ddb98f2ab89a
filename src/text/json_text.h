// JSON as prompts contain it: ", " and ": " between the parts, characters beyond ASCII as they are, keys in
// order, numbers as Python prints them (1e+16, 100.0, integers of any length).
//
//   to_prompt_json({{"a", 1}, {"b", {"é"}}})   // {"a": 1, "b": ["é"]}
#pragma once

#include <string>
#include <string_view>

#include "common/json.h"

namespace spark::text {

std::string to_prompt_json(const Json& value);

// Appends what stands between the quotes of a JSON string; `text` may be a piece of a longer one, cut
// anywhere.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace spark::text
