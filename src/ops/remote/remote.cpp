#include "ops/remote/remote.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/printable.h"
#include "common/process.h"
#include "ops/remote/control_folder.h"
#include "ops/remote/ssh_call.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string trimmed(std::string text) {
  std::erase(text, '\r');
  const auto last = text.find_last_not_of(" \n\t");
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

std::string last_line(const std::string& text) {
  const std::string whole = trimmed(text);
  return whole.substr(whole.rfind('\n') + 1);
}

std::string with_detail(std::string what, const std::string& detail) {
  return detail.empty() ? what : what + ": " + one_line(detail);
}

std::string rounded(double seconds) {
  return std::to_string(std::lround(seconds * 10) / 10) + "." +
         std::to_string(std::lround(seconds * 10) % 10);
}

}  // namespace

RemoteNode remote_node(const NodeMap& map, const Node& node) {
  return {.name = node.name, .user = map.ssh_user, .host = node.ssh_target()};
}

std::vector<RemoteNode> remote_nodes(const NodeMap& map) {
  std::vector<const Node*> ordered;
  for (const Node& node : map.nodes) ordered.push_back(&node);
  std::stable_sort(ordered.begin(), ordered.end(), [](auto* a, auto* b) { return a->rank < b->rank; });
  std::vector<RemoteNode> result;
  for (const Node* node : ordered) result.push_back(remote_node(map, *node));
  return result;
}

const char* remote_outcome_name(RemoteOutcome outcome) {
  constexpr const char* kNames[] = {"exited",    "unreachable", "not-started",    "lost",
                                    "timed-out", "cancelled",   "too-much-output"};
  return kNames[static_cast<size_t>(outcome)];
}

std::string RemoteResult::describe() const {
  const std::string begun = started ? " (the command had begun)" : " (the command had not begun)";
  switch (outcome) {
    case RemoteOutcome::kExited:
      if (exit_code == 0) return "ok";
      return with_detail("the command failed with exit code " + std::to_string(exit_code), last_line(error));
    case RemoteOutcome::kUnreachable:
      return with_detail("cannot be reached", last_line(message));
    case RemoteOutcome::kNotStarted:
      return with_detail("reached, but the command could not be started", last_line(message));
    case RemoteOutcome::kLost:
      return with_detail("the connection was lost while the command ran", last_line(error));
    case RemoteOutcome::kTimedOut:
      return "no result within " + rounded(seconds) + " s" + begun;
    case RemoteOutcome::kCancelled:
      return "stopped on request after " + rounded(seconds) + " s" + begun;
    case RemoteOutcome::kTooMuchOutput:
      return "wrote more than " + std::to_string(std::max(output.size(), error.size())) +
             " bytes and was stopped";
  }
  return {};
}

std::string RemoteResult::hint() const {
  if (outcome == RemoteOutcome::kUnreachable) return transport_hint(fault, node);
  if (outcome == RemoteOutcome::kTimedOut && !started) return transport_hint(TransportFault::kTimeout, node);
  if (outcome == RemoteOutcome::kNotStarted && message.find("sudo") != std::string::npos)
    return "allow the SSH user on " + node + " to use sudo without a password";
  return {};
}

Error RemoteResult::to_error() const {
  return Error(describe(), node, hint());
}

Remote::Remote(RemoteOptions options) : options_(std::move(options)) {
  if (options_.ssh_config.empty()) {
    const char* configured = std::getenv("SPARK_SSH_CONFIG");
    if (configured != nullptr) options_.ssh_config = configured;
  }
  if (options_.keep_s <= 0) return;
  if (options_.control_folder.empty()) options_.control_folder = default_control_folder();
  make_control_folder(options_.control_folder);
}

std::vector<std::string> Remote::client_arguments(const RemoteNode& node) const {
  std::vector<std::string> words = {options_.ssh_program};
  const auto option = [&words](const std::string& text) {
    words.push_back("-o");
    words.push_back(text);
  };
  if (!options_.ssh_config.empty()) {
    words.push_back("-F");
    words.push_back(options_.ssh_config);
  }
  option("BatchMode=yes");
  option("ConnectTimeout=" +
         std::to_string(std::max(1L, std::lround(std::ceil(options_.connect_timeout_s)))));
  // A node that freezes must not hold its shared connection for ever.
  option("ServerAliveInterval=5");
  option("ServerAliveCountMax=3");
  // Forwards and commands of the user's configuration are for interactive logins.
  option("ClearAllForwardings=yes");
  option("RequestTTY=no");
  option("RemoteCommand=none");
  option("PermitLocalCommand=no");
  if (options_.keep_s > 0) {
    option("ControlMaster=auto");
    option("ControlPath=" + options_.control_folder + "/%C");
    option("ControlPersist=" + std::to_string(std::lround(std::ceil(options_.keep_s))));
  } else {
    option("ControlPath=none");
  }
  if (!node.user.empty()) {
    words.push_back("-l");
    words.push_back(node.user);
  }
  words.push_back("--");
  words.push_back(node.host);
  return words;
}

RemoteResult Remote::run(const RemoteNode& node, const RemoteCommand& command, std::stop_token stop) const {
  return run_all({RemoteCall{node, command}}, std::move(stop)).front();
}

std::vector<RemoteResult> Remote::run_all(const std::vector<RemoteNode>& nodes, const RemoteCommand& command,
                                          std::stop_token stop) const {
  std::vector<RemoteCall> calls;
  for (const RemoteNode& node : nodes) calls.push_back({node, command});
  return run_all(calls, std::move(stop));
}

std::vector<RemoteResult> Remote::run_all(const std::vector<RemoteCall>& calls, std::stop_token stop,
                                          const Finished& finished) const {
  std::vector<SshCall> running;
  running.reserve(calls.size());
  for (const RemoteCall& call : calls) running.emplace_back(client_arguments(call.node), call);
  std::vector<RemoteNode> hung;
  watch_calls(running, stop, [&](size_t index) {
    const RemoteResult& result = running[index].result();
    if (result.outcome == RemoteOutcome::kTimedOut && !result.started) hung.push_back(calls[index].node);
    if (finished) finished(index, result);
  });
  // A shared connection over which nothing begins is dead: the next call shall open its own.
  close(hung);
  std::vector<RemoteResult> results;
  for (SshCall& call : running) results.push_back(std::move(call.result()));
  return results;
}

void Remote::close(const std::vector<RemoteNode>& nodes) const {
  if (options_.keep_s <= 0) return;
  for (const RemoteNode& node : nodes) {
    std::vector<std::string> words = client_arguments(node);
    words.insert(words.begin() + 1, {"-O", "exit"});
    try {
      run_process(words, {.timeout_s = 2});  // talks to the local socket only; there may be none
    } catch (const Error&) {
      // It does not answer: the socket stays until its process notices the dead peer.
    }
  }
}

RemoteCommand write_file_command(const std::string& path, std::string content, const std::string& mode,
                                 bool as_root) {
  const std::string target = shell_quote(path);
  const std::string script = "set -e; umask 077; p=" + target +
                             "; t=$p.spark.$$; trap 'rm -f \"$t\"' EXIT; cat >\"$t\"; chmod " +
                             shell_quote(mode) + " \"$t\"; sync \"$t\"; mv -f \"$t\" \"$p\"; trap - EXIT";
  RemoteCommand command;
  // An empty input is no input: the file is then made from /dev/null, with the same result.
  command.script = script;
  command.input = std::move(content);
  command.as_root = as_root;
  return command;
}

}  // namespace spark::ops
