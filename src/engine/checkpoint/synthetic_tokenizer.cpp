#include "engine/checkpoint/synthetic_tokenizer.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "engine/checkpoint/synthetic_corpus.h"
#include "text/byte_level.h"
#include "text/pretokenizer.h"

namespace spark::engine {
namespace {

struct ControlToken {
  std::string_view content;
  bool special;
  bool normalized;
};

constexpr ControlToken kFirstTokens[] = {{"<｜begin▁of▁sentence｜>", true, false},
                                         {"<｜end▁of▁sentence｜>", true, false},
                                         {"<｜▁pad▁｜>", true, false}};

constexpr std::string_view kSystemToken = "<｜System｜>";
constexpr std::string_view kImageToken = "<｜deepseek_image｜>";

// The release's control tokens that the chat encoding and the parsers know, with its flags.
constexpr ControlToken kControlTokens[] = {{kSystemToken, false, true},
                                           {"<｜fim▁hole｜>", true, false},
                                           {"<｜fim▁begin｜>", true, false},
                                           {"<｜fim▁end｜>", true, false},
                                           {"<｜User｜>", true, false},
                                           {"<｜Assistant｜>", true, false},
                                           {"<|EOT|>", true, false},
                                           {"<｜tool▁calls▁begin｜>", false, true},
                                           {"<｜tool▁calls▁end｜>", false, true},
                                           {"<｜tool▁call▁begin｜>", false, true},
                                           {"<｜tool▁call▁end｜>", false, true},
                                           {"<｜tool▁outputs▁begin｜>", false, true},
                                           {"<｜tool▁outputs▁end｜>", false, true},
                                           {"<｜tool▁output▁begin｜>", false, true},
                                           {"<｜tool▁output▁end｜>", false, true},
                                           {"<｜tool▁sep｜>", false, true},
                                           {"<think>", false, false},
                                           {"</think>", false, false},
                                           {"｜DSML｜", false, false},
                                           {"<｜latest_reminder｜>", true, false},
                                           {"<｜action｜>", true, false},
                                           {"<｜query｜>", true, false},
                                           {"<｜authority｜>", true, false},
                                           {"<｜domain｜>", true, false},
                                           {"<｜task｜>", true, false},
                                           {"<｜political｜>", true, false},
                                           {"<｜entity｜>", true, false},
                                           {"<｜title｜>", true, false},
                                           {"<｜safety｜>", true, false},
                                           {"<｜answer｜>", true, false},
                                           {"<｜search｜>", true, false},
                                           {"<dsml:", false, false},
                                           {"</dsml:", false, false},
                                           {"<｜read_url｜>", true, false},
                                           {kImageToken, true, false}};
constexpr auto kControlCount = static_cast<int32_t>(std::size(kControlTokens));

constexpr int32_t kFirstByte = static_cast<int32_t>(std::size(kFirstTokens));
constexpr int32_t kBytes = 256;

// The byte alphabet as strings of it, in code point order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> letters;
  for (int byte = 0; byte < kBytes; ++byte) {
    letters.push_back(text::byte_level_string(std::string(1, static_cast<char>(byte))));
  }
  std::sort(letters.begin(), letters.end());  // UTF-8 sorts like code points
  return letters;
}

// One distinct word of the corpus, cut into the symbols found so far.
struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

class MergeTrainer {
 public:
  MergeTrainer() : symbols_(byte_alphabet()) {
    std::map<std::string, int32_t> letter_of;
    for (size_t i = 0; i < symbols_.size(); ++i) letter_of[symbols_[i]] = static_cast<int32_t>(i);
    std::map<std::string, int64_t> counts;
    text::PreTokenizer cutter;
    const std::string corpus = synthetic_corpus();
    cutter.cut(corpus, [&](std::string_view word) {
      ++counts[std::string(word)];
      return true;
    });
    for (const auto& [word, count] : counts) {
      Word& entry = words_.emplace_back();
      entry.count = count;
      for (const char byte : word) {
        entry.symbols.push_back(letter_of.at(text::byte_level_string(std::string(1, byte))));
      }
    }
  }

  // Joins the commonest pair, ties to the pair of lowest symbols. A pair that would spell an existing token
  // is passed over. False when no other pair occurs twice.
  bool merge_once() {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const Word& word : words_) {
      for (size_t i = 1; i < word.symbols.size(); ++i)
        counts[{word.symbols[i - 1], word.symbols[i]}] += word.count;
    }
    while (true) {
      const auto best = std::max_element(counts.begin(), counts.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      if (best == counts.end() || best->second < 2) return false;
      const auto [left, right] = best->first;
      const std::string joined = symbols_[static_cast<size_t>(left)] + symbols_[static_cast<size_t>(right)];
      if (std::find(symbols_.begin(), symbols_.end(), joined) != symbols_.end()) {
        counts.erase(best);
        continue;
      }
      merges_.push_back(symbols_[static_cast<size_t>(left)] + " " + symbols_[static_cast<size_t>(right)]);
      symbols_.push_back(joined);
      for (Word& word : words_) apply(word, left, right);
      return true;
    }
  }

  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::vector<std::string>& merges() const { return merges_; }

 private:
  void apply(Word& word, int32_t left, int32_t right) const {
    std::vector<int32_t> joined;
    for (size_t i = 0; i < word.symbols.size(); ++i) {
      const bool pair =
          i + 1 < word.symbols.size() && word.symbols[i] == left && word.symbols[i + 1] == right;
      joined.push_back(pair ? static_cast<int32_t>(symbols_.size()) - 1 : word.symbols[i]);
      if (pair) ++i;
    }
    word.symbols = std::move(joined);
  }

  std::vector<std::string> symbols_;
  std::vector<std::string> merges_;
  std::vector<Word> words_;
};

Json added_token(int32_t id, std::string_view content, bool special, bool normalized) {
  return {{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"special", special}};
}

Json pre_tokenizer() {
  Json steps = Json::array();
  for (const std::string_view pattern : text::kSplitPatterns) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace

SyntheticTokenizer make_synthetic_tokenizer(int32_t vocab_size) {
  const int32_t fixed = kFirstByte + kBytes + kControlCount;
  if (vocab_size < fixed) {
    throw Error(
        "is " + std::to_string(vocab_size) + "; bytes and control tokens alone are " + std::to_string(fixed),
        "vocab_size");
  }
  MergeTrainer trainer;
  while (fixed + static_cast<int32_t>(trainer.merges().size()) < vocab_size && trainer.merge_once()) {
  }

  SyntheticTokenizer result;
  result.vocab_size = vocab_size;
  result.text_tokens = static_cast<int32_t>(trainer.symbols().size());
  Json added = Json::array();
  Json vocabulary = Json::object();
  int32_t id = 0;
  for (const ControlToken& token : kFirstTokens) {
    added.push_back(added_token(id, token.content, token.special, token.normalized));
    vocabulary[std::string(token.content)] = id++;
  }
  for (const std::string& symbol : trainer.symbols()) vocabulary[symbol] = id++;
  for (int32_t n = 0; id < vocab_size - kControlCount; ++n) {
    added.push_back(added_token(id++, "<｜place▁holder▁no▁" + std::to_string(n) + "｜>", true, false));
  }
  for (const ControlToken& token : kControlTokens) {
    if (token.content == kSystemToken) result.system_token = id;
    if (token.content == kImageToken) result.image_token = id;
    added.push_back(added_token(id++, token.content, token.special, token.normalized));
  }

  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  Json decoder = byte_level;
  decoder["trim_offsets"] = true;
  Json document;
  document["version"] = "1.0";
  document["truncation"] = nullptr;
  document["padding"] = nullptr;
  document["added_tokens"] = std::move(added);
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  document["pre_tokenizer"] = pre_tokenizer();
  document["post_processor"] = byte_level;
  document["decoder"] = decoder;
  document["model"] = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"vocab", std::move(vocabulary)},
                       {"merges", trainer.merges()}};
  result.json = document.dump(1) + "\n";
  return result;
}

}  // namespace spark::engine
