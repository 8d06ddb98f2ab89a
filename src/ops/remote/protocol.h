// What travels inside one SSH session, as pure functions. Callers want ops/remote/remote.h.
//
// The command line that the client is given is the same text for every call, whatever is run: everything that
// says what to do (the script, its input) goes through standard input, as two lines of base64. So nothing
// secret shows in a process list, a script that did not arrive whole is not begun, and no quoting depends on
// the login shell of the node. On the node:
//
//   sh -> [sudo -n] timeout -k 2 N sh: reads the two lines; marks the beginning on both output streams;
//         starts a watcher that reads on from standard input; runs the script; marks the end with its exit
//         code
//
// Standard input stays open on this side for as long as the result is wanted. When it closes, because of a
// deadline, a cancellation, a crash or kill -9 of this program, the watcher ends the process group of the
// call with SIGTERM and two seconds later with SIGKILL. `timeout` does the same when the network is gone and
// no hang-up can arrive. Out of reach stay processes that make a session of their own (setsid, systemd-run,
// containers): those are what a caller starts on purpose to outlive the call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spark::ops {

// One argument for the SSH client. `nonce` is letters and digits.
std::string remote_command_line(const std::string& nonce, double timeout_s, bool as_root);

// The two lines.
std::string remote_input(std::string_view script, std::string_view input);

std::string base64_text(std::string_view bytes);

// Splits one output stream at the marks of a call.
struct MarkedText {
  bool started = false;
  std::optional<int> exit_code;  // present when the script ran to its end
  std::string before;            // what the client, the login shell and sudo said first
  std::string text;              // what the script wrote
};
MarkedText split_marked(const std::string& stream, const std::string& nonce);

}  // namespace spark::ops
