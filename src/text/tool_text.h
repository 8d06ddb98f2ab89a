// The checkpoint's own description of tools, out of its encoding/encoding.py.
//
//   std::optional<ChatTemplateParts> parts = load_tool_text("model");   // nothing: the checkpoint has none
//   options.template_parts = parts;
//
// The text around the schemas is the publisher's, so it is read where it lies and not kept here. What is
// read: the module's string constants (NAME = "...", NAME: str = """..."""), among them TOOLS_TEMPLATE, whose
// fields {name} are filled as the module's TOOLS_TEMPLATE.format(field=NAME, ...) says, or else with the
// constant of the field's own name; {{ and }} are braces. {tool_schemas} is where the schemas go. Nothing is
// executed.
//
// The published text has 884 bytes before the schemas and 99 after them; `is_published_tool_text` tells
// whether a text is that one, by SHA-256 (model.md 6.2).
//
// Errors (spark::Error with file and line): a file that cannot be read or is larger than 1 MiB, no
// TOOLS_TEMPLATE, a string that does not end, an escape or a field that nothing defines, not exactly one
// {tool_schemas}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/chat.h"

namespace spark::text {

// Where the file lies within a checkpoint's folder.
inline constexpr const char* kToolTextPath = "encoding/encoding.py";

std::optional<ChatTemplateParts> load_tool_text(const std::string& checkpoint);

// `source` names the module in errors.
ChatTemplateParts read_tool_text(std::string_view module, const std::string& source);

bool is_published_tool_text(const ChatTemplateParts& parts);

}  // namespace spark::text
