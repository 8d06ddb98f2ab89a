// What UCX is told where the environment does not say it: by itself it listens on every interface, and some
// of what any stranger can send there ends the process.
#pragma once

#include <string>

namespace spark::engine {

// UCX_TLS and UCX_NET_DEVICES of the environment; null where not set.
struct UcxEnvironment {
  const char* transports = nullptr;
  const char* devices = nullptr;
};

struct UcxChoice {
  std::string transports;  // empty: as UCX or the environment has it
  std::string devices;     // likewise
  bool uses_shared_memory = false;
};

// Ranks that share memory; ranks on other machines, to be reached through `devices` (empty: any).
UcxChoice choose_ucx(bool shared_memory, bool network, const std::string& devices,
                     const UcxEnvironment& environment);

}  // namespace spark::engine
