// A chat request as the prompt encoder takes it. Internal to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "api/request.h"
#include "text/chat.h"
#include "text/output_start.h"
#include "text/tokenizer.h"

namespace spark::engine {

struct ChatPrompt {
  std::vector<int32_t> tokens;
  text::OutputStart start = {};  // of the answer
};

// `tool_text`: the checkpoint's description of tools, if it has one. Throws RequestError.
ChatPrompt encode_chat_request(const api::ChatRequest& request, const text::Tokenizer& tokenizer,
                               const std::optional<text::ChatTemplateParts>& tool_text,
                               const text::EncodeBounds& bounds);

// Whether the answer may have calls.
bool offers_tools(const api::ChatRequest& request);

}  // namespace spark::engine
