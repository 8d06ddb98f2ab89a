// JSON as it goes onto the wire: one line, always valid UTF-8 (bytes that are not become U+FFFD).
#pragma once

#include <string>

#include "common/json.h"

namespace spark::api {

inline std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spark::api
