#include "text/tool_text.h"

#include <filesystem>
#include <map>
#include <vector>

#include "common/error.h"
#include "common/file.h"
#include "common/hash.h"
#include "text/python_strings.h"
#include "text/unicode.h"

namespace spark::text {
namespace {

constexpr size_t kMaxModuleBytes = 1 << 20;
constexpr std::string_view kToolsTemplate = "TOOLS_TEMPLATE";
constexpr std::string_view kSchemasField = "tool_schemas";
constexpr const char* kModuleHint = "use the encoding/encoding.py that was published with the model";

std::string_view name_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_python_name_byte(text[end])) ++end;
  return text.substr(at, end - at);
}

size_t past_blanks(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n'))
    ++at;
  return at;
}

// Which constant stands for which field: the arguments `field=NAME` of the first TOOLS_TEMPLATE.format(...)
// in the module's code. An argument that is more than a name ends a line with something else and is left out.
std::map<std::string, std::string> format_arguments(std::string_view code) {
  std::map<std::string, std::string> arguments;
  const std::string call = std::string(kToolsTemplate) + ".format(";
  size_t at = code.find(call);
  while (at != std::string_view::npos && at > 0 && is_python_name_byte(code[at - 1]))
    at = code.find(call, at + 1);  // another constant, whose name ends like this one's
  if (at == std::string_view::npos) return arguments;
  int depth = 1;
  for (at += call.size(); at < code.size() && depth > 0;) {
    const std::string_view field = name_at(code, at);
    if (field.empty()) {
      depth += code[at] == '(' ? 1 : code[at] == ')' ? -1 : 0;
      ++at;
      continue;
    }
    at = past_blanks(code, at + field.size());
    if (depth != 1 || at >= code.size() || code[at] != '=') continue;
    at = past_blanks(code, at + 1);
    const std::string_view name = name_at(code, at);
    at = past_blanks(code, at + name.size());
    if (!name.empty() && at < code.size() && (code[at] == ',' || code[at] == ')'))
      arguments[std::string(field)] = name;
  }
  return arguments;
}

// A format string's text up to {tool_schemas} and after it, with its other fields filled in.
class ToolTextReader {
 public:
  ToolTextReader(std::string_view module, const std::string& source)
      : source_(source),
        constants_(python_strings(module, source)),
        arguments_(format_arguments(constants_.code)) {}

  ChatTemplateParts read() {
    const std::string* const found = constant(std::string(kToolsTemplate));
    if (found == nullptr) fail("has no string constant TOOLS_TEMPLATE");
    std::vector<std::string> parts(1);
    const std::string_view text = *found;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c != '{' && c != '}') {
        parts.back() += c;
        ++at;
      } else if (at + 1 < text.size() && text[at + 1] == c) {
        parts.back() += c;
        at += 2;
      } else {
        const std::string_view field = field_at(text, at);
        at += field.size() + 2;
        if (field == kSchemasField) {
          parts.emplace_back();
        } else {
          parts.back() += value_of(std::string(field));
        }
      }
    }
    if (parts.size() != 2) fail("TOOLS_TEMPLATE must have {tool_schemas} once");
    for (const std::string& part : parts) {
      if (!is_valid_utf8(part)) fail("TOOLS_TEMPLATE is not valid UTF-8");
    }
    return {std::move(parts[0]), std::move(parts[1])};
  }

 private:
  std::string_view field_at(std::string_view text, size_t at) const {
    const std::string_view name = text[at] == '{' ? name_at(text, at + 1) : std::string_view();
    const size_t end = at + 1 + name.size();
    if (name.empty() || end >= text.size() || text[end] != '}')
      fail("TOOLS_TEMPLATE has a brace that is neither doubled nor a field's");
    return name;
  }

  const std::string* constant(const std::string& name) const {
    if (const auto bad = constants_.unreadable.find(name); bad != constants_.unreadable.end())
      throw bad->second;
    const auto found = constants_.values.find(name);
    return found == constants_.values.end() ? nullptr : &found->second;
  }

  const std::string& value_of(const std::string& field) const {
    const auto argument = arguments_.find(field);
    const std::string* const found = constant(argument == arguments_.end() ? field : argument->second);
    if (found == nullptr) fail("nothing says what {" + field + "} of TOOLS_TEMPLATE is");
    return *found;
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(what, source_, kModuleHint); }

  const std::string& source_;
  PythonStrings constants_;
  std::map<std::string, std::string> arguments_;
};

}  // namespace

ChatTemplateParts read_tool_text(std::string_view module, const std::string& source) {
  if (module.size() > kMaxModuleBytes) throw Error("is larger than 1 MiB", source, kModuleHint);
  return ToolTextReader(module, source).read();
}

std::optional<ChatTemplateParts> load_tool_text(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kToolTextPath;
  std::error_code error;
  // A link that leads nowhere is a fault of the download, not a checkpoint without the file.
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::not_found) return std::nullopt;
  // Reading a pipe would wait for whoever writes to it.
  const auto target = std::filesystem::status(path, error);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target) &&
      !std::filesystem::is_directory(target)) {
    throw Error("is no regular file, but a pipe, socket or device", path, kModuleHint);
  }
  return read_tool_text(read_file(path, kMaxModuleBytes), path);
}

bool is_published_tool_text(const ChatTemplateParts& parts) {
  return sha256_hex(parts.before_schemas) ==
             "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d" &&
         sha256_hex(parts.after_schemas) ==
             "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7";
}

}  // namespace spark::text
