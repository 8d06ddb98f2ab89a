// Why no command ran on a node, read from what the SSH client said.
//
//   TransportFault fault = transport_fault("ssh: connect to host node3 port 22: No route to host\r\n");
//   transport_hint(fault, "node3")   // "node3 has no route from here: check its power, its management cable
//   ..."
#pragma once

#include <string>
#include <string_view>

namespace spark::ops {

enum class TransportFault {
  kNone,
  kUnknownHost,     // the name does not resolve
  kRefused,         // the machine answers, nothing listens: sshd is down
  kNoRoute,         // no route, network down
  kTimeout,         // packets vanish: powered off, frozen, filtered
  kHostKey,         // key unknown or changed
  kAuthentication,  // no key that the node accepts
  kClosed,          // the connection was cut: sshd out of slots, node rebooting, cable pulled
  kConfiguration,   // the client refuses its own configuration
  kOther,
};

TransportFault transport_fault(std::string_view client_message);
const char* transport_fault_name(TransportFault fault);  // "no-route"
std::string transport_hint(TransportFault fault, const std::string& node);

}  // namespace spark::ops
