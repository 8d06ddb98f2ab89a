// The tool text of a synthetic checkpoint: a module of the published one's form, in words of this project, so
// that requests with tools can be tried.
#pragma once

#include <string_view>

namespace spark::engine {

// The content of encoding/encoding.py; see text/tool_text.h.
std::string_view synthetic_tool_text();

}  // namespace spark::engine
