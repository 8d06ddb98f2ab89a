#include "ops/tuning/topology.h"

#include "ops/site/arguments.h"
#include "ops/site/node_environment.h"
#include "ops/site/ring_policy.h"
#include "ops/site/text_forms.h"
#include "ops/tuning/derived_profile.h"

namespace spark::ops {
namespace {

constexpr const char* kProbeScript = "host/collective-probe.py";

void drop_one_shot(Json& environment) {
  std::vector<std::string> gone;
  for (auto it = environment.begin(); it != environment.end(); ++it) {
    const std::string& name = it.key();
    if (name.starts_with("B12X_ROCE_") || name.starts_with("SPARKNET_ROCE_") ||
        name.starts_with("VLLM_ROCE_ALL")) {
      gone.push_back(name);
    }
  }
  for (const std::string& name : gone) environment.erase(name);
}

void make_ring(Json& document) {
  document["fabric"]["transport"] = "nccl-ring";
  document["fabric"].erase("mesh_paths");
  Json& environment = document["environment"];
  drop_one_shot(environment);
  for (const RequiredVariable& variable : ring_policy()) environment[variable.name] = variable.value;
  environment["VLLM_ENABLE_ROCE_ALLREDUCE"] = ring_roce_allreduce(*find_transport("nccl-ring"));
  environment["NCCL_MIN_NCHANNELS"] = "1";
  environment["NCCL_MAX_NCHANNELS"] = "1";
  add_switch(document, "--disable-custom-all-reduce");
}

void resize(Json& document, const ClusterProfile& profile, int64_t count) {
  const std::string size = std::to_string(count);
  set_argument(document, "--tensor-parallel-size", size);
  set_argument(document, "--nnodes", size);
  const auto text = ServerArguments(profile.serve_args).value("--speculative-config");
  if (!text) return;
  Json speculative = parse_json(*text, "--speculative-config");
  if (!speculative.is_object() || speculative.empty()) return;
  speculative["draft_tensor_parallel_size"] = count;
  set_argument(document, "--speculative-config", speculative.dump());
}

}  // namespace

void create_topology(const Repository& repository, const std::string& base, const std::string& nodes_config,
                     const std::string& output) {
  const NodeMap map = load_node_map(repository, nodes_config);
  const BaseProfile source = load_base(repository, base);
  Json document = source.document;
  const auto count = static_cast<int64_t>(map.nodes.size());
  retarget(document, map, nodes_config);
  resize(document, source.profile, count);
  if (count == 4) make_ring(document);
  write_experiment(repository, output, document, map);
}

std::string probe_command(const Site& site, const Node& node, int64_t port) {
  if (port < 1 || port > 65535)
    throw Error(std::to_string(port) + " is not a port", "--master-port", "use 1 to 65535");
  if (port == site.profile.distributed.master_port || port == site.engine.port.value_or(0)) {
    throw Error(std::to_string(port) + " belongs to the service", "--master-port",
                "use another, such as 29999");
  }
  if (site.profile.engine_kind != EngineKind::kVllm) {
    throw Error("is a profile of the native engine", site.request.profile,
                "the probe runs in the serving image; name a vLLM profile");
  }
  std::vector<std::string> words = {"docker",
                                    "run",
                                    "--rm",
                                    "--name",
                                    "spark-collective-probe",
                                    "--network=host",
                                    "--gpus=all",
                                    "--memory=12g",
                                    "--memory-swap=12g",
                                    "--device=/dev/infiniband:/dev/infiniband:rwm",
                                    "--cap-add=IPC_LOCK",
                                    "--ulimit=memlock=-1:-1",
                                    "--shm-size=256m",
                                    "--entrypoint",
                                    "/usr/bin/timeout"};
  auto environment = node_environment(site.profile, site.nodes, node);
  environment["NCCL_DEBUG"] = {"INFO", "probe"};
  environment["NCCL_DEBUG_SUBSYS"] = {"INIT,GRAPH,NET", "probe"};
  for (const auto& [name, variable] : environment) {
    words.insert(words.end(), {"--env", name + "=" + variable.value});
  }
  const std::string script =
      expand_places(site.profile.deployment.path, site.profile.host.home) + "/" + kProbeScript;
  words.insert(
      words.end(),
      {"--volume", script + ":/probe.py:ro", site.profile.container.image, "--signal=TERM",
       "--kill-after=10s", "600s", "python3", "/probe.py", "--rank", std::to_string(node.rank),
       "--world-size", std::to_string(site.nodes.nodes.size()), "--transport", site.profile.transport_name,
       "--master-addr", site.profile.distributed.master_addr, "--master-port", std::to_string(port)});
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

}  // namespace spark::ops
