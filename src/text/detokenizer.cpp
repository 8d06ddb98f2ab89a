#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace spark::text {

std::string Utf8Assembler::push(std::string_view bytes) {
  held_.append(bytes);
  const std::string text = std::exchange(held_, {});
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8 c = decode_utf8(text, at);
    if (c.incomplete) {
      held_ = text.substr(at);
      break;
    }
    if (c.valid) {
      out.append(text, at, c.length);
    } else {
      append_utf8(kReplacement, out);
    }
    at += c.length;
  }
  return out;
}

std::string Utf8Assembler::flush() {
  return replace_malformed_utf8(std::exchange(held_, {}));
}

std::string Detokenizer::push(int32_t id) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  return bytes_.push(bytes);
}

}  // namespace spark::text
