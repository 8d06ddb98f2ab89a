#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "common/file.h"
#include "text/engram_map.h"
#include "unit/text/case_file.h"

namespace spark::text {
namespace {

std::string tiny_json() {
  return read_file(data_path("golden/tiny-tokenizer.json"));
}

std::string load_error(const Json& document) {
  try {
    Tokenizer::from_json(document.dump(), "t.json");
  } catch (const Error& error) {
    return error.describe();
  }
  return "";
}

TEST(TokenizerCases, EncodeAndDecode) {
  for (const FileCase& c : read_cases("tokenizer.test")) {
    const auto text = c["text"].get<std::string>();
    const auto recognised = c["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tiny_tokenizer().encode(text, ControlTokens::kRecognised), recognised) << c.place;
    const auto as_text = c.has("as_text") ? c["as_text"].get<std::vector<int32_t>>() : recognised;
    EXPECT_EQ(tiny_tokenizer().encode(text, ControlTokens::kAsText), as_text) << c.place;
    EXPECT_EQ(tiny_tokenizer().decode(recognised), text) << c.place;
    EXPECT_EQ(tiny_tokenizer().decode(as_text), text) << c.place;
  }
}

TEST(TokenizerCases, EngramMap) {
  const FileCase c = read_cases("engram_map.test").front();
  const EngramMap map = build_engram_map(tiny_tokenizer());
  EXPECT_EQ(map.classes, c["classes"].get<std::vector<int32_t>>());
  EXPECT_EQ(map.class_count, c["class_count"].get<int32_t>());
  EXPECT_EQ(engram_map_digest(map.classes), c["sha256"].get<std::string>());
}

TEST(Tokenizer, KnowsItsTokens) {
  const int32_t think = tiny_tokenizer().added_token("<think>").value();
  EXPECT_EQ(tiny_tokenizer().encode("a<think>b", ControlTokens::kRecognised)[1], think);
  EXPECT_TRUE(tiny_tokenizer().is_added(think));
  EXPECT_FALSE(tiny_tokenizer().is_special(think));
  EXPECT_TRUE(tiny_tokenizer().is_special(0));
  EXPECT_EQ(tiny_tokenizer().token_bytes(think), "<think>");
  EXPECT_EQ(tiny_tokenizer().vocab_size(), 640);
  EXPECT_FALSE(tiny_tokenizer().added_token("the").has_value());
  EXPECT_EQ(tiny_tokenizer().decode(std::vector<int32_t>{0, think, 1}, true), "<think>");
  EXPECT_THROW(tiny_tokenizer().decode(std::vector<int32_t>{640}), Error);
  EXPECT_THROW(tiny_tokenizer().token_bytes(-1), Error);
}

TEST(Tokenizer, PlainTextNeverBecomesAddedToken) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 6; ++i) {
      const auto id = static_cast<int32_t>(random() % 640);
      const std::string_view piece = tiny_tokenizer().token_bytes(id);
      text += piece.substr(0, random() % 4 == 0 ? random() % (piece.size() + 1) : piece.size());
    }
    for (const int32_t id : tiny_tokenizer().encode(text, ControlTokens::kAsText))
      ASSERT_FALSE(tiny_tokenizer().is_added(id)) << text;
  }
}

TEST(Tokenizer, MalformedUtf8IsReplacedByMaximalPart) {
  const std::pair<const char*, const char*> cases[] = {
      {"\xFF", "\uFFFD"},
      {"a\xC3", "a\uFFFD"},
      {"\xE2\x82z", "\uFFFDz"},
      {"\xF0\x9F\x99", "\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // above U+10FFFF
      {"\xC0\x80", "\uFFFD\uFFFD"},                      // overlong
      {"\x80\xE4\xBD\xA0", "\uFFFD你"},
  };
  for (const auto& [input, expected] : cases) {
    const auto ids = tiny_tokenizer().encode(input, ControlTokens::kAsText);
    EXPECT_EQ(tiny_tokenizer().decode(ids), expected);
    EXPECT_EQ(ids, tiny_tokenizer().encode(expected, ControlTokens::kAsText));
  }
}

TEST(Tokenizer, LongRunsAreNotQuadratic) {
  // Minutes, not milliseconds, if merging or scanning were quadratic.
  for (const std::string unit : {"a", " ", "\n", "中", "1", "<", "\xCC\x81", " \n"}) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(text, ControlTokens::kRecognised)), text);
  }
}

TEST(Tokenizer, EncodesNoFurtherThanAskedFor) {
  std::mt19937 random(7);
  const std::vector<std::string> units = {"a",  " the", " ",        "\n",     "中",
                                          "12", "<",    "\xCC\x81", " hello", "\xFF"};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    const size_t parts = random() % 60;
    for (size_t i = 0; i < parts; ++i) {
      const std::string& unit = units[random() % units.size()];
      for (size_t n = 1 + random() % 9; n > 0; --n) text += unit;
    }
    const auto whole = tiny_tokenizer().encode(text, ControlTokens::kAsText);
    const size_t most = random() % (whole.size() + 2);
    const auto bounded = tiny_tokenizer().encode(text, ControlTokens::kAsText, {.max_tokens = most});
    if (whole.size() <= most) {
      EXPECT_EQ(bounded, whole);
    } else {
      EXPECT_GT(bounded.size(), most);
    }
    std::vector<int32_t> out = {1, 2, 3};
    tiny_tokenizer().append_encoded(text, ControlTokens::kAsText, out, {.max_tokens = most + 3});
    EXPECT_EQ(out.size() > most + 3, whole.size() > most);
  }
  // One word of any length: only its beginning is looked at.
  const std::string run(size_t{8} << 20, ' ');
  EXPECT_LT(tiny_tokenizer().encode(run, ControlTokens::kAsText, {.max_tokens = 10}).size(), 10000U);
}

TEST(Tokenizer, StopsWhenTold) {
  const std::atomic<bool> stop = true;
  const std::string run(100000, ' ');
  EXPECT_THROW(tiny_tokenizer().encode(run, ControlTokens::kAsText, {.stop = &stop}), EncodingStopped);
  EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(run, ControlTokens::kAsText)), run);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const std::string text = "The quick brown fox jumps over the lazy dog. 12345 naïve 你好\n";
  const auto expected = tiny_tokenizer().encode(text, ControlTokens::kAsText);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i)
        equal[t] += tiny_tokenizer().encode(text, ControlTokens::kAsText) == expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

TEST(TokenizerFile, MergesMayBePairs) {
  Json document = parse_json(tiny_json(), "tiny");
  for (Json& merge : document["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t blank = text.find(' ');
    merge = Json::array({text.substr(0, blank), text.substr(blank + 1)});
  }
  const Tokenizer pairs = Tokenizer::from_json(document.dump(), "pairs");
  EXPECT_EQ(pairs.encode("Hello world", ControlTokens::kAsText),
            tiny_tokenizer().encode("Hello world", ControlTokens::kAsText));
}

TEST(TokenizerFile, RefusesWhatItWouldComputeDifferently) {
  struct Change {
    const char* pointer;
    const char* value;
    const char* message;
  };
  const Change changes[] = {
      {"/version", R"("2.0")", "version: must be \"1.0\""},
      {"/truncation", R"({"max_length": 5})", "truncation: is set"},
      {"/padding", "{}", "padding: is set"},
      {"/normalizer", R"({"type": "NFC"})", "normalizer: would change the text"},
      {"/pre_tokenizer/type", R"("ByteLevel")", "pre_tokenizer.type: must be \"Sequence\""},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\p{N}{1,4}")",
       R"(is the unknown pattern \p{N}{1,4})"},
      {"/pre_tokenizer/pretokenizers/1/behavior", R"("Removed")", "pretokenizers[1].behavior: must be"},
      {"/pre_tokenizer/pretokenizers/2/invert", "true", "invert: is true"},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", "true", "add_prefix_space: is true"},
      {"/pre_tokenizer/pretokenizers/3/use_regex", "true", "use_regex: must be false"},
      {"/post_processor/type", R"("TemplateProcessing")", "others add tokens"},
      {"/decoder/type", R"("WordPiece")", "decoder.type: must be \"ByteLevel\""},
      {"/model/type", R"("Unigram")", "model.type: must be \"BPE\""},
      {"/model/dropout", "0.1", "model.dropout: is set"},
      {"/model/ignore_merges", "true", "model.ignore_merges: is true"},
      {"/model/byte_fallback", "true", "model.byte_fallback: is true"},
      {"/model/vocab", "[]", "model.vocab: must be an object"},
      {"/model/vocab", R"({"a": "b"})", "model.vocab must map strings to ids"},
      {"/model/vocab", R"({"a": -1})", "ids are 0 to"},
      {"/model/vocab", R"({"a": 0})", "too few for ids up to"},
      {"/model/merges", R"([["a", "b", "c"]])", "merge 0 has 3 parts"},
      {"/model/merges", R"(["a b c"])", "must be two tokens"},
      {"/model/merges", R"(["h e", "h e"])", "twice"},
      {"/model/merges", R"(["h 中"])", "not in model.vocab"},
      {"/model/merges", "{}", "model.merges: must be a list"},
      {"/added_tokens/3/lstrip", "true", "added_tokens[3].lstrip: is true"},
      {"/added_tokens/3/content", R"("")", "is empty"},
      {"/added_tokens/3/content", R"("<think>")", "stands twice"},
      {"/added_tokens/3/content", R"("h")", "here"},
      {"/added_tokens/3/id", "100", "is taken by"},
      {"/added_tokens/3/id", "1.5", "must be an integer"},
      {"/wordpiece", "1", "is not a known key"},
  };
  const Json good = parse_json(tiny_json(), "tiny");
  ASSERT_EQ(load_error(good), "");
  for (const Change& change : changes) {
    Json document = good;
    document[Json::json_pointer(change.pointer)] = parse_json(change.value, "value");
    const std::string error = load_error(document);
    EXPECT_NE(error.find(change.message), std::string::npos) << change.pointer << "\n" << error;
    EXPECT_EQ(error.rfind("t.json: ", 0), 0U) << error;
  }
}

TEST(TokenizerFile, RefusesMergesThatBuildAddedTokens) {
  Json document = parse_json(tiny_json(), "tiny");
  const int64_t id = document["model"]["vocab"]["he"].get<int64_t>();
  Json token = document["added_tokens"][3];
  token["content"] = "he";
  token["id"] = id;
  document["added_tokens"].push_back(token);
  EXPECT_NE(load_error(document).find("builds an added token"), std::string::npos);
  document["added_tokens"].back()["content"] = "h";
  document["added_tokens"].back()["id"] = document["model"]["vocab"]["h"];
  EXPECT_NE(load_error(document).find("the token of a single byte"), std::string::npos);
}

TEST(TokenizerFile, AnyTruncationIsOneError) {
  const std::string json = tiny_json();
  for (size_t length = 0; length < json.size() - 2; length += 97) {
    EXPECT_THROW(Tokenizer::from_json(std::string_view(json).substr(0, length), "cut"), Error) << length;
  }
  EXPECT_THROW(Tokenizer::from_file(data_path("absent.json")), Error);
}

}  // namespace
}  // namespace spark::text
