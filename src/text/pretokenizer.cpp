#include "text/pretokenizer.h"

#include <array>

#include "text/unicode.h"

namespace spark::text {
namespace {

// What the patterns ask of a code point, one bit each.
enum Trait : uint16_t {
  kIsLetterOrMark = 1,
  kIsNumber = 2,
  kIsPunctuationOrSymbol = 4,
  kIsWhite = 8,  // \s, CR and LF included
  kIsNewline = 16,
  kIsKanaOrHan = 32,  // pattern 2
  kIsAsciiLetter = 64,
  kIsAsciiPunctuation = 128,
  kIsBlank = 256,            // U+0020
  kMayPrecedeLetters = 512,  // [^\r\n\p{L}\p{P}\p{S}]
};

uint16_t traits_of(uint32_t c) {
  uint16_t traits = 0;
  switch (char_class(c)) {
    case CharClass::kLetter:
      traits = kIsLetterOrMark;
      break;
    case CharClass::kMark:
      traits = kIsLetterOrMark | kMayPrecedeLetters;
      break;
    case CharClass::kNumber:
      traits = kIsNumber | kMayPrecedeLetters;
      break;
    case CharClass::kPunctuation:
    case CharClass::kSymbol:
      traits = kIsPunctuationOrSymbol;
      break;
    case CharClass::kSpace:
      traits = kIsWhite | kMayPrecedeLetters;
      break;
    case CharClass::kNewline:
      traits = kIsWhite | kIsNewline;
      break;
    case CharClass::kOther:
      traits = kMayPrecedeLetters;
      break;
  }
  if (c == ' ') traits |= kIsBlank;
  if (c < 0x80 && (traits & kIsLetterOrMark) != 0) traits |= kIsAsciiLetter;
  if (c < 0x80 && (traits & kIsPunctuationOrSymbol) != 0) traits |= kIsAsciiPunctuation;
  if ((c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF)) traits |= kIsKanaOrHan;
  return traits;
}

const std::array<uint16_t, 128>& ascii_traits() {
  static const std::array<uint16_t, 128> table = [] {
    std::array<uint16_t, 128> result{};
    for (uint32_t c = 0; c < 128; ++c) result[c] = traits_of(c);
    return result;
  }();
  return table;
}

}  // namespace

void PreTokenizer::classify(std::string_view text) {
  const std::array<uint16_t, 128>& ascii = ascii_traits();
  traits_.resize(text.size());
  offsets_.resize(text.size() + 1);
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    offsets_[count] = static_cast<uint32_t>(at);
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      traits_[count] = ascii[byte];
      ++at;
    } else {
      const Utf8 c = decode_utf8(text, at);
      traits_[count] = traits_of(c.code_point);
      at += c.length;
    }
  }
  offsets_[count] = static_cast<uint32_t>(text.size());
  traits_.resize(count);
}

void PreTokenizer::find_ends() {
  ends_.clear();
  const size_t end = traits_.size();
  for (size_t at = 0; at < end;) {  // pattern 1: up to three numbers at a time
    if (is(kIsNumber, at)) {
      const size_t stop = run_of(kIsNumber, at, std::min(end, at + 3));
      end_piece(stop);
      at = stop;
    } else {
      size_t stop = at;
      while (stop < end && !is(kIsNumber, stop)) ++stop;
      cut_kana_and_han(at, stop);
      at = stop;
    }
  }
}

void PreTokenizer::cut_kana_and_han(size_t begin, size_t end) {
  for (size_t at = begin; at < end;) {
    const bool inside = is(kIsKanaOrHan, at);
    size_t stop = at + 1;
    while (stop < end && is(kIsKanaOrHan, stop) == inside) ++stop;
    cut_words(at, stop);
    at = stop;
  }
}

void PreTokenizer::cut_words(size_t begin, size_t end) {
  bool unmatched = false;
  for (size_t at = begin; at < end;) {
    const size_t stop = match_word(at, end);
    if (stop == at) {
      unmatched = true;
      ++at;
      continue;
    }
    if (unmatched) end_piece(at);
    unmatched = false;
    end_piece(stop);
    at = stop;
  }
  if (unmatched) end_piece(end);
}

size_t PreTokenizer::run_of(uint16_t mask, size_t at, size_t end) const {
  while (at < end && is(mask, at)) ++at;
  return at;
}

// The end of pattern 3's match at `at`; `at` itself when it does not match. Alternatives in the pattern's
// order.
size_t PreTokenizer::match_word(size_t at, size_t end) const {
  const size_t next = at + 1;
  if (is(kIsAsciiPunctuation, at) && next < end && is(kIsAsciiLetter, next)) {
    return run_of(kIsAsciiLetter, next, end);
  }
  if (is(kIsLetterOrMark, at)) return run_of(kIsLetterOrMark, next, end);
  if (is(kMayPrecedeLetters, at) && next < end && is(kIsLetterOrMark, next)) {
    return run_of(kIsLetterOrMark, next, end);
  }
  const size_t punctuation = is(kIsBlank, at) ? next : at;
  if (punctuation < end && is(kIsPunctuationOrSymbol, punctuation)) {
    return run_of(kIsNewline, run_of(kIsPunctuationOrSymbol, punctuation, end), end);
  }
  return is(kIsWhite, at) ? match_space(at, end) : at;
}

// \s*[\r\n]+ takes white space up to its last line break; \s+(?!\S) leaves the last blank to the word that
// follows.
size_t PreTokenizer::match_space(size_t at, size_t end) const {
  const size_t stop = run_of(kIsWhite, at, end);
  for (size_t i = stop; i > at; --i) {
    if (is(kIsNewline, i - 1)) return i;
  }
  if (stop == end || stop == at + 1) return stop;
  return stop - 1;
}

}  // namespace spark::text
