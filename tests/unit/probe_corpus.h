// Recorded facts for tests: a healthy node (tests/data/probe/spark-64k.dump) for every node of a site, and
// edits that make it faulty. The container is built from the golden launch of tests/data/site/golden, not
// from the code that judges it.
//
//   ProbeCorpus corpus("cluster-64k");
//   corpus.apply("on node2");
//   corpus.apply("file /proc/sys/vm/nr_hugepages | 512");
//   Findings findings = corpus.diagnose();
//
// Edits, one per line; they count for all nodes until "on NODE", and again after "on all":
//
//   file PATH | content            nofile PATH                 \n and \t are line end and tab
//   change PATH | old => new       in the content of a file
//   output NAME | text             of a command, which then succeeds
//   alter NAME | old => new        in the output of a command, everywhere in it
//   fail NAME STATUS | stderr      the command fails; 127: not installed, 124: too slow
//   lose NAME                      the question was not answered at all
//   unreachable | why              failed | why              the node does not answer
//   skew SECONDS                   of the node's clock
//   set /pointer JSON              of the profile; policy /pointer JSON of the kernel policy
//   stopped                        nothing serves, and none is expected to
//   kernel-4k                      the fallback kernel runs; what belongs to the candidate stays prepared
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/hash.h"
#include "ops/doctor/live.h"
#include "ops/fabric/layout.h"
#include "ops/fabric/ports.h"
#include "ops/probe/dump.h"
#include "ops/site/site.h"

namespace spark::test {

inline std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = 0;
  for (const char c : line) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c, open = true;
    } else if (c == ' ' || c == '\n') {
      if (open) words.push_back(word);
      word.clear(), open = false;
    } else {
      word += c, open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

inline void replace_all(std::string& text, const std::string& old_text, const std::string& new_text) {
  for (size_t at = 0; (at = text.find(old_text, at)) != std::string::npos; at += new_text.size())
    text.replace(at, old_text.size(), new_text);
}

class ProbeCorpus {
 public:
  explicit ProbeCorpus(const std::string& profile)
      : profile_(profile),
        repository_(SPARK_SOURCE_DIR),
        template_(read_file(std::string(SPARK_TEST_DATA) + "/probe/spark-64k.dump")) {
    const bool ring = profile.find("tp4") != std::string::npos;
    put("config/under-test.json", read("tests/data/site/reference/" + profile + ".json"));
    put("config/nodes-under-test.json",
        read(std::string("tests/data/site/reference/nodes-") + (ring ? "ring4.json" : "triangle.json")));
    put("config/kernel-trial.json", read("config/kernel-trial.json"));
    options_.policy_files = {
        {"/etc/sysctl.d/95-spark-recovery.conf", sha256_hex("sysctl")},
        {"/etc/systemd/system/tailscaled.service.d/95-spark-recovery.conf", sha256_hex("tailscale")}};
    load();
    for (const ops::Node& node : site_.nodes.nodes) {
      Faults faults;
      dumps_[node.name] = ops::parse_dump(filled(node), faults);
      throw_if_any(faults, "tests/data/probe/spark-64k.dump");
    }
  }

  const ops::Site& site() const { return site_; }
  ops::ProbeDump& dump(const std::string& node) { return dumps_.at(node); }
  ops::LiveOptions& options() { return options_; }

  void apply(const std::string& line) {
    std::string rest = line;
    const std::string verb = word(rest);
    if (verb == "on") {
      node_ = rest == "all" ? std::string() : rest;
    } else if (verb == "set" || verb == "policy") {
      const std::string pointer = word(rest),
                        file = verb == "set" ? "config/under-test.json" : "config/kernel-trial.json";
      Json document = Json::parse(repository_.read(file));
      document[nlohmann::ordered_json::json_pointer(pointer)] = Json::parse(rest);
      put(file, document.dump());
      load();
    } else if (verb == "stopped") {
      stop();
    } else if (verb == "kernel-4k") {
      for (auto& [name, dump] : chosen()) boot_fallback(*dump);
    } else if (verb == "skew") {
      for (auto& [name, dump] : chosen()) skew_[name] = std::stod(rest);
    } else if (verb == "unreachable" || verb == "failed") {
      for (auto& [name, dump] : chosen())
        outcome_[name] = {verb == "failed" ? ops::ProbeOutcome::kFailed : ops::ProbeOutcome::kUnreachable,
                          after_bar(rest)};
    } else {
      for (auto& [name, dump] : chosen()) edit(*dump, verb, rest, line);
    }
  }

  std::vector<ops::NodeAnswer> answers() const {
    std::vector<ops::NodeAnswer> all;
    for (const auto& [name, dump] : dumps_) {
      if (const auto found = outcome_.find(name); found != outcome_.end()) {
        all.push_back({.node = name, .outcome = found->second.first, .problem = found->second.second});
        continue;
      }
      ops::NodeAnswer answer = ops::read_answer(name, ops::format_dump(dump));
      const auto skew = skew_.find(name);
      const double offset = skew == skew_.end() ? 0 : skew->second;
      answer.sent_s = 1795968000.2 - offset, answer.received_s = 1795968000.8 - offset;
      all.push_back(std::move(answer));
    }
    return all;
  }

  ops::Findings diagnose() const { return ops::diagnose_live(site_, answers(), options_); }

 private:
  static std::string word(std::string& line) {
    const size_t end = std::min(line.find(' '), line.size());
    std::string first = line.substr(0, end);
    line = line.substr(std::min(end + 1, line.size()));
    return first;
  }
  static std::string after_bar(const std::string& text) {
    const size_t bar = text.find("| ");
    std::string value = bar == std::string::npos ? std::string() : text.substr(bar + 2);
    replace_all(value, "\\n", "\n");
    replace_all(value, "\\t", "\t");
    return value;
  }
  std::string read(const std::string& path) const {
    return read_file(std::string(SPARK_SOURCE_DIR) + "/" + path);
  }
  void put(const std::string& path, const std::string& text) { repository_.overlay(path, text); }
  void load() {
    site_ = ops::load_site(
        repository_,
        {.profile = "config/under-test.json", .nodes = "config/nodes-under-test.json", .site_file = ""});
    if (!site_.nodes_loaded) ops::throw_if_any_fault(site_);
  }

  std::map<std::string, ops::ProbeDump*> chosen() {
    std::map<std::string, ops::ProbeDump*> some;
    for (auto& [name, dump] : dumps_) {
      if (node_.empty() || node_ == name) some[name] = &dump;
    }
    if (some.empty()) throw Error("is no node", node_);
    return some;
  }

  static void edit(ops::ProbeDump& dump, const std::string& verb, std::string rest, const std::string& line) {
    const std::string name = word(rest);
    const std::string value = after_bar(rest);
    if (verb == "file") {
      dump.files[name] = value;
    } else if (verb == "nofile") {
      if (dump.files.erase(name) == 0) throw Error("has no such file", line);
    } else if (verb == "output") {
      dump.commands[name] = {0, value, {}};
    } else if (verb == "fail") {
      dump.commands[name] = {std::stoi(rest), {}, value};
    } else if (verb == "lose") {
      dump.commands.erase(name);
    } else if (verb == "change" || verb == "alter") {
      std::string& text = verb == "change" ? dump.files.at(name) : dump.commands.at(name).output;
      const size_t arrow = value.find(" =>");
      const std::string old_text = value.substr(0, arrow);
      if (text.find(old_text) == std::string::npos) throw Error("finds nothing to change", line);
      replace_all(text, old_text, value.substr(std::min(arrow + 4, value.size())));
    } else {
      throw Error("is no edit", line);
    }
  }

  // What an idle node answers.
  void stop() {
    options_.expect_stopped = true;
    const std::string name = site_.profile.service_name();
    for (auto& [node, dump] : dumps_) {
      dump.commands["container"] = {1, {}, "Error response from daemon: No such container: " + name};
      dump.commands["container-image"] = {1, {}, "Error: No such image"};
      dump.commands["docker-containers"].output.clear();
      dump.commands["gpu-processes"].output.clear();
      dump.commands["memory-events"].output.clear();
      replace_all(dump.commands["listeners"].output, ":8000", ":8008");
      replace_all(dump.files["/proc/meminfo"], "MemAvailable:    9437184", "MemAvailable:  118489088");
      replace_all(dump.files["/proc/buddyinfo"], "4      3      8 ", "4      3    208 ");
    }
  }

  void boot_fallback(ops::ProbeDump& dump) const {
    dump.files["/proc/sys/kernel/osrelease"] = site_.policy->fallback;
    replace_all(dump.files["/proc/cmdline"], site_.policy->candidate, site_.policy->fallback);
    replace_all(dump.files["/proc/swaps"], "/swap-64k.img", "/swap.img");
    dump.files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always [madvise] never";
    dump.files["/proc/sys/vm/min_free_kbytes"] = "67584";
    dump.files["/sys/module/nvidia_uvm/srcversion"] = "0F1E2D3C4B5A69788796A5B";
    dump.files.erase("/sys/module/nvidia_uvm/parameters/uvm_pack_sysmem_leaf_tables");
    dump.commands["page-size"].output = "4096";
  }

  // ---- the placeholders of the template ----

  std::string filled(const ops::Node& node) const {
    const ops::FabricLayout layout = ops::fabric_layout(site_.nodes);
    std::string text = template_;
    Json links = Json::array(), neighbours = Json::array();
    links.push_back(link_json("lo", "127.0.0.1", 8, 65536));
    links.push_back(link_json("enP7s7", node.management_ip, 24, 1500));
    for (const ops::Cable& cable : layout.cables) {
      for (const ops::CablePath& path : cable.paths) {
        for (const bool at_a : {true, false}) {
          const ops::CableEnd &here = at_a ? cable.a : cable.b, &there = at_a ? cable.b : cable.a;
          const ops::StripeEnd &mine = at_a ? path.a : path.b, &theirs = at_a ? path.b : path.a;
          if (here.node != node.name) continue;
          links.push_back(link_json(mine.netdev, mine.address, 24, 9000));
          replace_all(text, "${gid:" + mine.device + "}", mine.gid);
          replace_all(text, "${linklocal:" + mine.device + "}",
                      "fe80:0000:0000:0000:0000:00ff:fe00:000" + std::to_string(node.rank));
          replace_all(
              text, "${route:" + mine.device + "}",
              Json::array({{{"dst", theirs.address}, {"dev", mine.netdev}, {"prefsrc", mine.address}}})
                  .dump());
          Json seen;
          seen[mine.netdev] = {{"chassis", {{there.node, {{"id", {{"type", "mac"}, {"value", "02:00"}}}}}}},
                               {"port", {{"id", {{"type", "ifname"}, {"value", theirs.netdev}}}}}};
          neighbours.push_back(seen);
        }
      }
    }
    std::string mounts, digests;
    for (const ops::Mount& mount : site_.profile.container.mounts)
      mounts +=
          (mounts.empty() ? "" : "\n|") + std::string(mount.mode == "rw" ? "erw " : "er ") + mount.source;
    for (const auto& [path, digest] : options_.policy_files)
      digests += (digests.empty() ? "" : "\n|") + digest + "  " + path;
    replace_all(text, "${name}", node.name);
    replace_all(text, "${number}", std::to_string(node.rank + 1));
    replace_all(text, "${addresses}", links.dump());
    replace_all(text, "${lldp}", Json({{"lldp", {{"interface", neighbours}}}}).dump());
    replace_all(text, "${mounts}", mounts);
    replace_all(text, "${policy-files}", digests);
    replace_all(text, "${image}", site_.profile.container.image);
    replace_all(text, "${service}", site_.profile.container.name);
    replace_all(text, "${image-inspect}", image_json().dump());
    replace_all(text, "${container-inspect}", container_json(node).dump());
    return text;
  }

  static Json link_json(const std::string& name, const std::string& address, int prefix, int mtu) {
    return {{"ifname", name},
            {"flags", {"BROADCAST", "UP", "LOWER_UP"}},
            {"mtu", mtu},
            {"operstate", "UP"},
            {"address", "02:00:00:00:00:01"},
            {"addr_info", Json::array({{{"family", "inet"}, {"local", address}, {"prefixlen", prefix}}})}};
  }

  Json image_json() const {
    Json labels = Json::object();
    for (const auto& [name, value] : site_.profile.container.expected_labels) labels[name] = value;
    return Json::array(
        {{{"Id", "sha256:6f1ed002ab5595859014ebf0951522d9aa5b2a1f1f1f1f1f1f1f1f1f1f1f1f1f"},
          {"Config",
           {{"Env", {"PATH=/usr/local/bin:/usr/bin:/bin", "NCCL_VERSION=2.30.7"}}, {"Labels", labels}}}}});
  }

  Json container_json(const ops::Node& node) const {
    const auto words =
        shell_words(read("tests/data/site/golden/" + profile_ + "." + node.name + ".sh.golden"));
    Json environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "NCCL_VERSION=2.30.7"}, binds = Json::array(),
         command = Json::array();
    const std::string& image = site_.profile.container.image;
    bool after_image = false;
    for (size_t i = 0; i < words.size(); ++i) {
      if (after_image)
        command.push_back(words[i]);
      else if (words[i] == "--env")
        environment.push_back(words[++i]);
      else if (words[i] == "--volume")
        binds.push_back(words[++i]);
      else
        after_image = words[i] == image;
    }
    return Json::array({{{"Id", "3f0c9e1d2b4a5968"},
                         {"Image", image_json()[0]["Id"]},
                         {"State", {{"Running", true}, {"ExitCode", 0}, {"OOMKilled", false}}},
                         {"Config", {{"Image", image}, {"Cmd", command}, {"Env", environment}}},
                         {"HostConfig",
                          {{"Binds", binds},
                           {"NetworkMode", "host"},
                           {"IpcMode", "host"},
                           {"Memory", int64_t{112} << 30},
                           {"RestartPolicy", {{"Name", "no"}}}}}}});
  }

  std::string profile_;
  ops::Repository repository_;
  std::string template_;
  ops::Site site_;
  ops::LiveOptions options_;
  std::string node_;
  std::map<std::string, ops::ProbeDump> dumps_;
  std::map<std::string, double> skew_;
  std::map<std::string, std::pair<ops::ProbeOutcome, std::string>> outcome_;
};

}  // namespace spark::test
