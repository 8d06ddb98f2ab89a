#pragma once

namespace spark::ops {

extern const char* const kNodeScriptBody;

}  // namespace spark::ops
