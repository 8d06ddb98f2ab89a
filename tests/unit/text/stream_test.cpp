// The streaming half of the room: detokenizer and stop strings give the same text however the stream is cut.
#include <gtest/gtest.h>

#include <random>

#include "common/error.h"
#include "common/file.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/unicode.h"
#include "unit/text/case_file.h"

namespace spark::text {
namespace {

TEST(Detokenizer, HoldsBackUnfinishedCharacters) {
  Detokenizer detokenizer(tiny_tokenizer());
  std::vector<std::string> pieces;
  for (const int32_t id : tiny_tokenizer().encode("a🙂", ControlTokens::kAsText))
    pieces.push_back(detokenizer.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "", "", "🙂"}));
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, FlushReplacesWhatNeverCame) {
  const auto ids = tiny_tokenizer().encode("🙂", ControlTokens::kAsText);
  ASSERT_EQ(ids.size(), 4U);
  Detokenizer detokenizer(tiny_tokenizer());
  EXPECT_EQ(detokenizer.push(ids[0]), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(detokenizer.push(ids[1]), "\uFFFD");
}

TEST(Detokenizer, LeavesOutSpecialTokensOnRequest) {
  const auto ids = tiny_tokenizer().encode("<think>a<｜end▁of▁sentence｜>", ControlTokens::kRecognised);
  Detokenizer all(tiny_tokenizer());
  Detokenizer visible(tiny_tokenizer(), true);
  std::string with;
  std::string without;
  for (const int32_t id : ids) {
    with += all.push(id);
    without += visible.push(id);
  }
  EXPECT_EQ(with, "<think>a<｜end▁of▁sentence｜>");
  EXPECT_EQ(without, "<think>a");
  EXPECT_THROW(all.push(640), Error);
}

TEST(Detokenizer, EqualsDecodeOnRandomTokens) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 260);  // mostly single bytes
    Detokenizer detokenizer(tiny_tokenizer());
    std::string text;
    for (const int32_t id : ids) {
      text += detokenizer.push(id);
      ASSERT_TRUE(is_valid_utf8(text));
    }
    text += detokenizer.flush();
    ASSERT_EQ(text, tiny_tokenizer().decode(ids));
  }
}

struct NaiveMatch {
  std::string text;
  std::optional<size_t> index;
};

// The stop string that ends first, the longest of those that end there, the first given of equal ones.
NaiveMatch naive_stop(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      const bool ends_here = stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends_here && (!best || stop.size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopStrings, EqualsNaiveSearchOnRandomStreams) {
  std::mt19937 random(3);
  const auto word = [&](size_t most) {
    std::string text(random() % most + 1, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(30);
    const bool include = random() % 2 == 0;
    StopStrings matcher(stops, include);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t length = random() % 4 + 1;
      out += matcher.push(std::string_view(text).substr(at, length));
      at += length;
    }
    out += matcher.flush();
    const NaiveMatch expected = naive_stop(text, stops, include);
    ASSERT_EQ(out, expected.text) << text;
    ASSERT_EQ(matcher.matched(), expected.index) << text;
  }
}

TEST(StopStrings, HoldsBackOnlyWhatCouldBeginOne) {
  StopStrings matcher({"\n\nEND", "END"});
  EXPECT_EQ(matcher.push("one\n"), "one");
  EXPECT_EQ(matcher.held_bytes(), 1U);
  EXPECT_EQ(matcher.push("two EN"), "\ntwo ");
  EXPECT_EQ(matcher.push("G\n\nE"), "ENG");
  EXPECT_EQ(matcher.push("ND more"), "");
  EXPECT_EQ(matcher.matched(), std::optional<size_t>(0));
  EXPECT_EQ(matcher.push("ignored"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, NoStopStringsPassEverything) {
  StopStrings matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_THROW(StopStrings({"a", ""}), Error);
}

TEST(StopStrings, RepetitiveTextIsLinear) {
  const std::string stop = std::string(2000, 'a') + "b";
  StopStrings matcher({stop});
  std::string out;
  for (int i = 0; i < 2000; ++i) out += matcher.push(std::string(1000, 'a'));
  EXPECT_EQ(out.size() + matcher.held_bytes(), 2000000U);
  EXPECT_EQ(matcher.held_bytes(), 2000U);
}

}  // namespace
}  // namespace spark::text
