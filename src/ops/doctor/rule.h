// The rules of the doctor, offline and live: one table (rules_table.cpp, live_table.cpp) with everything that
// is said about a rule anywhere - in findings, in `spark doctor --rules`, in docs/doctor.md - and one pure
// function per rule.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ops/doctor/secrets.h"
#include "ops/site/finding.h"
#include "ops/site/site.h"

namespace spark::ops {

class RuleContext;
class LiveContext;
struct LiveNode;

// What must have been loaded for a rule to make sense; a rule without its needs is skipped, because the fault
// that prevents it is reported already.
enum RuleNeeds : unsigned {
  kAlways = 0,
  kNodes = 1,      // the node map
  kTransport = 2,  // a known transport
  kEngine = 4,     // engine settings without faults
  kVllmOnly = 8,
  kNativeOnly = 16,
  kSparkOnly = 32,  // live: the nodes are DGX Sparks (host.hardware)
  kPolicy = 64,     // live: the kernel policy has been read
  kOneSize = 128,   // profile and node map are for one number of nodes
};

struct Rule {
  const char* id;
  Severity severity;  // of its findings, unless `also_warns`
  bool also_warns;    // an error rule that has milder findings as well
  const char* title;
  const char* checks;   // what is compared with what
  const char* because;  // what goes wrong otherwise
  const char* fix;      // in general; a finding's fix is specific
  unsigned needs;
  void (*run)(
      RuleContext&);  // nullptr: its findings come from loading files, or from another rule's function
  // Live rules have one of these instead: called once, or once per node that answered.
  void (*cluster)(LiveContext&) = nullptr;
  void (*node)(LiveContext&, const LiveNode&) = nullptr;

  bool is_live() const { return cluster != nullptr || node != nullptr; }
};

std::span<const Rule> rules();  // offline, then live
std::span<const Rule> live_rules();
const Rule* find_rule(std::string_view id);

// What a rule sees and where it puts its findings.
class RuleContext {
 public:
  RuleContext(const Site& loaded, const SecretScan* secret_scan, Findings& findings)
      : site(loaded),
        profile(loaded.profile),
        nodes(loaded.nodes),
        secrets(secret_scan),
        findings_(findings) {}

  const Site& site;
  const ClusterProfile& profile;
  const NodeMap& nodes;
  const SecretScan* secrets;  // nullptr: not asked for

  void begin(const Rule& rule) { rule_ = &rule; }
  void error(std::string where, std::string evidence, std::string expected, std::string fix);
  void warn(std::string where, std::string evidence, std::string expected, std::string fix);
  // The same for a file other than the profile's.
  void error_in(std::string file, std::string where, std::string evidence, std::string expected,
                std::string fix);
  void warn_in(std::string file, std::string where, std::string evidence, std::string expected,
               std::string fix);
  void adopt(const Findings& findings);  // of another room, with their own rule ids

  bool is_vllm() const { return profile.engine_kind == EngineKind::kVllm; }
  bool set(const std::string& variable) const { return profile.environment.count(variable) != 0; }
  std::string variable(const std::string& name) const { return profile.environment_value(name); }
  const ServerArguments& arguments() const { return arguments_; }
  // Some value at or below this path of the profile could not be read.
  bool faulty(const std::string& path) const;

 private:
  void add(Severity severity, std::string file, std::string where, std::string evidence, std::string expected,
           std::string fix);

  const Rule* rule_ = nullptr;
  Findings& findings_;
  ServerArguments arguments_{profile.serve_args};
};

// The rules, by subject (rules_*.cpp).
namespace rule {
void fabric(RuleContext&);
void head(RuleContext&);
void sparknet_environment(RuleContext&);
void b12x_environment(RuleContext&);
void world_size(RuleContext&);
// How many nodes the whole profile is for, when the node map has another number; nullopt otherwise.
std::optional<int64_t> other_size(const Site& site);
void drafter(RuleContext&);
void ring(RuleContext&);
void gid_settings(RuleContext&);
void device_list(RuleContext&);
void interfaces(RuleContext&);
void kernel_backend(RuleContext&);
void kernel_sources(RuleContext&);
void activation_clamp(RuleContext&);
void reference(RuleContext&);
void baseline(RuleContext&);
void guard(RuleContext&);
void guard_floor(RuleContext&);
void deployment(RuleContext&);
void ready_url(RuleContext&);
void rendezvous_port(RuleContext&);
void candidate_launch(RuleContext&);
void pins(RuleContext&);
void source_files(RuleContext&);
void watch_list(RuleContext&);
void source_pairs(RuleContext&);
void b12x_ring_sources(RuleContext&);
void sparknet_sources(RuleContext&);
void fingerprints(RuleContext&);
void mesh(RuleContext&);
void artifacts(RuleContext&);
void tracked_secrets(RuleContext&);
void api_exposure(RuleContext&);
void spelling(RuleContext&);
void repeated_arguments(RuleContext&);
void unsafe_memory(RuleContext&);
void graph_size(RuleContext&);
void kernel_policy(RuleContext&);
void container_options(RuleContext&);
void container_mounts(RuleContext&);
void cache_folders(RuleContext&);
void native_unit(RuleContext&);
}  // namespace rule

}  // namespace spark::ops
