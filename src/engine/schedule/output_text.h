// The text of an answer as its tokens come: whole characters, stop strings found, their possible beginnings
// held back.
//
//   OutputText text(tokenizer, request);
//   if (auto stop = text.append(token, may_stop)) ...;   // the stop string that the token completed
//   send(text.take());
//   text.finish();                                       // at the end: releases what was held back
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "engine/schedule/request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace spark::engine {

class OutputText {
 public:
  // Both outlive this object.
  OutputText(const text::Tokenizer& tokenizer, const GenerationRequest& request)
      : request_(&request),
        characters_(tokenizer, request.skip_special),
        stops_(request.stop, request.include_stop) {}

  // Stop strings begin no earlier than the first token that may stop the answer.
  std::optional<std::string> append(int32_t token, bool may_stop) {
    const std::string piece = characters_.push(token);
    if (!may_stop || request_->stop.empty()) {
      released_ += piece;
      return std::nullopt;
    }
    released_ += stops_.push(piece);
    if (!stops_.stopped()) return std::nullopt;
    return request_->stop[*stops_.matched()];
  }

  void finish() {
    if (stops_.stopped()) return;
    // What is left of a character is no stop string's concern any more.
    released_ += stops_.flush();
    released_ += characters_.flush();
  }

  std::string take() { return std::exchange(released_, {}); }

 private:
  const GenerationRequest* request_;
  text::Detokenizer characters_;
  text::StopStrings stops_;
  std::string released_;
};

}  // namespace spark::engine
