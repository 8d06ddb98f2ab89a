// What a Hugging Face tokenizer.json says, read and checked; tokenizer.h turns it into a tokenizer.
//
// The file is 6 MB with 128,000 vocabulary entries: those and the merges are streamed into flat tables, the
// rest is read as an ordinary document. Whatever this program would compute differently from the file's own
// library is refused with its name (another model type, a normalizer, other split patterns, truncation...).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spark::text {

// Strings one after the other in one buffer.
class StringTable {
 public:
  void add(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;     // left out by decode(skip_special)
  bool normalized = false;  // matched after the tokens that are not
};

struct TokenizerFile {
  StringTable vocabulary;               // byte-level strings, in file order
  std::vector<int32_t> vocabulary_ids;  // the id of each
  StringTable merges;                   // "left right", in order of priority
  std::vector<AddedToken> added;
};

// `source` names the file in errors. Throws Error.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& source);

}  // namespace spark::text
