// spark fabric: cables, addresses and node maps. Everything is printed or written to local files; no host is
// touched.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "common/file.h"
#include "common/new_folder.h"
#include "ops/fabric/addresses.h"
#include "ops/fabric/drawing.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/lldp.h"
#include "site_options.h"

namespace spark::app {
namespace {

struct FabricFlags {
  std::string svg;
  bool json = false;
  std::vector<std::string> nodes;
  std::string ssh_user = "spark";
  std::string output;
  int64_t first_octet = 10;
};

// The node map alone: a new site has no profile that loads yet.
ops::NodeMap load_map(const SiteOptions& options) {
  const ops::Repository repository(options.repository);
  std::string path = options.request.nodes;
  if (path.empty()) {
    const ops::Site site = options.load(repository);
    path = site.nodes_file.empty() ? std::string(ops::kDefaultNodeMap) : site.nodes_file;
  }
  if (!repository.exists(path)) {
    throw Error("does not exist", path,
                "spark fabric plan NODE=ADDRESS ... --output " + path + " writes one");
  }
  Faults faults;
  ops::NodeMap map = ops::read_node_map(parse_json(repository.read(path), path), faults);
  throw_if_any(faults, path);
  return map;
}

void write_new_file(const std::string& path, const std::string& text) {
  std::error_code ignored;  // a link counts, whatever it leads to: writing would replace it
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    throw Error("exists already", path, "nothing was written: choose another name, or remove it first");
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
    throw Error("has no folder " + folder.string() + " to stand in", path,
                "run spark in the repository, or make it");
  }
  write_file_atomic(path, text);
  std::cerr << "wrote " << path << "\n";
}

void emit(const FabricFlags& flags, const std::string& text) {
  if (flags.output.empty()) {
    std::cout << text;
  } else {
    write_new_file(flags.output, text);
  }
}

void run_show(const FabricFlags& flags, const SiteOptions& options) {
  const ops::NodeMap map = load_map(options);
  const ops::FabricLayout layout = ops::fabric_layout(map);
  if (!flags.svg.empty()) {
    write_file_atomic(flags.svg, ops::layout_svg(layout));
    std::cerr << "wrote " << flags.svg << "\n";
  }
  std::cout << (flags.json ? ops::layout_json(layout, map).dump(2) + "\n" : ops::layout_text(layout, map));
}

void run_plan(const FabricFlags& flags) {
  ops::AddressRequest request{.ssh_user = flags.ssh_user, .nodes = {}, .first_octet = flags.first_octet};
  for (const std::string& word : flags.nodes) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos)
      throw Error("\"" + word + "\" names no address", "fabric plan", "write NAME=ADDRESS");
    request.nodes.push_back({word.substr(0, equals), word.substr(equals + 1), {}});
  }
  emit(flags, ops::node_map_text(ops::plan_addresses(request)));
}

void run_import(const FabricFlags& flags) {
  ops::ImportRequest request{.ssh_user = flags.ssh_user, .reports = {}, .first_octet = flags.first_octet};
  for (const std::string& word : flags.nodes) {
    const size_t first = word.find('=');
    if (first == std::string::npos)
      throw Error("\"" + word + "\" names no file", "fabric import", "write NAME=FILE or NAME=FILE=ADDRESS");
    const size_t second = word.find('=', first + 1);
    const std::string file =
        word.substr(first + 1, second == std::string::npos ? second : second - first - 1);
    request.reports.push_back({word.substr(0, first),
                               second == std::string::npos ? std::string() : word.substr(second + 1),
                               read_file(file, size_t{4} << 20)});
  }
  emit(flags, ops::node_map_text(ops::import_neighbours(request)));
}

void run_netplan(const FabricFlags& flags, const SiteOptions& options) {
  const ops::NodeMap map = load_map(options);
  const auto files = ops::netplan_files(map);
  if (flags.output.empty()) {
    for (const ops::NetplanFile& file : files) {
      std::cout << "### " << file.node << ": " << ops::kNetplanPath << "\n"
                << file.netplan << "\n### " << file.node << ": revert.sh\n"
                << file.revert << "\n";
    }
    return;
  }
  NewFolder folder(flags.output);
  for (const ops::NetplanFile& file : files) {
    folder.write(file.node + "/40-cx7.yaml", file.netplan, 0600);
    folder.write(file.node + "/revert.sh", file.revert, 0755);
  }
  folder.commit();
  std::cout << ops::netplan_commands(map, flags.output);
}

void add_map_options(CLI::App* command, FabricFlags& flags) {
  command->add_option("--ssh-user", flags.ssh_user, "Login on every machine")->capture_default_str();
  command->add_option("--first-octet", flags.first_octet, "Fabric subnets are OCTET.ab.p.0/24")
      ->check(CLI::Range(int64_t{1}, int64_t{223}))
      ->capture_default_str();
  command->add_option("--output", flags.output, "Write a new file instead of printing");
}

}  // namespace

void add_fabric_command(CLI::App& app, const SiteOptions& options) {
  auto flags = std::make_shared<FabricFlags>();
  CLI::App* command = app.add_subcommand("fabric", "Cables, addresses and node maps; no host is touched");
  command->require_subcommand(1);
  command->fallthrough();
  command->footer(
      "Examples:\n"
      "  spark fabric plan node1=192.0.2.1 node2=192.0.2.2 node3=192.0.2.3 --output config/nodes.json\n"
      "  spark fabric show --svg cables.svg\n"
      "  spark fabric netplan --output netplan\n"
      "  spark fabric import node1=node1.json node2=node2.json node3=node3.json");

  CLI::App* show =
      command->add_subcommand("show", "The cable map: which port leads where, subnets, addresses, GIDs");
  show->fallthrough();
  show->add_option("--svg", flags->svg, "Also write it as a picture");
  show->add_flag("--json", flags->json, "Print one JSON document");
  show->footer("Example: spark --nodes-config config/examples/nodes-ring4.json fabric show --svg ring.svg");
  show->callback([flags, &options] { run_show(*flags, options); });

  CLI::App* plan =
      command->add_subcommand("plan", "A complete node map for machines in cable order, the head first");
  plan->add_option("NODE=ADDRESS", flags->nodes, "Machine and its management address, three or four of them")
      ->required();
  add_map_options(plan, *flags);
  plan->footer(
      "Port 0 of each machine goes to port 1 of the next one; spark fabric show draws it.\n"
      "Example: spark fabric plan a=192.0.2.1 b=192.0.2.2 c=192.0.2.3 d=192.0.2.4 --output "
      "config/nodes-ring4.local.json");
  plan->callback([flags] { run_plan(*flags); });

  CLI::App* import =
      command->add_subcommand("import", "A node map from what lldpctl -f json prints on every machine");
  import
      ->add_option("NODE=FILE", flags->nodes,
                   "Machine and its report, the head first; NODE=FILE=ADDRESS states the management address")
      ->required();
  add_map_options(import, *flags);
  import->footer(
      "Example:\n"
      "  for n in node1 node2 node3; do ssh $n sudo lldpctl -f json > $n.json; done\n"
      "  spark fabric import node1=node1.json node2=node2.json node3=node3.json --output config/nodes.json");
  import->callback([flags] { run_import(*flags);
});

CLI::App* netplan =
    command->add_subcommand("netplan", "Network configuration and a revert script for every machine");
netplan->fallthrough();
netplan->add_option("--output", flags->output,
                    "New folder for the files; then prints the commands to install them");
netplan->footer("Example: spark fabric netplan --output netplan > install-commands.txt");
netplan->callback([flags, &options] { run_netplan(*flags, options); });
}  // namespace spark::app

}  // namespace spark::app
