// Tells checkpoints apart without reading them: ranks compare it before they work together.
//
//   checkpoint_fingerprint("/models/DeepSeek-V4.1-Flash");     // "5d41402abc4b2a76"
//
// It covers config.json and tokenizer.json, every tensor's name, type and shape, and the content of tensors
// of up to 16 KiB (norms, sinks, biases), which differ between any two trainings.
#pragma once

#include <string>

namespace spark::engine {

// Throws Error when the folder is no checkpoint.
std::string checkpoint_fingerprint(const std::string& folder);

}  // namespace spark::engine
