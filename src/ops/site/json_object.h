// Reading helper shared by the site's loaders.
#pragma once

#include "common/json.h"

namespace spark::ops {

// True when the value is an object; otherwise one fault (missing, or of the wrong kind) is recorded, so that
// its fields are not reported as missing one by one.
inline bool require_object(const JsonReader& reader) {
  if (reader.present() && reader.json()->is_object()) return true;
  reader.members();
  return false;
}

}  // namespace spark::ops
