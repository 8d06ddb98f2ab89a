// What a profile resolves to, value by value, with where each value was written; and how two profiles differ.
//
//   for (const ResolvedValue& v : resolved_values(site)) print(v.path, v.text, v.file, v.note);
//   for (const ValueDifference& d : difference(site_a, site_b)) print(d.path, d.left, d.right, d.meaning);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/site/site.h"

namespace spark::ops {

struct ResolvedValue {
  std::string path;  // "environment.NCCL_ALGO", "serve_args.--port", "container.mounts./models", "host.home"
  std::string text;
  std::string file;  // where it was written
  std::string note;  // the setting it follows from, when that is another; or what of the node map
  std::string meaning;
};

// Sorted by subject: profile, container, host, server arguments in order, environment by name, deployment.
// With a node also that rank's own values.
std::vector<ResolvedValue> resolved_values(const Site& site, const Node* node = nullptr);

struct ValueDifference {
  std::string path;
  std::optional<std::string> left;  // nullopt: only the other side has it
  std::optional<std::string> right;
  std::string meaning;
};

std::vector<ValueDifference> difference(const Site& left, const Site& right);

std::string values_text(const std::vector<ResolvedValue>& values, bool with_origin);
Json values_json(const std::vector<ResolvedValue>& values);
std::string difference_text(const std::vector<ValueDifference>& differences, const std::string& left,
                            const std::string& right);
Json difference_json(const std::vector<ValueDifference>& differences);

// docs/settings.md: every typed engine setting with its carrier, and what a site file may set.
std::string settings_markdown();

}  // namespace spark::ops
