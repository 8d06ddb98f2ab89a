#include "config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>

#include "common/error.h"
#include "common/file.h"
#include "common/json.h"

namespace spark::app {
namespace {

constexpr const char* kModelKey = "model";
constexpr const char* kModelOption = "MODEL_DIR";

struct ConfigFile {
  CLI::App& app;
  const std::string& path;
  Faults faults = {};
  std::map<const CLI::Option*, std::string> seen = {};  // with the name that the file has for it

  void fault(const YAML::Node& at, const std::string& what, const std::string& hint = {}) {
    faults.push_back({path + ":" + std::to_string(at.Mark().line + 1), what, hint});
  }

  static bool is_for_command_line_only(const std::string& name) {
    return name == "config" || name == "help" || name == "version";
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all = {kModelKey};
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        if (!is_for_command_line_only(name)) all.push_back(name);
      }
    }
    return all;
  }

  static std::string name_of(const YAML::Node& key) {
    std::string name = key.Scalar();
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
  }

  CLI::Option* option_of(const YAML::Node& key) {
    const std::string name = name_of(key);
    const std::vector<std::string> known = names();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const auto guess = nearest(name, known);
      fault(key, "there is no flag \"" + name + "\"", guess ? "did you mean \"" + *guess + "\"?" : "");
      return nullptr;
    }
    CLI::Option* option = app.get_option_no_throw(name == kModelKey ? kModelOption : "--" + name);
    const auto [before, is_new] = seen.emplace(option, name);
    if (is_new) return option;
    fault(key,
          before->second == name ? "\"" + name + "\" is given twice"
                                 : "\"" + name + "\" is given beside \"" + before->second + "\"",
          before->second == name ? "" : "they are one switch: keep one of them");
    return nullptr;
  }

  // A flag's values as the command line would give them; nullopt after a fault.
  std::optional<std::vector<std::string>> values_of(const YAML::Node& key, const YAML::Node& value) {
    if (value.IsScalar()) return std::vector<std::string>{value.Scalar()};
    if (value.IsSequence()) {
      std::vector<std::string> values;
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) {
          fault(item, "\"" + key.Scalar() + "\" has an item that is no plain value");
          return std::nullopt;
        }
        values.push_back(item.Scalar());
      }
      return values;
    }
    fault(key, "\"" + key.Scalar() + "\" must have a value, or a list of values");
    return std::nullopt;
  }

  void take(const YAML::Node& key, const YAML::Node& value) {
    if (!key.IsScalar()) return fault(key, "a name of a flag must be a plain word");
    CLI::Option* option = option_of(key);
    if (option == nullptr) return;
    const auto values = values_of(key, value);
    if (!values || option->count() > 0) return;  // the command line wins
    const bool takes_list = option->get_expected_max() > 1;
    if (takes_list ? values->empty() : values->size() != 1) {
      return fault(key, "\"" + key.Scalar() + "\" takes one value" + (takes_list ? " or more" : ""));
    }
    try {
      const bool is_switch = option->get_expected_min() == 0;
      for (const std::string& one : *values) {
        option->add_result(is_switch ? option->get_flag_value(name_of(key), one) : one);
      }
      option->run_callback();
    } catch (const CLI::Error& error) {
      fault(value, error.what());
    }
  }
};

}  // namespace

void apply_config_file(CLI::App& app, const std::string& path) {
  ConfigFile file{app, path};
  YAML::Node document;
  try {
    for (const YAML::Node& part : YAML::LoadAll(read_file(path, size_t{1} << 20))) {
      if (part.IsNull()) continue;  // nothing between two "---"
      if (!document.IsNull()) file.fault(part, "begins a second document", "put all flags into one");
      if (document.IsNull()) document.reset(part);
    }
  } catch (const YAML::Exception& error) {
    throw Error(error.msg, path + ":" + std::to_string(error.mark.line + 1), "the file must be YAML");
  }
  if (document.IsNull()) return;
  if (!document.IsMap()) {
    throw Error("is no map from flags to values", path, "write lines like \"max-num-seqs: 16\"");
  }
  for (const auto& pair : document) file.take(pair.first, pair.second);
  throw_if_any(file.faults, path);
}

}  // namespace spark::app
