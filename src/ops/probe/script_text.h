// The body of the probe script; script.cpp puts the assignments in front of it.
#pragma once

namespace spark::ops {

extern const char* const kProbeScriptBody;

}  // namespace spark::ops
