#include "text/tool_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/error.h"
#include "text/python_strings.h"
#include "unit/temporary_folder.h"

namespace spark::text {
namespace {

std::string refusal(const std::string& module) {
  try {
    read_tool_text(module, "encoding.py");
  } catch (const Error& error) {
    return error.describe();
  }
  return "";
}

TEST(PythonStrings, ReadsConstantsOnly) {
  const PythonStrings found = python_strings(
      "#!/usr/bin/python\n"
      "\"\"\"A docstring.\nnot_one = \"x\"\n\"\"\"\n"
      "import json\n"
      "plain = 'it''s'\n"  // two literals: not one constant
      "one: str = \"a\\tb\\u00e9\\x41\\101\\\\ \\q\"  # a comment with \"quotes\n"
      "raw = r'\\n'\n"
      "joined = \"a\" + one\n"
      "text = f\"{one}\"\n"
      "same == \"x\"\n"
      "long = \"\"\"first \"line\"\nsecond \\\nsame\"\"\"\r\n"
      "def f():\n    inner = \"no\"\n"
      "twice = 'a'\n"
      "twice = 'b'\n"
      "sum = 'a'\nsum += 'b'  # and\nsum += \"c\"\n"
      "gone = 'a'\ngone += sum\n"
      "gone_too = 'a'\ngone_too = f(sum)\n"
      "never += 'a'\n"
      "bad = '\\xg0'\n"
      "good = '\\xg0'\ngood = 'again'",
      "m.py");
  const std::map<std::string, std::string> expected = {{"one",
                                                        "a\tb\xC3\xA9"
                                                        "AA\\ \\q"},
                                                       {"raw", "\\n"},
                                                       {"long", "first \"line\"\nsecond same"},
                                                       {"twice", "b"},
                                                       {"sum", "abc"},
                                                       {"good", "again"}};
  EXPECT_EQ(found.values, expected);
  ASSERT_EQ(found.unreadable.size(), 1U);
  EXPECT_EQ(found.unreadable.begin()->first, "bad");
}

TEST(PythonStrings, SaysWhereALiteralIsWrong) {
  const auto where = [](const std::string& module) -> std::string {
    try {
      const PythonStrings found = python_strings(module, "m.py");
      if (!found.unreadable.empty()) return found.unreadable.begin()->second.where();
    } catch (const Error& error) {
      return error.where();
    }
    return "";
  };
  EXPECT_EQ(where("a = 1\nb = \"x\nc = 2\n"), "m.py:2");
  EXPECT_EQ(where("b = \"\"\"x\n\n"), "m.py:1");
  EXPECT_EQ(where("b = \"x\\"), "m.py:1");
  EXPECT_EQ(where("\n\nb = '\\N{DIGIT ONE}'"), "m.py:3");
  EXPECT_EQ(where("b = '\\xg0'"), "m.py:1");
  EXPECT_EQ(where("b = '\\ud800'"), "m.py:1");
  EXPECT_EQ(where("b = '\\U00110000'"), "m.py:1");
}

TEST(ToolText, FillsTheFieldsAsTheModuleDoes) {
  const ChatTemplateParts parts = read_tool_text(
      "mark: str = \"<>\"\nopening = ' calls'\n"
      "TOOLS_TEMPLATE = \"\"\"## Tools {{x}} {mark}{block}\n{tool_schemas}\nend {mark}\n\"\"\"\n"
      "def render(tools):\n    return TOOLS_TEMPLATE.format(\n        tool_schemas=\"\\n\".join(to_json(t) "
      "for t in tools),\n"
      "        block=opening,\n        mark = mark)\n",
      "encoding.py");
  EXPECT_EQ(parts.before_schemas, "## Tools {x} <> calls\n");
  EXPECT_EQ(parts.after_schemas, "\nend <>\n");
  EXPECT_FALSE(is_published_tool_text(parts));
}

TEST(ToolText, IsNotMisledByWhatStandsAroundIt) {
  const std::string module =
      "# TOOLS_TEMPLATE.format(mark=wrong)\n"
      "'''As in TOOLS_TEMPLATE.format(mark=wrong).'''\n"
      "wrong = '!'\nright = '<>'\nbroken = '\\N{DIGIT ONE}'\n"
      "OLD_TOOLS_TEMPLATE.format(mark=wrong)\n"
      "TOOLS_TEMPLATE = \"\"\"## Tools\n{mark}\n\"\"\"\n"
      "TOOLS_TEMPLATE += '{tool_schemas}\\nend\\n'\n"
      "text = TOOLS_TEMPLATE.format(tool_schemas=')'.join(a),  # not mark=wrong)\n    mark=right)\n";
  std::string windows;
  for (const char c : module) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  for (const std::string& text : {module, windows}) {
    const ChatTemplateParts parts = read_tool_text(text, "encoding.py");
    EXPECT_EQ(parts.before_schemas, "## Tools\n<>\n");
    EXPECT_EQ(parts.after_schemas, "\nend\n");
  }
  // An escape of the text's own is a fault still.
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas}\\xg0'").find("encoding.py:1"), std::string::npos);
  EXPECT_NE(refusal("mark = '\\xg0'\nTOOLS_TEMPLATE = '{mark}{tool_schemas}'").find("escape"),
            std::string::npos);
}

TEST(ToolText, SaysWhatIsWrong) {
  EXPECT_NE(refusal("x = 'y'").find("no string constant TOOLS_TEMPLATE"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = 'no schemas'").find("{tool_schemas} once"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas}{tool_schemas}'").find("once"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas}{other}'").find("{other}"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas}}'").find("brace"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas!r}'").find("brace"), std::string::npos);
  EXPECT_NE(refusal("TOOLS_TEMPLATE = '{tool_schemas").find("encoding.py:1"), std::string::npos);
  EXPECT_NE(refusal(std::string((1 << 20) + 1, ' ')).find("1 MiB"), std::string::npos);
}

TEST(ToolText, ALinkToNowhereIsNoCheckpointWithoutTools) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(load_tool_text(folder.path()));
  std::filesystem::create_directory(folder.path() + "/encoding");
  std::filesystem::create_symlink("nowhere", folder.path() + "/encoding/encoding.py");
  EXPECT_THROW(load_tool_text(folder.path()), Error);
}

TEST(ToolText, APipeIsRefusedAtOnce) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/encoding");
  const std::string path = folder.path() + "/encoding/encoding.py";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int writer = ::open(path.c_str(), O_RDWR | O_CLOEXEC);  // one that says nothing
  ASSERT_GE(writer, 0);
  try {
    load_tool_text(folder.path());
    ADD_FAILURE() << "read a pipe";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no regular file"), std::string::npos);
  }
  ::close(writer);
}

}  // namespace
}  // namespace spark::text
