#include "ops/probe/gather.h"

#include <chrono>
#include <filesystem>

#include "common/process.h"

namespace spark::ops {
namespace {

double clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

NodeAnswer not_answered(const std::string& node, const RemoteResult& result) {
  NodeAnswer answer{.node = node};
  answer.outcome = result.reached() ? ProbeOutcome::kFailed : ProbeOutcome::kUnreachable;
  answer.problem = result.describe();
  answer.hint = result.hint();
  return answer;
}

}  // namespace

NodeAnswer read_answer(const std::string& node, std::string_view answer) {
  NodeAnswer result{.node = node};
  result.text = std::string(answer);
  result.facts = read_facts(parse_dump(answer, result.faults), result.faults);
  return result;
}

std::vector<NodeAnswer> probe_nodes(const Site& site, const std::vector<const Node*>& nodes,
                                    const GatherOptions& options, const Remote& remote,
                                    std::stop_token stop) {
  std::vector<RemoteCall> calls;
  for (const Node* node : nodes) {
    ProbeRequest request = probe_request(site, *node);
    request.fragmentation = options.fragmentation;
    request.policy_files = options.policy_files;
    RemoteCommand command;
    command.script = probe_script(request);
    command.timeout_s = options.timeout_s;
    command.max_output_bytes = kMaxDumpBytes;
    calls.push_back({remote_node(site.nodes, *node), std::move(command)});
  }
  const double sent = clock_s();
  std::vector<double> received(nodes.size(), sent);
  const std::vector<RemoteResult> results =
      remote.run_all(calls, stop, [&](size_t index, const RemoteResult&) { received[index] = clock_s(); });
  std::vector<NodeAnswer> answers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    // The script's own exit status says nothing: each section has one of its own.
    if (results[i].outcome != RemoteOutcome::kExited || results[i].output.empty()) {
      answers.push_back(not_answered(nodes[i]->name, results[i]));
      if (answers.back().problem == "ok") answers.back().problem = "the probe printed nothing";
      continue;
    }
    answers.push_back(read_answer(nodes[i]->name, results[i].output));
    answers.back().sent_s = sent;
    answers.back().received_s = received[i];
  }
  return answers;
}

NodeAnswer probe_here(const std::string& name, const ProbeRequest& request, double timeout_s) {
  const double sent = clock_s();
  const ProcessResult result = run_process({"sh", "-c", probe_script(request)},
                                           {.timeout_s = timeout_s, .max_output_bytes = kMaxDumpBytes});
  if (result.output.empty()) {
    return {.node = name,
            .outcome = ProbeOutcome::kFailed,
            .problem = result.error.empty() ? "the probe printed nothing" : result.error};
  }
  NodeAnswer answer = read_answer(name, result.output);
  if (request.root == "/") answer.sent_s = sent, answer.received_s = clock_s();
  return answer;
}

std::vector<NodeAnswer> probe_recorded(const Site& site, const std::vector<const Node*>& nodes,
                                       const std::string& folder) {
  std::vector<NodeAnswer> answers;
  for (const Node* node : nodes) {
    ProbeRequest request = probe_request(site, *node);
    request.root = folder + "/" + node->name;
    std::error_code failed;
    if (!std::filesystem::is_directory(request.root, failed)) {
      answers.push_back({.node = node->name,
                         .outcome = ProbeOutcome::kUnreachable,
                         .problem = "there is no folder " + request.root});
      continue;
    }
    request.root = std::filesystem::absolute(request.root).string();
    answers.push_back(probe_here(node->name, request));
  }
  return answers;
}

}  // namespace spark::ops
