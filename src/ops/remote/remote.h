// Runs commands on nodes through the system's OpenSSH client: the user's own configuration, agent and
// known_hosts decide how a node is reached and trusted. Connections are shared (one login per node, kept for
// two minutes; a further call then costs milliseconds), all nodes are asked at once, every call has a
// deadline, and the outcome says whether the node, the way to it or the command failed.
//
//   Remote remote;
//   const RemoteNode node = {.name = "node2", .user = "spark", .host = "node2"};
//   RemoteResult result = remote.run(node, {.arguments = {"docker", "ps"}, .timeout_s = 5});
//   if (result.ok()) use(result.output); else complain(result.describe());
//
//   auto results = remote.run_all(nodes, {.script = kProbeScript, .as_root = true});   // one per node, in
//   order
//
// Arguments, scripts and input travel through standard input (protocol.h): never in an argument list. A
// command is killed on the node when its deadline passes, when it is cancelled, and when this program dies,
// kill -9 included (processes that made a session of their own stay). No call reaches a terminal or asks.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "ops/remote/transport_fault.h"
#include "ops/site/node_map.h"

namespace spark::ops {

struct RemoteNode {
  std::string name;  // for messages
  std::string user;  // empty: as the SSH configuration says
  std::string host;  // what `ssh` is given
};

RemoteNode remote_node(const NodeMap& map, const Node& node);
std::vector<RemoteNode> remote_nodes(const NodeMap& map);  // in rank order

// Exactly one of `arguments` and `script` is set. Scripts are for POSIX sh; locale C, no job control, an
// empty standard input unless `input` is set. Background jobs must not keep the output streams open.
struct RemoteCommand {
  std::vector<std::string> arguments = {};
  std::string script = {};
  std::string input = {};                     // at most kMaxRemoteInput bytes
  bool as_root = false;                       // through sudo -n, unless the login is root's
  double timeout_s = 30;                      // for everything: login, command, output
  size_t max_output_bytes = size_t{8} << 20;  // per stream
};

inline constexpr size_t kMaxRemoteInput = size_t{4} << 20;  // script and input together

enum class RemoteOutcome {
  kExited,       // ran to its end: `exit_code` is the command's own
  kUnreachable,  // no session with the node: nothing ran
  kNotStarted,   // logged in, but the command could not be begun: sudo refuses, no sh or timeout
  kLost,         // the connection broke, or the command's shell was killed, while it ran: how far is unknown
  kTimedOut,     // the deadline passed; `started` says whether the command had begun
  kCancelled,    // the caller asked to stop; same
  kTooMuchOutput,  // wrote more than allowed and was stopped
};
const char* remote_outcome_name(RemoteOutcome outcome);

struct RemoteResult {
  std::string node;
  RemoteOutcome outcome = RemoteOutcome::kUnreachable;
  bool started = false;
  int exit_code = 0;  // of kExited
  std::string output;
  std::string error;    // what the command wrote to standard error
  std::string message;  // what the SSH client, the login shell or sudo said before it began
  TransportFault fault = TransportFault::kNone;  // of kUnreachable
  double seconds = 0;

  bool ok() const { return outcome == RemoteOutcome::kExited && exit_code == 0; }
  bool reached() const { return outcome != RemoteOutcome::kUnreachable; }
  std::string describe() const;  // one line: what went wrong; "ok" when nothing did
  std::string hint() const;      // what to do; may be empty
  Error to_error() const;        // where = node
};

struct RemoteOptions {
  std::string ssh_program = "ssh";
  std::string ssh_config = {};      // replaces the user's (ssh -F); default: $SPARK_SSH_CONFIG
  std::string control_folder = {};  // sockets of shared connections; default: default_control_folder()
  double connect_timeout_s = 10;
  double keep_s = 120;  // how long an idle connection is kept; 0: connections are not shared
};

// $XDG_RUNTIME_DIR/spark-ssh, or /tmp/spark-ssh-UID.
std::string default_control_folder();

struct RemoteCall {
  RemoteNode node;
  RemoteCommand command;
};

class Remote {
 public:
  // Creates the folder of the sockets (mode 0700). Throws Error when somebody else owns it or its path is too
  // long for a socket.
  explicit Remote(RemoteOptions options = {});

  RemoteResult run(const RemoteNode& node, const RemoteCommand& command, std::stop_token stop = {}) const;

  // All at once; results in the order of the calls. `finished` is called as each ends (on this thread).
  using Finished = std::function<void(size_t index, const RemoteResult& result)>;
  std::vector<RemoteResult> run_all(const std::vector<RemoteCall>& calls, std::stop_token stop = {},
                                    const Finished& finished = {}) const;
  std::vector<RemoteResult> run_all(const std::vector<RemoteNode>& nodes, const RemoteCommand& command,
                                    std::stop_token stop = {}) const;

  // Ends the shared connections to these nodes now instead of after `keep_s`.
  void close(const std::vector<RemoteNode>& nodes) const;

  // The client's argument vector up to and including the host, for callers that need a session of another
  // kind.
  std::vector<std::string> client_arguments(const RemoteNode& node) const;

 private:
  RemoteOptions options_;
};

// Replaces a file on a node: a temporary file beside it, synced, renamed over. Mode in octal. `path` is
// absolute.
RemoteCommand write_file_command(const std::string& path, std::string content,
                                 const std::string& mode = "0644", bool as_root = false);

}  // namespace spark::ops
