// spark probe: what a node says about itself, in one read-only round trip.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "common/error.h"
#include "common/printable.h"
#include "common/table.h"
#include "common/units.h"
#include "node_choice.h"
#include "ops/probe/gather.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct ProbeFlags {
  std::string node;
  std::string root;
  std::string record;
  bool json = false;
  bool raw = false;
};

std::string or_unknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

void print_summary(const ops::NodeAnswer& answer) {
  const ops::Facts& facts = answer.facts;
  const auto gib = [](const std::optional<int64_t>& kib) {
    return kib ? format_fixed(static_cast<double>(*kib) / (1 << 20), 1) + " GiB" : std::string("unknown");
  };
  Table table({{"what"}, {"value"}});
  table.add({"host name", or_unknown(facts.identity.host_name)});
  table.add({"system", or_unknown(facts.identity.os_name)});
  table.add({"kernel", or_unknown(facts.kernel.release)});
  table.add({"page size", facts.kernel.page_size ? std::to_string(*facts.kernel.page_size) : "unknown"});
  table.add({"NVIDIA driver", facts.kernel.driver.empty() ? "none" : facts.kernel.driver});
  table.add({"memory", gib(facts.memory.total_kib) + ", " + gib(facts.memory.available_kib) + " available"});
  table.add({"RDMA devices", std::to_string(facts.network.rdma.size())});
  table.add({"Docker", facts.docker.answers ? facts.docker.server_version : facts.why("docker-info")});
  std::cout << table.text();
  for (const auto& [section, why] : facts.failures)
    std::cout << "no answer: " << section << " " << one_line(why) << "\n";
  for (const Fault& fault : answer.faults)
    std::cout << "damaged: " << one_line(fault.where) << " " << one_line(fault.what) << "\n";
}

ops::NodeAnswer ask(const ProbeFlags& flags, const SiteOptions& options) {
  if (!flags.root.empty()) {
    std::error_code failed;
    if (!std::filesystem::is_directory(flags.root, failed)) throw Error("is no folder", flags.root);
    ops::ProbeRequest request;
    request.root = std::filesystem::canonical(flags.root).string();
    return ops::probe_here(flags.root, request);
  }
  const ops::Site site = options.load(ops::Repository(options.repository));
  ops::throw_if_any_fault(site);
  const ops::Remote remote;
  return ops::probe_nodes(site, {&find_node(site, flags.node)}, {}, remote).front();
}

void run_probe(const ProbeFlags& flags, const SiteOptions& options, Outcome& outcome) {
  const ops::NodeAnswer answer = ask(flags, options);
  if (answer.outcome != ops::ProbeOutcome::kAnswered) {
    std::cerr << "error: " << Error(answer.problem, answer.node, answer.hint).describe() << "\n";
    outcome.code =
        answer.outcome == ops::ProbeOutcome::kUnreachable ? ExitCode::kUnreachable : ExitCode::kFindings;
    return;
  }
  if (!flags.record.empty()) {
    Faults faults;
    ops::record_dump(ops::parse_dump(answer.text, faults), flags.record);
    std::cerr << "recorded in " << flags.record << "\n";
  }
  if (flags.raw) {
    std::cout << answer.text;
  } else if (flags.json) {
    std::cout << ops::facts_json(answer.facts).dump(2) << "\n";
  } else if (flags.record.empty()) {
    print_summary(answer);
  }
  if (!answer.faults.empty()) outcome.code = ExitCode::kFindings;
}

}  // namespace

void add_probe_command(CLI::App& app, Outcome& outcome, const SiteOptions& options) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = app.add_subcommand("probe", "Ask a node everything in one round trip; change nothing");
  command->fallthrough();
  CLI::Option* node = command->add_option("NODE", flags->node, "Name of a node in the map");
  CLI::Option* root =
      command->add_option("--root", flags->root, "A recorded tree instead of a node; / is this machine");
  node->excludes(root);
  CLI::Option* json = command->add_flag("--json", flags->json, "Print all facts as JSON");
  command->add_flag("--raw", flags->raw, "Print the answer as it came")->excludes(json);
  command->add_option("--record", flags->record, "Keep the answer as a tree for --root, in this new folder");
  command->footer(
      "Nothing has to be installed on the node. docs/probe.md describes the answer and what it needs.");
  command->callback([flags, node, root, &options, &outcome] {
    if (node->count() == 0 && root->count() == 0) throw CLI::RequiredError("NODE or --root");
    run_probe(*flags, options, outcome);
  });
}

}  // namespace spark::app
