// What the ranks of a group must agree on before they start, and how two of them disagree.
//
//   RankSettings settings{.rank = 1, .ranks = 3, .settings = {{"version", "0.1.0"}, {"--max-num-seqs",
//   "8"}}}; disagreement(settings_of_rank_0, settings);   // "--max-num-seqs is 8, on rank 0 16"; empty: none
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace spark::engine {

struct RankSettings {
  int32_t rank = 0;
  int32_t ranks = 1;
  // Name and value, the most telling first: version, checkpoint, flags.
  std::vector<std::pair<std::string, std::string>> settings;
};

// All differences, in the words of rank `theirs.rank`; empty when there is none.
std::string disagreement(const RankSettings& ours, const RankSettings& theirs);

// Text of unknown origin for a message: at most 200 characters, what cannot be printed as '?'.
std::string printable(const std::string& text);

}  // namespace spark::engine
