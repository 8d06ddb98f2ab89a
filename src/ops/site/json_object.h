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

// Text that stands on a command line or in a unit file: a newline there would be another command.
inline std::string read_word(const JsonReader& reader) {
  std::string text = reader.string();
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) continue;
    reader.fault("holds a control character", "remove it");
    break;
  }
  return text;
}

}  // namespace spark::ops
