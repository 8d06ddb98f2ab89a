// The tokenizer of DeepSeek V4.1 Flash: byte-level byte-pair encoding, read from a Hugging Face
// tokenizer.json.
//
//   const Tokenizer tokenizer = Tokenizer::from_file("model/tokenizer.json");
//   std::vector<int32_t> ids = tokenizer.encode("What is 2+2?", ControlTokens::kAsText);
//   std::string text = tokenizer.decode(ids);
//
// Text from users is encoded with kAsText: nothing in it, whatever its spelling, becomes an added token (BOS,
// <think>, <｜User｜>...). The loader refuses a vocabulary in which merges could build one. kRecognised turns
// the spellings of added tokens into those tokens, as the Hugging Face library does; use it for trusted
// prompts only.
//
// Malformed UTF-8 is encoded as if each ill-formed sequence were U+FFFD (text/unicode.h). Valid text survives
// decode(encode(text)) byte for byte. Ids equal those of the Hugging Face `tokenizers` library 0.23, whose
// Unicode version (16) is that of text/unicode.h.
//
// All const members may be called from several threads at once. Errors are spark::Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/encode_bounds.h"

namespace spark::text {

enum class ControlTokens { kAsText, kRecognised };

class Tokenizer {
 public:
  static Tokenizer from_file(const std::string& path);
  // `source` names the document in errors.
  static Tokenizer from_json(std::string_view json, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text, ControlTokens control_tokens,
                              const EncodeBounds& bounds = {}) const;
  // `bounds.max_tokens` counts what `out` holds already.
  void append_encoded(std::string_view text, ControlTokens control_tokens, std::vector<int32_t>& out,
                      const EncodeBounds& bounds = {}) const;

  // The text of `ids`; bytes that are no UTF-8 become U+FFFD. skip_special leaves out the tokens flagged
  // special.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes a token stands for: the unit of decoding, possibly a part of a UTF-8 sequence.
  std::string_view token_bytes(int32_t id) const;
  // The token as tokenizer.json spells it (byte-level characters, e.g. "Ġthe"; added tokens as they are).
  std::string_view token_string(int32_t id) const;

  // The id of an added token by its content, e.g. "<think>".
  std::optional<int32_t> added_token(std::string_view content) const;
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;

  int32_t vocab_size() const;  // ids are 0 .. vocab_size() - 1
  bool contains(int32_t id) const { return id >= 0 && id < vocab_size(); }

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<Tables> tables);
  void check_id(int32_t id) const;

  std::unique_ptr<Tables> tables_;
};

}  // namespace spark::text
