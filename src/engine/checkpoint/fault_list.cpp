#include "engine/checkpoint/fault_list.h"

#include <nlohmann/json.hpp>

#include "common/units.h"

namespace spark::engine {

void FaultList::throw_if_any(const std::string& subject, const std::string& hint) const {
  if (count_ == 0) return;
  const auto line = [](const Fault& fault) {
    return (fault.where.empty() ? std::string() : fault.where + ": ") + fault.what;
  };
  if (count_ == 1) throw Error(line(shown_.front()), subject, hint);
  std::string text = format_count(count_) + " faults";
  for (const Fault& fault : shown_) text += "\n  " + line(fault);
  if (count_ > shown_.size()) text += "\n  ... and " + format_count(count_ - shown_.size()) + " more";
  throw Error(text, subject, hint);
}

std::string quote_name(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace spark::engine
