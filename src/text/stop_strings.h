// Ends a text stream at the first stop string, whatever the chunks it arrives in.
//
//   StopStrings stop({"\n\n", "END"}, false);
//   out += stop.push("one\n");    // "one": the line break could begin a stop string and waits
//   out += stop.push("\nx");      // "": found; stop.matched() == 0, what follows is dropped
//   out += stop.flush();          // at the end of the stream: what still waited
//
// The match that ends first in the text wins; of several that end there, the longest. The text up to its
// start (with include_stop: up to its end) is what comes out. Only what could still belong to a match waits:
// the longest suffix that begins a stop string. Time is linear in the text, whatever the number of stop
// strings (Aho-Corasick).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/word_tree.h"

namespace spark::text {

class StopStrings {
 public:
  // No stop string may be empty. Throws Error.
  explicit StopStrings(const std::vector<std::string>& stops, bool include_stop = false);

  std::string push(std::string_view text);
  std::string flush();

  bool stopped() const { return matched_.has_value(); }
  std::optional<size_t> matched() const { return matched_; }  // the index of the stop string
  size_t held_bytes() const { return held_.size(); }

  // Bytes of the last push() after the match, and a fresh start behind it: what a parser with several sets of
  // markers needs.
  size_t unread() const { return unread_; }
  void restart();

 private:
  WordTree tree_;
  bool include_stop_;
  uint32_t state_ = WordTree::kRoot;
  std::string held_;  // as long as the state's depth
  std::optional<size_t> matched_;
  size_t unread_ = 0;
};

}  // namespace spark::text
