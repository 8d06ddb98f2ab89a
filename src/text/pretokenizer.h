// Cuts text into the words that byte-pair encoding works on.
//
// DeepSeek's tokenizer isolates, one after the other, the matches of three patterns (each one inside the
// pieces the one before it left); what no pattern matches stays together as a piece. The patterns are scanned
// by hand here: no regular-expression engine, linear time.
//
//   PreTokenizer cutter;
//   cutter.cut("Hello, world 12345", [](std::string_view word) { ... return true; });   // "Hello" "," "
//   world" " " "123" "45"
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace spark::text {

// The only patterns this pre-tokenizer implements, spelled as in tokenizer.json (with \r and \n as escapes).
inline constexpr std::array<std::string_view, 3> kSplitPatterns = {
    R"(\p{N}{1,3})",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

// Reusable buffers; not thread-safe. `text` must be valid UTF-8.
class PreTokenizer {
 public:
  // `sink` returns whether it wants more.
  template <typename Sink>
  void cut(std::string_view text, Sink&& sink) {
    classify(text);
    find_ends();
    size_t begin = 0;
    for (const uint32_t end : ends_) {
      if (!sink(text.substr(begin, end - begin))) return;
      begin = end;
    }
  }

 private:
  void classify(std::string_view text);
  void find_ends();
  void cut_at_numbers(size_t begin, size_t end);
  void cut_kana_and_han(size_t begin, size_t end);
  void cut_words(size_t begin, size_t end);
  size_t match_word(size_t at, size_t end) const;
  size_t match_space(size_t at, size_t end) const;
  size_t run_of(uint16_t mask, size_t at, size_t end) const;
  bool is(uint16_t mask, size_t at) const { return (traits_[at] & mask) != 0; }
  void end_piece(size_t at) { ends_.push_back(offsets_[at]); }

  std::vector<uint16_t> traits_;   // per code point: bits of Trait
  std::vector<uint32_t> offsets_;  // per code point: first byte; one more for the end
  std::vector<uint32_t> ends_;     // byte after each piece
};

}  // namespace spark::text
