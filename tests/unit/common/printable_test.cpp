// What comes from elsewhere moves no cursor, rings no bell and begins no line of its own.
#include "common/printable.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "common/log.h"
#include "common/table.h"

namespace spark {
namespace {

// ESC, BEL, OSC, CR, a newline, CSI of C1, a mark that turns the direction, a byte that is no UTF-8.
const std::string kHostile =
    "a\x1b[2Jb\x07"
    "c\x1b]0;t\x07"
    "d\re\nFAIL f\xc2\x9bg\xe2\x80\xaeh\x9bi";

void expect_shown(const std::string& text, const std::string& what) {
  for (const char* obeyed : {"\x1b", "\x07", "\r", "\nFAIL", "\xc2\x9b", "\xe2\x80\xae"}) {
    EXPECT_EQ(text.find(obeyed), std::string::npos) << what << ": " << text;
  }
  EXPECT_NE(text.find("FAIL f"), std::string::npos) << what << ": " << text;
}

TEST(Printable, TextBecomesUtf8) {
  EXPECT_EQ(clean_text("a\xff"), "a\xef\xbf\xbd");
  EXPECT_EQ(clean_text(std::string_view("a\0b", 3)),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(clean_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(clean_text("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");                  // overlong
  EXPECT_EQ(clean_text("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
}

TEST(Printable, OneLineObeysNothing) {
  EXPECT_EQ(one_line(kHostile), "a [2Jb c ]0;t d e FAIL f g h\xef\xbf\xbdi");
  EXPECT_EQ(one_line("5 µs ± 2 %, 日本 😀"), "5 µs ± 2 %, 日本 😀");
  EXPECT_EQ(one_line(""), "");
}

TEST(Printable, LinesStayAndAreSetIn) {
  EXPECT_EQ(fit_lines("a\tb\n\x1b[1mc\n\n"), "a\tb\n [1mc\n\n");
  EXPECT_EQ(fit_lines("a\nb\n  c\n", "  "), "a\n  b\n  c\n");
}

TEST(Printable, ErrorsTablesAndLogsShowWhatTheyQuote) {
  expect_shown(Error(kHostile, "x").describe(), "what");
  expect_shown(Error("w", kHostile).describe(), "where");
  expect_shown(Error("w", "x", kHostile).describe(), "hint");
  EXPECT_EQ(Error("a\n  b", "x", "c").describe(), "x: a\n  b\n  to fix: c");
  Table table({{"name", Align::kLeft}, {"size", Align::kRight}});
  table.add({kHostile, "1"});
  expect_shown(table.text(), "table");
  expect_shown(log_line(LogFormat::kText, LogLevel::kError, "T", kHostile, {{"f", kHostile}}), "log");
  expect_shown(log_line(LogFormat::kText, LogLevel::kError, "T", "FAIL f", {{"f", "\x1b[1m\x07"}}),
               "log field");
}

}  // namespace
}  // namespace spark
