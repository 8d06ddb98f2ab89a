// Rules about the cluster as a whole: fabric, head, guard, deployment, ports, reference run.
#include "common/url_secrets.h"
#include "ops/doctor/rule.h"
#include "ops/fabric/validate.h"
#include "ops/site/text_forms.h"

namespace spark::ops::rule {
namespace {

constexpr int64_t kSteadyFloorGib = 3;
constexpr int64_t kStartupFloorGib = 5;
// The reference site's ephemeral range starts here; Linux's default starts at 32768.
constexpr int64_t kFirstDoubtfulPort = 10000;

std::string entry(size_t index, const char* field) {
  return "nodes[" + std::to_string(index) + "]." + field;
}

std::string quoted(const std::string& text) {
  return "\"" + text + "\"";
}

struct Url {
  std::string host;
  int64_t port = 0;
};

std::optional<Url> parse_http_url(const std::string& text) {
  const bool secure = text.rfind("https://", 0) == 0;
  if (!secure && text.rfind("http://", 0) != 0) return {};
  const size_t begin = secure ? 8 : 7;
  const std::string authority = text.substr(begin, text.find_first_of("/?#", begin) - begin);
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && authority.find(']', colon) == std::string::npos;
  Url url = {authority.substr(0, has_port ? colon : authority.size()), secure ? 443 : 80};
  if (has_port) {
    const auto port = whole_number(authority.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535) return {};
    url.port = *port;
  }
  return url.host.empty() ? std::nullopt : std::optional(url);
}

std::string shape_text(const ReportShape& shape) {
  return (shape.nodes ? std::to_string(*shape.nodes) : "?") + " nodes, " + shape.transport.value_or("?") +
         ", " + shape.kernel_backend.value_or("?");
}

// Of a report that does not record all of its shape: what is missing, in words.
std::string missing_text(const ReportShape& shape) {
  std::vector<std::string> missing;
  if (!shape.nodes) missing.emplace_back("node count");
  if (!shape.transport) missing.emplace_back("transport");
  if (!shape.kernel_backend) missing.emplace_back("kernel family");
  std::string text;
  for (size_t i = 0; i < missing.size(); ++i)
    text += (i == 0 ? "" : i + 1 == missing.size() ? " and " : ", ") + missing[i];
  return text;
}

// The command whose report says what it measured: one that is told an address only does not know.
std::string bench_advice(const RuleContext& context) {
  return "measure the service of this profile: spark --cluster-config " + context.site.request.profile +
         " bench --base-url http://HEAD:PORT";
}

}  // namespace

void fabric(RuleContext& context) {
  context.adopt(validate_fabric(context.profile, context.nodes));
}

void head(RuleContext& context) {
  const auto& nodes = context.nodes.nodes;
  std::vector<size_t> heads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].head) heads.push_back(i);
  }
  const std::string& file = context.site.nodes_file;
  if (heads.size() != 1) {
    std::string names;
    for (const size_t i : heads) names += (names.empty() ? "" : ", ") + nodes[i].name;
    context.error_in(
        file, "nodes", heads.empty() ? "no node is the head" : "several nodes are the head: " + names,
        "exactly one node with head: true, on rank 0", "set head to true on rank 0 and to false elsewhere");
    return;
  }
  const Node& node = nodes[heads[0]];
  if (node.rank != 0) {
    context.error_in(file, entry(heads[0], "head"),
                     "the head " + node.name + " has rank " + std::to_string(node.rank), "the head on rank 0",
                     "give the head rank 0, or make rank 0 the head");
  }
  if (context.profile.distributed.master_addr != node.management_ip) {
    context.error("distributed.master_addr",
                  "is " + quoted(context.profile.distributed.master_addr) + ", the head's management_ip is " +
                      quoted(node.management_ip),
                  "the head's management_ip", "remove distributed.master_addr: it follows from the node map");
  }
}

void guard(RuleContext& context) {
  const HostSpec& host = context.profile.host;
  if (host.startup_memguard_gib > host.memguard_gib) return;
  context.error("host.startup_memguard_gib",
                "is " + std::to_string(host.startup_memguard_gib) + ", the steady threshold is " +
                    std::to_string(host.memguard_gib),
                "a startup threshold above the steady one",
                "set host.startup_memguard_gib to " + std::to_string(host.memguard_gib + 2));
}

void guard_floor(RuleContext& context) {
  const HostSpec& host = context.profile.host;
  const auto check = [&](const char* where, int64_t value, int64_t floor) {
    if (value >= floor) return;
    context.error(where, "is " + std::to_string(value) + " GiB", "at least " + std::to_string(floor) + " GiB",
                  std::string("set ") + where + " to " + std::to_string(floor) +
                      " and give the memory back elsewhere: fewer KV bytes, fewer sequences");
  };
  check("host.memguard_gib", host.memguard_gib, kSteadyFloorGib);
  check("host.startup_memguard_gib", host.startup_memguard_gib, kStartupFloorGib);
}

void deployment(RuleContext& context) {
  const std::string& url = context.profile.deployment.repository;
  if (url.find(".example.org") != std::string::npos) {  // nobody can own such a name (RFC 2606)
    context.warn("deployment.repository", "is the example's address",
                 "the address that your nodes clone from",
                 "write your own repository's address into config/site.json");
  }
  if (without_url_secrets(url) == url) return;
  context.error("deployment.repository", "holds a password or a token", "an address without credentials",
                "remove them; keep credentials in Git's credential store on the nodes");
}

void ready_url(RuleContext& context) {
  const std::string& text = context.profile.deployment.ready_url;
  const auto url = parse_http_url(text);
  if (!url) {
    context.error("deployment.ready_url", "is " + quoted(without_url_secrets(text)),
                  "an http:// or https:// address", "write http://127.0.0.1:PORT/v1/models");
  } else if (context.site.engine.port && url->port != *context.site.engine.port) {
    context.error("deployment.ready_url",
                  "asks port " + std::to_string(url->port) + ", the server listens on " +
                      std::to_string(*context.site.engine.port),
                  "the server's port",
                  "make the port of deployment.ready_url " + std::to_string(*context.site.engine.port));
  }
}

void rendezvous_port(RuleContext& context) {
  const int64_t port = context.profile.distributed.master_port;
  if (port == context.site.engine.port) {
    context.error("distributed.master_port",
                  "is " + std::to_string(port) + ", which is also the port of the API", "a port of its own",
                  "set distributed.master_port to 9999");
  } else if (port >= kFirstDoubtfulPort) {
    context.warn("distributed.master_port", "is " + std::to_string(port),
                 "a port below the head's ephemeral range: an outgoing connection may hold it",
                 "set it to 9999, or raise the range: sysctl net.ipv4.ip_local_port_range");
  }
}

void candidate_launch(RuleContext& context) {
  if (!context.profile.tuning_origin || !context.profile.deployment.launch_enabled) return;
  context.warn("deployment.launch_enabled", "is true in a candidate made by a tuning recipe",
               "false until somebody decides to run it", "set deployment.launch_enabled to false");
}

void baseline(RuleContext& context) {
  if (!context.site.lock) return;
  const std::string& locked = context.site.lock->generated_from_baseline;
  if (locked == context.profile.promoted_baseline) return;
  context.error("promoted_baseline",
                "is " + quoted(context.profile.promoted_baseline) + ", " + context.profile.upstreams_config +
                    " says " + quoted(locked),
                "one baseline in profile and lock",
                "promote both in one commit, or name the lock of this profile");
}

void reference(RuleContext& context) {
  const ReferenceReport& report = context.site.reference;
  if (!report.named && context.profile.promoted_baseline.empty()) return;
  if (!report.exists) {
    if (report.named) {
      context.error("benchmark_reference", report.path + " does not exist or is outside the repository",
                    "a report of this profile's own shape inside the repository",
                    "name an existing report, or remove benchmark_reference");
    } else {
      context.warn("benchmark_reference", "is not set and " + report.path + " does not exist",
                   "a reference run, without which nobody can tell that another build is slower",
                   bench_advice(context) + "; store its bench.json as " + report.path);
    }
    return;
  }
  if (!report.shape) {
    context.error_in(report.path, "", "is not a benchmark report", "a JSON object with identity and suites",
                     "restore the file from Git");
    return;
  }
  const ReportShape own = {static_cast<int64_t>(context.nodes.nodes.size()), context.profile.transport_name,
                           context.profile.kernel_backend};
  const ReportShape& shape = *report.shape;
  const bool differs = (shape.nodes && shape.nodes != own.nodes) ||
                       (shape.transport && shape.transport != own.transport) ||
                       (shape.kernel_backend && shape.kernel_backend != own.kernel_backend);
  if (differs) {
    const std::string evidence = report.path + " describes " + shape_text(shape);
    const std::string expected = "this profile's shape: " + shape_text(own);
    if (report.named) {
      context.error("benchmark_reference", evidence, expected,
                    "name a report of this shape; " + bench_advice(context));
    } else {
      context.warn("benchmark_reference", "is not set; the default " + evidence, expected,
                   "name a report of this shape in benchmark_reference of a profile of your own that "
                   "extends this one");
    }
  } else if (!shape.whole()) {
    context.warn("benchmark_reference", report.path + " does not record its " + missing_text(shape),
                 "a report that records its shape", bench_advice(context));
  }
}

}  // namespace spark::ops::rule
