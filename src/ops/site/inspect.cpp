#include "ops/site/inspect.h"

#include <algorithm>
#include <map>

#include "common/printable.h"
#include "common/table.h"
#include "common/url_secrets.h"
#include "ops/site/node_environment.h"
#include "ops/site/settings.h"

namespace spark::ops {
namespace {

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class Collector {
 public:
  explicit Collector(const Site& site) : site_(site) {}

  void add(const std::string& path, const std::string& text, const std::string& origin_path) {
    const Origin origin = site_.origin_of(origin_path);
    values.push_back({path, without_url_secrets(text), origin.file, origin.note, meaning_of(path)});
  }

  // Objects are walked; everything else is one value.
  void walk(const Json& value, const std::string& path) {
    if (value.is_object()) {
      for (auto it = value.begin(); it != value.end(); ++it) walk(*it, path + "." + it.key());
    } else {
      add(path, value_text(value), path);
    }
  }

  void section(const char* key) {
    if (site_.resolved.contains(key)) walk(site_.resolved[key], key);
  }

  // Options and mounts are known by name, so that an inserted one does not shift the others.
  void container() {
    const auto found = site_.resolved.find("container");
    if (found == site_.resolved.end() || !found->is_object()) return;
    std::map<std::string, int> seen;
    for (auto it = found->begin(); it != found->end(); ++it) {
      const std::string path = "container." + it.key();
      if (it.key() == "docker_run_args" && it->is_array()) {
        for (const Json& item : *it) {
          const std::string text = value_text(item);
          const std::string name = text.substr(0, text.find('='));
          const int count = ++seen[name];
          const std::string key = path + "." + name + (count == 1 ? "" : "#" + std::to_string(count));
          const size_t equals = text.find('=');
          values.push_back({key,
                            equals == std::string::npos ? "given" : text.substr(equals + 1),
                            site_.origin_of(path).file,
                            {},
                            meaning_of(path)});
        }
      } else if (it.key() == "mounts") {
        for (const Mount& mount : site_.profile.container.mounts) {
          values.push_back({path + "." + mount.destination,
                            mount.source + " " + mount.mode,
                            site_.origin_of(path).file,
                            {},
                            meaning_of(path)});
        }
      } else {
        walk(*it, path);
      }
    }
  }

  void arguments() {
    const ServerArguments given(site_.profile.serve_args);
    for (const ServerArgument& argument : given.all()) {
      const std::string path = "serve_args." + (argument.name.empty() ? "MODEL" : argument.name);
      add(path, argument.value.value_or("given"), path);
    }
  }

  void environment(const Node* node) {
    if (node == nullptr || site_.profile.transport == nullptr) {
      for (const auto& [name, value] : site_.profile.environment)
        add("environment." + name, value, "environment." + name);
      return;
    }
    for (const auto& [name, variable] : node_environment(site_.profile, site_.nodes, *node)) {
      const std::string path = "environment." + name;
      add(path, variable.value, path);
      if (variable.origin == "profile") continue;
      const bool from_nodes = variable.origin.rfind("nodes[", 0) == 0;
      values.back().file = from_nodes ? site_.nodes_file : site_.origin_of(variable.origin).file;
      values.back().note = variable.origin;
    }
  }

  std::vector<ResolvedValue> values;

 private:
  const Site& site_;
};

// The object that a value holds as text, if it holds one.
Json object_in(const std::string& text) {
  if (text.empty() || text[0] != '{') return {};
  Json value = Json::parse(text, nullptr, false);
  return value.is_object() ? value : Json();
}

std::string shown(const std::optional<std::string>& text) {
  return text ? *text : "(absent)";
}

}  // namespace

std::vector<ResolvedValue> resolved_values(const Site& site, const Node* node) {
  Collector collector(site);
  for (const char* key : {"promoted_baseline", "benchmark_reference", "nodes_config", "upstreams_config",
                          "kernel_backend", "fabric"}) {
    collector.section(key);
  }
  collector.container();
  collector.section("host");
  if (site.profile.engine_kind == EngineKind::kNative) {
    collector.add("engine.service", site.profile.native.service, "engine.service");
    collector.add("engine.program", site.profile.native.program, "engine.program");
    collector.add("engine.memory_max_gib", std::to_string(site.profile.native.memory_max_gib),
                  "engine.memory_max_gib");
  }
  collector.arguments();
  collector.environment(node);
  for (const char* key : {"distributed", "deployment", "tuning_origin"}) collector.section(key);
  return std::move(collector.values);
}

namespace {

// Two values of one path; of JSON objects only the members that differ.
void add_difference(const ResolvedValue& left, const ResolvedValue& right,
                    std::vector<ValueDifference>& out) {
  if (left.text == right.text) return;
  const Json a = object_in(left.text);
  const Json b = object_in(right.text);
  if (a.is_null() || b.is_null()) {
    out.push_back({left.path, left.text, right.text, left.meaning});
    return;
  }
  for (auto it = a.begin(); it != a.end(); ++it) {
    const auto other = b.find(it.key());
    if (other != b.end() && *other == *it) continue;
    out.push_back({left.path + "." + it.key(), value_text(*it),
                   other == b.end() ? std::nullopt : std::optional(value_text(*other)), left.meaning});
  }
  for (auto it = b.begin(); it != b.end(); ++it) {
    if (!a.contains(it.key())) {
      out.push_back({left.path + "." + it.key(), std::nullopt, value_text(*it), left.meaning});
    }
  }
}

}  // namespace

std::vector<ValueDifference> difference(const Site& left, const Site& right) {
  const std::vector<ResolvedValue> left_values = resolved_values(left);
  const std::vector<ResolvedValue> right_values = resolved_values(right);
  std::map<std::string, const ResolvedValue*> right_by_path;
  for (const ResolvedValue& value : right_values) right_by_path[value.path] = &value;
  std::vector<ValueDifference> differences;
  for (const ResolvedValue& value : left_values) {
    const auto other = right_by_path.find(value.path);
    if (other == right_by_path.end()) {
      differences.push_back({value.path, value.text, std::nullopt, value.meaning});
      continue;
    }
    add_difference(value, *other->second, differences);
    right_by_path.erase(other);
  }
  for (const ResolvedValue& value : right_values) {
    if (right_by_path.count(value.path) != 0) {
      differences.push_back({value.path, std::nullopt, value.text, value.meaning});
    }
  }
  return differences;
}

std::string values_text(const std::vector<ResolvedValue>& values, bool with_origin) {
  std::string text;
  for (const ResolvedValue& value : values) {
    text += one_line(value.path + " = " + value.text);
    if (with_origin) text += "  # " + value.file + (value.note.empty() ? "" : ": " + value.note);
    text += "\n";
  }
  return text;
}

Json values_json(const std::vector<ResolvedValue>& values) {
  Json list = Json::array();
  for (const ResolvedValue& value : values) {
    list.push_back({{"path", value.path},
                    {"value", value.text},
                    {"file", value.file},
                    {"follows_from", value.note},
                    {"meaning", value.meaning}});
  }
  return list;
}

std::string difference_text(const std::vector<ValueDifference>& differences, const std::string& left,
                            const std::string& right) {
  if (differences.empty()) return "no difference between " + left + " and " + right + "\n";
  Table table({{"setting"}, {left}, {right}, {"meaning"}});
  for (const ValueDifference& item : differences) {
    table.add({item.path, shown(item.left), shown(item.right), item.meaning});
  }
  return table.text();
}

Json difference_json(const std::vector<ValueDifference>& differences) {
  Json list = Json::array();
  for (const ValueDifference& item : differences) {
    list.push_back({{"path", item.path},
                    {"left", item.left ? Json(*item.left) : Json()},
                    {"right", item.right ? Json(*item.right) : Json()},
                    {"meaning", item.meaning}});
  }
  return list;
}

std::string settings_markdown() {
  const auto kind = [](const Setting& row) -> std::string {
    switch (row.kind) {
      case SettingKind::kInteger:
        return "integer";
      case SettingKind::kNumber:
        return "number";
      case SettingKind::kText:
        return row.words[0] == '\0' ? "text" : "one of " + std::string(row.words);
      case SettingKind::kList:
        return "list of texts";
      case SettingKind::kObject:
        return "object";
      case SettingKind::kPathBelow:
        return "folder";
      default:
        return "true or false";
    }
  };
  std::string text =
      "# Engine settings\n\n"
      "<!-- Generated by `spark config settings --markdown` from the table that renders them. Do not edit. "
      "-->\n\n"
      "Keys below `engine` in a profile, and the server argument or variable that carries each. A setting "
      "that is left\n"
      "out is not passed, and the server uses its own default. A carrier whose setting is in italics has no "
      "key of its\n"
      "own: its value follows from others.\n";
  const auto section = [&](const std::string& title, const std::vector<std::span<const Setting>>& groups) {
    text += "\n## " + title + "\n\n";
    Table table({{"Setting"}, {"Value"}, {"Carried by"}, {"Meaning"}});
    for (const auto& rows : groups) {
      for (const Setting& row : rows) {
        const std::string key =
            row.key[0] == '@' ? "*" + std::string(row.key + 1) + "*" : "`" + std::string(row.key) + "`";
        const std::string carrier = row.name == nullptr   ? ""
                                    : row.name[0] == '\0' ? "first argument"
                                                          : "`" + std::string(row.name) + "`";
        const std::string other =
            row.kind == SettingKind::kSwitchPair ? ", `" + negative_name(row.name) + "`" : std::string();
        table.add({key, row.key[0] == '@' ? "derived" : kind(row), carrier + other, row.meaning});
      }
    }
    text += table.markdown();
  };
  section("vLLM", {vllm_ingredients(), vllm_arguments(), vllm_variables()});
  section("Native engine", {native_ingredients(), native_arguments()});
  text += "\n## What a site file may set\n\n";
  for (const std::string& path : site_paths()) text += "- `" + path + "`\n";
  return text;
}

}  // namespace spark::ops
