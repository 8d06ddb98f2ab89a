// The text that the tokenizer of synthetic checkpoints is trained on: English, code, data, a little of other
// scripts.
#pragma once

#include <string>
#include <string_view>

namespace spark::engine {

std::string synthetic_corpus();

}  // namespace spark::engine
