// Changes a JSON text as a person or a broken program would: a member lost, doubled, renamed, moved
// elsewhere, of another kind, out of range, nested deeply. Bytes that are flipped at random hardly ever get
// past the parser; these do.
#pragma once

#include <string>

namespace spark::fuzz {

// The text itself when it is not JSON.
std::string mutate_json(const std::string& text, unsigned seed);

}  // namespace spark::fuzz
