// Every loader of the site, and the whole way from a profile and node map to findings and launches. The first byte
// chooses: 0-6 one loader each, 7 a server's argument list (one word per line), 8 a profile and 9 a node map inside an
// otherwise sound site, anything else a site file. Faults are expected; what must not happen is a crash, a hang, a
// finding without a rule, or a launch that changes between two runs.
#include <cstdint>
#include <string>

#include "ops/doctor/doctor.h"
#include "ops/doctor/rule.h"
#include "ops/launch/render.h"
#include "ops/site/baseline_manifest.h"
#include "ops/site/inspect.h"
#include "ops/site/tuning_catalogue.h"

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

template <typename Read>
void load(const std::string& text, Read read) {
  const Json document = parse_json(text, "fuzz", {.max_depth = 32, .max_bytes = size_t{1} << 20});
  Faults faults;
  read(document, faults);
  for (const Fault& fault : faults) SPARK_CHECK(!fault.what.empty());
}

void run(uint8_t choice, const std::string& text) {
  switch (choice) {
    case '0': return load(text, read_node_map);
    case '1': return load(text, read_profile);
    case '2': return load(text, read_kernel_policy);
    case '3': return load(text, read_upstream_lock);
    case '4': return load(text, read_source_manifest);
    case '5': return load(text, read_baseline_manifest);
    case '6': return load(text, read_tuning_catalogue);
    case '7': {
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
      return;
    }
    case '8': return whole_site("config/fuzz-profile.json", text);
    case '9': return whole_site("config/fuzz-nodes.json", text);
    default: return whole_site("config/fuzz-site.json", text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    run(data[0], std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  } catch (const Error&) {
  }
  return 0;
}
