// Turns a stream of tokens into text, token by token, without ever splitting a UTF-8 sequence.
//
//   Detokenizer detokenizer(tokenizer);
//   std::string piece = detokenizer.push(id);   // may be empty: bytes of an unfinished character wait
//   std::string last = detokenizer.flush();     // at the end: an unfinished character becomes U+FFFD
//
// The pieces joined equal Tokenizer::decode of all ids. Malformed bytes become U+FFFD as soon as they are
// known to be malformed. At most three bytes wait.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace spark::text {

// The byte half of the above, for text that arrives in chunks cut anywhere.
class Utf8Assembler {
 public:
  std::string push(std::string_view bytes);
  std::string flush();  // the assembler can be used again afterwards
  size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;  // the start of a sequence that more bytes could complete
};

class Detokenizer {
 public:
  // `tokenizer` must outlive this object. skip_special leaves out tokens flagged special.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(int32_t id);  // throws Error for an id that does not exist
  std::string flush() { return bytes_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Assembler bytes_;
};

}  // namespace spark::text
