// Which network interface leads to rank 0: the only one that a rank listens on for the others.
//
//   std::string why;
//   if (const auto interface = interface_towards("10.0.0.1", 29501, why)) devices_of(*interface);  // "eth0"
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spark::engine {

// The interface with the address that this machine talks to `host` from; on rank 0, with `host` itself. Sends
// nothing. Nullopt, and `why` set, while there is no way to it; empty when that names no interface, as
// "0.0.0.0" does not.
std::optional<std::string> interface_towards(const std::string& host, uint16_t port, std::string& why);

// What UCX calls the interface, and the RDMA ports that are the same wire: "enp1s0f0np0,rocep1s0f0:1".
std::string devices_of(const std::string& interface, const std::string& sys_class_net = "/sys/class/net");

}  // namespace spark::engine
