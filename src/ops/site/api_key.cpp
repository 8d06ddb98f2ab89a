#include "ops/site/api_key.h"

#include <cstdlib>

#include "ops/site/arguments.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

std::string reads_secret_file(const ApiKeySource& source) {
  const std::string file = shell_quote(source.secret_file);
  if (source.plain_variables)
    return "sed -n 's/^" + source.variable + "=//p' " + file + " 2>/dev/null | sed -n '$p'";
  return "unset " + source.variable + "; . " + file + " >/dev/null 2>&1; printf %s \"$" + source.variable +
         "\"";
}

}  // namespace

std::string api_key_file(const ClusterProfile& profile) {
  const std::string path = ServerArguments(profile.serve_args).value("--api-key-file").value_or("");
  if (path.empty() || !profile.in_container()) return path;
  for (const Mount& mount : profile.container.mounts) {
    if (path == mount.destination) return mount.source;
    if (path.starts_with(mount.destination + "/"))
      return mount.source + path.substr(mount.destination.size());
  }
  return {};
}

ApiKeySource api_key_source(const Site& site) {
  const char* given = std::getenv("SPARK_API_KEY");
  return {.given = given == nullptr ? "" : given,
          .secret_file = site.profile.secret_environment_file,
          .variable = site.profile.engine_kind == EngineKind::kVllm ? "VLLM_API_KEY" : "SPARK_API_KEY",
          .plain_variables = site.profile.in_container(),
          .key_file = api_key_file(site.profile)};
}

std::string api_key_function(const char* name, const ApiKeySource& source) {
  std::string body;
  const auto or_else = [&body](const std::string& command) {
    body += "  [ -n \"$found_key\" ] || found_key=$(" + command + ")\n";
  };
  if (!source.secret_file.empty()) or_else(reads_secret_file(source));
  if (!source.key_file.empty()) or_else("tr -d ' \\t\\r\\n' <" + shell_quote(source.key_file));
  return std::string(name) + "() {\n  found_key=" + shell_quote(source.given) + "\n" + body +
         "  printf %s \"$found_key\"\n} 2>/dev/null\n";
}

}  // namespace spark::ops
