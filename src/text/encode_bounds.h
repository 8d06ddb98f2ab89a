// How far encoding goes. A text of many megabytes takes seconds; somebody who takes so many tokens only, or
// who shuts down, need not wait for all of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace spark::text {

struct EncodeBounds {
  // Where there are more tokens than this, the ids are a beginning with at least one token more. Holds for
  // text that is encoded as text (ControlTokens::kAsText).
  size_t max_tokens = SIZE_MAX;
  // Looked at every few thousand steps: once true, encoding throws EncodingStopped.
  const std::atomic<bool>* stop = nullptr;
};

class EncodingStopped : public std::runtime_error {
 public:
  EncodingStopped() : std::runtime_error("encoding was stopped") {}
};

}  // namespace spark::text
