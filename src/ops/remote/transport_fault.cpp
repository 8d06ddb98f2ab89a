#include "ops/remote/transport_fault.h"

#include <iterator>

namespace spark::ops {
namespace {

struct Phrase {
  const char* text;
  TransportFault fault;
};

// As OpenSSH 8.9 to 10 print them; the first that occurs decides, so what explains more stands first.
constexpr Phrase kPhrases[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED", TransportFault::kHostKey},
    {"Host key verification failed", TransportFault::kHostKey},
    {"host key is known for", TransportFault::kHostKey},
    {"Permission denied", TransportFault::kAuthentication},
    {"Too many authentication failures", TransportFault::kAuthentication},
    {"Could not resolve hostname", TransportFault::kUnknownHost},
    {"Bad configuration option", TransportFault::kConfiguration},
    {"terminating, ", TransportFault::kConfiguration},
    {"Bad owner or permissions", TransportFault::kConfiguration},
    {"Can't open user config file", TransportFault::kConfiguration},
    {"Connection refused", TransportFault::kRefused},
    {"No route to host", TransportFault::kNoRoute},
    {"Network is unreachable", TransportFault::kNoRoute},
    {"Host is down", TransportFault::kNoRoute},
    {"Connection timed out", TransportFault::kTimeout},
    {"Operation timed out", TransportFault::kTimeout},
    {"timed out during banner exchange", TransportFault::kTimeout},
    {"not responding", TransportFault::kTimeout},
    {"Connection closed", TransportFault::kClosed},
    {"Connection reset", TransportFault::kClosed},
    {"Broken pipe", TransportFault::kClosed},
    {"kex_exchange_identification", TransportFault::kClosed},
    {"Session open refused", TransportFault::kClosed},
};

}  // namespace

TransportFault transport_fault(std::string_view client_message) {
  for (const Phrase& phrase : kPhrases) {
    if (client_message.find(phrase.text) != std::string_view::npos) return phrase.fault;
  }
  return TransportFault::kOther;
}

const char* transport_fault_name(TransportFault fault) {
  constexpr const char* kNames[] = {"none",     "unknown-host",   "refused", "no-route",      "timeout",
                                    "host-key", "authentication", "closed",  "configuration", "other"};
  static_assert(std::size(kNames) == static_cast<size_t>(TransportFault::kOther) + 1);
  return kNames[static_cast<size_t>(fault)];
}

std::string transport_hint(TransportFault fault, const std::string& node) {
  switch (fault) {
    case TransportFault::kUnknownHost:
      return "give " + node + " an entry in ~/.ssh/config or /etc/hosts, or set its ssh_host in the node map";
    case TransportFault::kRefused:
      return "the machine answers but no SSH server listens: start ssh.service on " + node +
             " at its console";
    case TransportFault::kNoRoute:
      return "check the power and the management cable of " + node +
             ", and that its address is the right one";
    case TransportFault::kTimeout:
      return node +
             " does not answer: it is off, frozen, or a firewall drops the packets; look at its console";
    case TransportFault::kHostKey:
      return "if " + node +
             " was reinstalled, remove its old key with ssh-keygen -R, then connect once by hand "
             "and compare the fingerprint";
    case TransportFault::kAuthentication:
      return "install your key there once: ssh-copy-id " + node + " (a passphrase needs an agent: ssh-add)";
    case TransportFault::kClosed:
      return "the connection was cut: " + node + " may be rebooting, or its SSH server has no free slot";
    case TransportFault::kConfiguration:
      return "correct the SSH client configuration that the message names";
    default:
      return "try by hand: ssh " + node + " true";
  }
}

}  // namespace spark::ops
