#include "engine/collective/ucx_choice.h"

#include <sstream>

namespace spark::engine {
namespace {

// Whether a value of UCX_TLS ("posix,self", "^tcp", "all") leaves shared memory in.
bool names_shared_memory(const std::string& transports) {
  if (transports.starts_with("^") || transports == "all") return true;
  std::istringstream list(transports);
  for (std::string name; std::getline(list, name, ',');) {
    for (const char* each : {"sm", "shm", "mm", "posix", "sysv", "xpmem"}) {
      if (name == each) return true;
    }
  }
  return false;
}

}  // namespace

UcxChoice choose_ucx(bool shared_memory, bool network, const std::string& devices,
                     const UcxEnvironment& environment) {
  if (environment.transports != nullptr) return {{}, {}, names_shared_memory(environment.transports)};
  UcxChoice choice;
  if (environment.devices == nullptr) choice.devices = network ? devices : "";
  // Segments of System V outlive a killed process, and one process may not be allowed to read another.
  if (!network && environment.devices == nullptr) {
    choice.transports = "posix,self";
  } else {
    choice.transports = shared_memory ? "^sysv,cma" : "^sm";
  }
  choice.uses_shared_memory = shared_memory;
  return choice;
}

}  // namespace spark::engine
