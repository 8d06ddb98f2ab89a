// A chat request as the prompt encoder takes it. Internal to this room.
#pragma once

#include <cstdint>
#include <vector>

#include "api/request.h"
#include "text/tokenizer.h"

namespace spark::engine {

struct ChatPrompt {
  std::vector<int32_t> tokens;
  bool starts_in_reasoning = false;  // the answer begins inside the reasoning channel
};

// Throws RequestError.
ChatPrompt encode_chat_request(const api::ChatRequest& request, const text::Tokenizer& tokenizer);

}  // namespace spark::engine
