#include "engine/collective/rank_settings.h"

#include <algorithm>
#include <map>

namespace spark::engine {

std::string printable(const std::string& text) {
  constexpr size_t kLongest = 200;
  std::string result = text.substr(0, kLongest);
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kLongest ? result + "..." : result;
}

std::string disagreement(const RankSettings& ours, const RankSettings& theirs) {
  std::string text;
  const auto differs = [&](const std::string& name, const std::string& here, const std::string& there) {
    if (here == there) return;
    text += (text.empty() ? "" : "; ") + printable(name) + " is " + printable(there) + ", on rank " +
            std::to_string(ours.rank) + " " + printable(here);
  };
  differs("the number of ranks", std::to_string(ours.ranks), std::to_string(theirs.ranks));
  const std::map<std::string, std::string> there(theirs.settings.begin(), theirs.settings.end());
  for (const auto& [name, value] : ours.settings) {
    const auto found = there.find(name);
    differs(name, value, found == there.end() ? "missing" : found->second);
  }
  for (const auto& [name, value] : theirs.settings) {
    const bool known = std::any_of(ours.settings.begin(), ours.settings.end(),
                                   [&](const auto& setting) { return setting.first == name; });
    if (!known) differs(name, "missing", value);
  }
  return text;
}

}  // namespace spark::engine
