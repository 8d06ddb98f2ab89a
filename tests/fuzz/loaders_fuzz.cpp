// Every loader of the control plane. The first byte chooses one (kLoaders below), the rest is what it reads:
// files that people write, answers of machines, files that a program of this house wrote before. Three ways
// end in more than a loader: a profile, a node map or a site file inside an otherwise sound site goes on to
// findings and launches, a profile to a plan, a probe's answer to the live doctor. Faults are expected; what
// must not happen is a crash, a hang, a finding without a rule, or a launch that changes between two runs.
//
//   cmake --preset fuzz && cmake --build build/fuzz --target loaders_fuzz
//   tests/fuzz/loaders_seeds corpus
//   build/fuzz/tests/fuzz/loaders_fuzz -max_total_time=600 -timeout=10 -max_len=65536 corpus tests/data/fuzz
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "bench/report/report.h"
#include "common/file.h"
#include "json_mutator.h"
#include "ops/doctor/boot_log.h"
#include "ops/doctor/doctor.h"
#include "ops/doctor/live.h"
#include "ops/doctor/rule.h"
#include "ops/fabric/addresses.h"
#include "ops/fabric/drawing.h"
#include "ops/fabric/lldp.h"
#include "ops/guard/kernel.h"
#include "ops/guard/report.h"
#include "ops/lab/state.h"
#include "ops/launch/journal.h"
#include "ops/launch/render.h"
#include "ops/launch/run_state.h"
#include "ops/plan/plan.h"
#include "ops/recovery/change.h"
#include "ops/recovery/state.h"
#include "ops/remote/protocol.h"
#include "ops/site/baseline_manifest.h"
#include "ops/site/inspect.h"
#include "ops/site/tuning_catalogue.h"
#include "ops/tuning/recipe.h"
#include "text/tool_text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace spark;
using namespace spark::ops;

Repository& repository() {
  static Repository tree(SPARK_SOURCE_DIR);
  return tree;
}

void whole_site(const char* file, const std::string& text) {
  Repository tree = repository();
  tree.overlay("config/fuzz-profile.json", tree.read("tests/data/site/reference/cluster-tp4.json"));
  tree.overlay("config/fuzz-nodes.json", tree.read("tests/data/site/reference/nodes-ring4.json"));
  tree.overlay(file, text);
  SiteRequest request = {"config/fuzz-profile.json", "config/fuzz-nodes.json", "config/fuzz-site.json"};
  if (std::string(file) == "config/fuzz-site.json") request.profile = "config/cluster-tp4.json";
  const Site site = load_site(tree, request);
  const Findings findings = diagnose(site, nullptr);
  for (const Finding& finding : findings) SPARK_CHECK(find_rule(finding.rule) != nullptr);
  SPARK_CHECK(!findings_text(findings).empty());
  findings_json(findings).dump(-1, ' ', false, Json::error_handler_t::strict);
  values_text(resolved_values(site), true);
  if (!site.faults.empty()) return;
  for (const Node& node : site.nodes.nodes) {
    try {
      const RankLaunch launch = plan_launch(site, node);
      SPARK_CHECK(launch_shell(launch) == launch_shell(plan_launch(site, node)));
      SPARK_CHECK(launch_systemd(launch).find('\r') == std::string::npos);
      launch_json(launch).dump();
    } catch (const Error&) {
    }
  }
}

void whole_profile(const std::string& text) {
  whole_site("config/fuzz-profile.json", text);
}
void whole_node_map(const std::string& text) {
  whole_site("config/fuzz-nodes.json", text);
}
void whole_site_file(const std::string& text) {
  whole_site("config/fuzz-site.json", text);
}

Json document_of(const std::string& text) {
  return parse_json(text, "fuzz", {.max_depth = 32, .max_bytes = size_t{1} << 20, .max_members = 4096});
}

// Each fault says something.
template <auto Read>
void load(const std::string& text) {
  const Json document = document_of(text);
  Faults faults;
  Read(document, faults);
  for (const Fault& fault : faults) SPARK_CHECK(!fault.what.empty());
}

void server_arguments(const std::string& text) {
  ClusterProfile profile;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    profile.serve_args.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  Faults faults;
  read_engine_settings(profile, faults);
  find_secrets("fuzz", text);
  parse_series(text);
}

void plan_of_profile(const std::string& text) {
  static const model::ModelConfig kModel = [] {  // few experts: their tensors are most of the time
    Json config = document_of(repository().read("config/models/deepseek-v4.1-flash.json"));
    config["text_config"]["n_routed_experts"] = 8;
    config["text_config"]["dspark_n_routed_experts"] = 8;
    return model::read_model_config(config, "model");
  }();
  Repository tree = repository();
  tree.overlay("config/fuzz-profile.json", text);
  const Site site =
      load_site(tree, {.profile = "config/fuzz-profile.json", .nodes = "config/nodes.example.json"});
  throw_if_any_fault(site);
  Faults faults;
  const PlanRequest request = plan_request(site, kModel, faults);
  throw_if_any(faults, "plan");
  const Plan plan = make_plan(request);
  SPARK_CHECK(!plan_text(plan).empty());
  plan_json(plan).dump();
}

void cables(const std::string& text) {
  Faults faults;
  const NodeMap map = read_node_map(document_of(text), faults);
  throw_if_any(faults, "fuzz");
  SPARK_CHECK(read_node_map(document_of(node_map_text(map)), faults).nodes.size() == map.nodes.size());
  const FabricLayout layout = fabric_layout(map);
  SPARK_CHECK(layout_svg(layout).find("</svg>") != std::string::npos);
  layout_text(layout, map);
  layout_json(layout, map).dump();
  for (const NetplanFile& file : netplan_files(map)) SPARK_CHECK(!file.revert.empty());
  netplan_commands(map, "netplan");
}

void recipes(const std::string& text) {
  Repository tree = repository();
  tree.overlay("config/fuzz-tuning.json", text);
  const TuningCatalogue catalogue = load_catalogue(tree, "config/fuzz-tuning.json");
  for (const TuningRecipe& recipe : catalogue.recipes)
    resolve_recipe(tree, "config/fuzz-tuning.json", recipe.name);
}

void boot_log_policy(const std::string& text) {
  Faults faults;
  const BootLogPolicy policy = read_boot_log_policy(document_of(text), faults);
  throw_if_any(faults, "fuzz");
  findings_text(judge_boot_log(policy, text, "fuzz"));
}

void boot_log(const std::string& text) {
  Faults faults;
  static const BootLogPolicy kPolicy =
      read_boot_log_policy(document_of(repository().read(kBootLogPolicy)), faults);
  findings_json(judge_boot_log(kPolicy, text, "fuzz")).dump();
}

void neighbours(const std::string& text) {
  Faults faults;
  read_port_neighbours(text, "fuzz", faults);
  ImportRequest request{.ssh_user = "spark"};
  for (const char* node : {"node1", "node2", "node3"}) request.reports.push_back({node, "", text});
  import_neighbours(request);
}

// Any bytes give facts and faults, and the facts can be printed and judged.
void probe_answer(const std::string& text) {
  Faults faults;
  const ProbeDump dump = parse_dump(text, faults);
  facts_json(read_facts(dump, faults)).dump();
  Faults again;
  const ProbeDump second = parse_dump(format_dump(dump), again);
  SPARK_CHECK(!dump.complete || (again.empty() && second.files == dump.files));
  static const Site kSite =
      load_site(repository(), {.profile = "config/cluster-64k.json", .nodes = "config/nodes.example.json"});
  std::vector<NodeAnswer> answers;
  for (const Node& node : kSite.nodes.nodes) answers.push_back(read_answer(node.name, text));
  for (const Finding& finding : diagnose_live(kSite, answers))
    SPARK_CHECK(find_rule(finding.rule) != nullptr);
  fragmentation_commands(answers);
}

// A folder of this process's own, for what is read from fixed places.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/spark-fuzz-XXXXXX";
    SPARK_CHECK(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string put(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    FILE* file = std::fopen(path.c_str(), "w");
    SPARK_CHECK(file != nullptr);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
    return path_;
  }

 private:
  std::string path_;
};

void lab_state(const std::string& text) {
  static const Folder kFolder;
  const auto state = read_lab_state(kFolder.put(kLabStateFile, text));
  SPARK_CHECK(state.has_value());
  for (const LabNode& node : state->plan.nodes) {
    try {
      living_node(*state, node.name);
    } catch (const Error&) {
    }
  }
}

void recovery_state(const std::string& text) {
  static const Folder kFolder;
  const Host host(kFolder.put(kRecoveryState, text));
  plan_text(plan_revert(host));
}

void journal(const std::string& text) {
  static const Folder kFolder;
  const RunState run = replay(read_journal(kFolder.put("run.jsonl", text) + "/run.jsonl"));
  SPARK_CHECK(!explain(run).empty());
  if (run.ended) return;
  for (const RecoveryAim aim : {RecoveryAim::kRestoreService, RecoveryAim::kRestoreNames}) {
    plan_recovery(run, aim);
    plan_undo(run, aim);
  }
}

void guard_texts(const std::string& text) {
  GuardOptions options;
  adopt_previous(options, text, 4711, "boot");
  parse_switch(text);
  value_of(text, "state");
  meminfo_kib(text, "MemAvailable");
  container_state(text);
  cgroup_v2_path(text);
  cgroup_v1_path(text, "memory");
  cgroup_v2_mount(text);
  cgroup_v1_mount(text, "memory");
  full_pressure(text);
  is_driver_out_of_memory(text);
  std::vector<std::string> words = {"spark-guard"};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const char* const environment[] = {words.back().c_str(), nullptr};
  read_guard_command(static_cast<int>(arguments.size()), arguments.data(), environment);
}

void benchmark_report(const std::string& text) {
  const Json report = document_of(text);
  read_report_shape(report);
  SPARK_CHECK(!bench::report_table(report, "fuzz").empty());
}

void model_config(const std::string& text) {
  model::read_model_config(document_of(text), "fuzz");
}

void marked_stream(const std::string& text) {
  const MarkedText marked = split_marked(text, "n0nce");
  SPARK_CHECK(marked.before.size() + marked.text.size() <= text.size());
}

void tool_text(const std::string& text) {
  const text::ChatTemplateParts parts = text::read_tool_text(text, "fuzz");
  SPARK_CHECK(text::read_tool_text(text, "fuzz").before_schemas == parts.before_schemas);
}

struct Loader {
  char letter;
  void (*run)(const std::string&);
};

// tests/fuzz/loaders_seeds writes seeds for the same letters.
constexpr Loader kLoaders[] = {
    {'0', load<read_node_map>},
    {'1', load<read_profile>},
    {'2', load<read_kernel_policy>},
    {'3', load<read_upstream_lock>},
    {'4', load<read_source_manifest>},
    {'5', load<read_baseline_manifest>},
    {'6', load<read_tuning_catalogue>},
    {'7', server_arguments},
    {'8', whole_profile},
    {'9', whole_node_map},
    {'a', boot_log_policy},
    {'b', boot_log},
    {'c', neighbours},
    {'d', probe_answer},
    {'e', lab_state},
    {'f', recovery_state},
    {'g', guard_texts},
    {'h', benchmark_report},
    {'i', model_config},
    {'j', marked_stream},
    {'k', plan_of_profile},
    {'l', cables},
    {'m', recipes},
    {'n', journal},
    {'o', tool_text},
    {'s', whole_site_file},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  for (const Loader& loader : kLoaders) {
    if (loader.letter != static_cast<char>(data[0])) continue;
    try {
      loader.run(std::string(reinterpret_cast<const char*>(data + 1), size - 1));
    } catch (const Error& error) {
      SPARK_CHECK(error.what()[0] != '\0');
    }
  }
  return 0;
}

// Three of four mutations keep the text JSON, and the letter.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (size < 2 || seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string changed = spark::fuzz::mutate_json(text, seed);
  if (changed == text || changed.size() + 1 > max_size) {
    return 1 + LLVMFuzzerMutate(data + 1, size - 1, max_size - 1);
  }
  std::copy(changed.begin(), changed.end(), data + 1);
  return changed.size() + 1;
}
