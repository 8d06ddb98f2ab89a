// Several things that may be wrong, looked at one after the other.
//
//   Faults faults;
//   const bool has_config = attempt(&faults, [&] { config = load(path); });
//   attempt(&faults, [&] { generation = read(other_path); });
//   throw_if_any(faults, "this would not start");
#pragma once

#include "common/error.h"

namespace spark::app {

// Adds the Error that `check` throws; whether there was none. Without a list the first Error ends it all.
template <typename Check>
bool attempt(Faults* faults, const Check& check) {
  try {
    check();
    return true;
  } catch (const Error& error) {
    if (faults == nullptr) throw;
    faults->push_back({error.where(), error.what(), error.hint()});
    return false;
  }
}

}  // namespace spark::app
