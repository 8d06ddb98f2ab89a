// A tokenizer for synthetic checkpoints: the pre-tokenizer, byte alphabet and control tokens of DeepSeek V4.1
// Flash, with merges trained on a small text.
//
//   const SyntheticTokenizer tokenizer = make_synthetic_tokenizer(1024);
//   write_file_atomic(dir + "/tokenizer.json", tokenizer.json);
//
// Ids: 0 begin of sentence, 1 end of sentence, 2 padding, 3..258 the bytes, then one token per merge, then
// placeholders up to the wanted size, then the other control tokens. Deterministic.
#pragma once

#include <cstdint>
#include <string>

namespace spark::engine {

struct SyntheticTokenizer {
  std::string json;          // tokenizer.json
  int32_t vocab_size = 0;    // as asked for
  int32_t text_tokens = 0;   // ids 3 .. 3 + text_tokens - 1 are bytes and merges
  int32_t system_token = 0;  // also the drafter's noise token, as in the release
  int32_t image_token = 0;
};

// Throws Error when `vocab_size` has no room for bytes and control tokens.
SyntheticTokenizer make_synthetic_tokenizer(int32_t vocab_size);

}  // namespace spark::engine
