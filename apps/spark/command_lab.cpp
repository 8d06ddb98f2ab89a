// spark lab: a cluster of virtual nodes on this machine, to try everything on.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/table.h"
#include "common/units.h"
#include "ops/lab/eater.h"
#include "ops/lab/enter.h"
#include "ops/lab/faults.h"
#include "ops/lab/lab.h"
#include "ops/lab/texts.h"
#include "site_options.h"

namespace spark::app {
namespace {

namespace fs = std::filesystem;

struct LabFlags {
  std::string directory = "build/lab";
  int64_t nodes = 3;
  std::string memory = "8G";
  std::string disk = "1G";
  bool no_docker = false;
  std::string engine;
  std::string guard;
  bool json = false;
  ops::LabFault fault;
  std::vector<std::string> command;       // words that the parser has seen
  std::vector<std::string> command_rest;  // and those behind "--", as they were given
  std::string until;

  std::vector<std::string> whole_command() const {
    std::vector<std::string> words = command;
    words.insert(words.end(), command_rest.begin(), command_rest.end());
    return words;
  }

  // One name for a directory, however it is spelt: the lab's ID comes from it.
  std::string absolute() const {
    std::error_code trouble;
    fs::path path = fs::weakly_canonical(fs::absolute(directory), trouble);
    if (trouble) throw Error("cannot be resolved: " + trouble.message(), directory, "name another --dir");
    if (!path.has_filename()) path = path.parent_path();
    return path.string();
  }
};

// A program built beside this one.
std::string beside(const std::string& self, const std::string& name) {
  const fs::path path = fs::path(self).parent_path() / name;
  return fs::exists(path) ? path.string() : std::string();
}

void print_next_steps(const ops::LabState& state) {
  const std::string& directory = state.plan.options.directory;
  std::cout << "The lab runs: " << state.plan.nodes.size() << " nodes, " << state.docker << ".\n"
            << "  ssh -F " << directory << "/ssh_config node1\n";
  if (fs::exists(directory + "/site")) {
    std::cout << "  spark --repository " << directory << "/site --cluster-config "
              << (state.image.empty() ? ops::kLabProcessProfile : ops::kLabProfile) << " doctor\n";
  } else {
    std::cout << "  no site: run `spark lab up` in the repository, or with --repository, to get one\n";
  }
  std::cout << "  SPARK_SSH_CONFIG=" << directory << "/ssh_config   for commands that contact nodes\n"
            << "  spark lab down --dir " << directory << "\n";
}

void run_up(const LabFlags& flags, const SiteOptions& site) {
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  ops::LabOptions options;
  options.directory = flags.absolute();
  options.nodes = flags.nodes;
  options.memory_bytes = ops::parse_size(flags.memory);
  options.disk_bytes = ops::parse_size(flags.disk);
  options.docker = !flags.no_docker;
  options.spark_program = self;
  options.engine_program = flags.engine.empty() ? beside(self, "spark-engine") : flags.engine;
  options.guard_program = flags.guard.empty() ? beside(self, "spark-guard") : flags.guard;
  options.repository = fs::absolute(site.repository).lexically_normal().string();
  const double begin = monotonic_s();
  const ops::LabState state = ops::lab_up(options, [](const std::string& line) { log_info(line); });
  log_info("up in " + format_fixed(monotonic_s() - begin, 2) + " s");
  print_next_steps(state);
}

void run_down(const LabFlags& flags) {
  const double begin = monotonic_s();
  const bool found = ops::lab_down(flags.absolute());
  std::cout << (found ? "The lab is gone" : "There was no lab") << " ("
            << format_fixed(monotonic_s() - begin, 2) << " s).\n";
}

void run_status(const LabFlags& flags, Outcome& outcome) {
  const ops::LabStatus status = ops::lab_status(flags.absolute());
  if (!status.healthy()) outcome.code = ExitCode::kFindings;
  if (flags.json) {
    Json nodes = Json::array();
    for (const ops::LabNodeStatus& node : status.nodes) {
      nodes.push_back({{"name", node.name},
                       {"process", node.process},
                       {"ssh", node.ssh},
                       {"docker", node.docker},
                       {"memory_available", node.available},
                       {"faults", node.faults}});
    }
    std::cout << Json{{"directory", status.state.plan.options.directory},
                      {"healthy", status.healthy()},
                      {"containers", status.state.docker},
                      {"image", status.state.image},
                      {"nodes", nodes}}
                     .dump(2)
              << "\n";
    return;
  }
  Table table({{"node"}, {"process"}, {"ssh"}, {"docker"}, {"available", Align::kRight}, {"faults"}});
  for (const ops::LabNodeStatus& node : status.nodes)
    table.add({node.name, node.process, node.ssh, node.docker, node.available, node.faults});
  std::cout << table.text();
}

// Becomes the command; never returns.
[[noreturn]] void become(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  throw Error(std::string("cannot be started: ") + std::strerror(errno), words.front());
}

void run_shell(const LabFlags& flags) {
  const ops::LabState state = ops::load_lab(flags.absolute());
  std::vector<std::string> words = flags.whole_command();
  if (words.empty())
    words = {"env", "TERM=" + std::string(std::getenv("TERM") ? std::getenv("TERM") : "dumb"), "bash", "-l"};
  become(ops::node_command(state, flags.fault.node, words));
}

void run_operator(const LabFlags& flags) {
  const std::vector<std::string> words = flags.whole_command();
  if (words.empty()) throw CLI::RequiredError("COMMAND");
  become(ops::operator_command(ops::load_lab(flags.absolute()), words));
}

void run_fault(const LabFlags& flags) {
  // Made before anything is printed: it may be refused.
  const std::string injected = ops::inject_fault(flags.absolute(), flags.fault);
  std::cout << "injected: " << injected << "\n";
}

void run_heal(const LabFlags& flags) {
  const ops::HealedFaults result = ops::heal_faults(flags.absolute(), flags.fault.kind, flags.fault.node);
  for (const std::string& fault : result.healed) std::cout << "healed: " << fault << "\n";
  if (result.healed.empty() && result.failed.empty()) std::cout << "nothing to heal\n";
  throw_if_any(result.failed, "not healed",
               "spark lab up --dir " + flags.directory + " starts the lab afresh");
}

std::string fault_list() {
  std::string text = "Faults:\n";
  for (const ops::FaultKind& kind : ops::fault_kinds()) {
    text += "  " + std::string(kind.name) + " " + kind.wants +
            (*kind.standard_value == '\0' ? "" : std::string(" [--value ") + kind.standard_value + "]") +
            ": " + kind.description + "\n";
  }
  return text + "Example: spark lab fault mtu node1 node2 --value 1500";
}

void add_changes(CLI::App* command, const std::shared_ptr<LabFlags>& flags, const SiteOptions& site) {
  CLI::App* up =
      command->add_subcommand("up", "Build and start a lab; clears an earlier one of the same directory");
  up->add_option("--nodes", flags->nodes, "3: triangle, 4: ring")->capture_default_str();
  up->add_option("--memory", flags->memory, "Memory of each node, as its /proc/meminfo tells it")
      ->capture_default_str();
  up->add_option("--disk", flags->disk, "What each node may write (it lies in memory)")
      ->capture_default_str();
  up->add_flag("--no-docker", flags->no_docker, "Start no container engine");
  up->add_option("--engine", flags->engine,
                 "spark-engine for the image; default: the one built beside spark");
  up->add_option("--guard", flags->guard, "spark-guard for the nodes; default: the one built beside spark");
  up->footer("Needs root. Example: sudo spark lab up --nodes 4 --dir /tmp/lab");
  up->callback([flags, &site] { run_up(*flags, site); });

  CLI::App* down = command->add_subcommand("down", "End a lab and remove its directory");
  down->callback([flags] { run_down(*flags); });

  CLI::App* fault = command->add_subcommand("fault", "Make something go wrong");
  fault->add_option("KIND", flags->fault.kind, "What")->required();
  fault->add_option("NODE", flags->fault.node, "Where")->required();
  fault->add_option("PEER", flags->fault.peer, "The node at the other end of the cable");
  fault->add_option("--value", flags->fault.value, "How much");
  fault->footer(fault_list());
  fault->callback([flags] { run_fault(*flags); });

  CLI::App* heal = command->add_subcommand("heal", "Undo faults: all, those of a kind, those of a node");
  heal->add_option("KIND", flags->fault.kind, "Only faults of this kind");
  heal->add_option("NODE", flags->fault.node, "Only faults of this node");
  heal->footer("Example: spark lab heal mtu node1");
  heal->callback([flags] { run_heal(*flags); });
}

void add_looks(CLI::App* command, const std::shared_ptr<LabFlags>& flags, Outcome& outcome) {
  CLI::App* status = command->add_subcommand("status", "Nodes, servers, engines, memory, faults");
  status->add_flag("--json", flags->json, "Print one JSON document");
  status->footer("Exit code 1 when a node does not run or answer. Example: spark lab status --dir /tmp/lab");
  status->callback([flags, &outcome] { run_status(*flags, outcome); });

  CLI::App* shell = command->add_subcommand("shell", "A shell, or one command, in a node");
  shell->add_option("NODE", flags->fault.node, "Which")->required();
  shell->add_option("COMMAND", flags->command, "Instead of a shell; put -- before it");
  shell->footer("Example: spark lab shell node1 -- ip addr");
  shell->callback([flags] { run_shell(*flags); });

  CLI::App* run = command->add_subcommand("run", "A command of this machine on the lab's management network");
  run->add_option("COMMAND", flags->command, "Put -- before it");
  run->footer("Example: spark lab run -- curl http://192.0.2.1:8000/v1/models");
  run->callback([flags] { run_operator(*flags); });

  CLI::App* connect = command->add_subcommand("connect", "");
  connect->group("");  // for the SSH configuration only
  connect->add_option("NODE", flags->fault.node)->required();
  connect->callback([flags] { ops::connect_node(ops::load_lab(flags->absolute()), flags->fault.node); });

  CLI::App* eat = command->add_subcommand("eat-memory", "");
  eat->group("");  // for the memory fault only
  eat->add_option("--until", flags->until)->required();
  eat->callback([flags] { ops::eat_memory(ops::parse_size(flags->until)); });
}

}  // namespace

void add_lab_command(CLI::App& app, Outcome& outcome, const SiteOptions& site,
                     const std::vector<std::string>& command_words) {
  auto flags = std::make_shared<LabFlags>();
  flags->command_rest = command_words;
  CLI::App* command = app.add_subcommand("lab", "A cluster of virtual nodes on this machine");
  command->require_subcommand(1);
  command->fallthrough();
  command->add_option("--dir", flags->directory, "Directory of the lab")->capture_default_str();
  command->footer("Needs root. Example: spark lab up --nodes 3 && spark lab status && spark lab down");
  add_changes(command, flags, site);
  add_looks(command, flags, outcome);
  for (CLI::App* each : command->get_subcommands({})) each->fallthrough();
}

}  // namespace spark::app
