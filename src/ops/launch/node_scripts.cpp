#include "ops/launch/node_scripts.h"

#include <algorithm>

#include "ops/launch/node_script_text.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr int64_t kKibOfGib = int64_t{1} << 20;

std::string set_line(const char* name, const std::string& value) {
  return std::string(name) + "=" + shell_quote(value) + "\n";
}

std::string quoted_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quote(word);
  return line;
}

const char* runtime_name(LaunchRuntime runtime) {
  constexpr const char* kNames[] = {"container", "unit", "process"};
  return kNames[static_cast<size_t>(runtime)];
}

std::string common_lines(const RankLaunch& launch) {
  const bool unit = launch.runtime == LaunchRuntime::kUnit;
  return set_line("name", launch.service) + set_line("runtime", runtime_name(launch.runtime)) +
         set_line("systemd", launch.systemd ? "1" : "0") +
         set_line("guard", launch.working_directory + "/bin/spark-guard") +
         set_line("guard_unit", launch.guard.unit) + set_line("run_folder", "/run/spark-guard") +
         set_line("checkout", launch.working_directory) + set_line("claim_file", kClaimFile) +
         set_line("threshold_kib", std::to_string(launch.guard.threshold_gib * kKibOfGib)) +
         set_line("arm_line", quoted_line(guard_command(launch))) +
         set_line("launch_line", unit ? quoted_line(unit_command(launch)) : launch_shell(launch));
}

// Each map into a temporary file beside it, then over it.
std::string map_writer(const std::map<std::string, std::string>& maps) {
  std::string text = "write_maps() {\n  :\n";
  for (const auto& [path, content] : maps) {
    const std::string target = shell_quote(path);
    text += "  mkdir -p \"$(dirname " + target + ")\" && printf '%s' " + shell_quote(content) + " >" +
            target + ".new && mv -f " + target + ".new " + target + " || fail " + target +
            " cannot be written\n";
  }
  return text + "}\n";
}

}  // namespace

std::string step_script(const RankLaunch& launch, const Step& step, const NodeScriptContext& context) {
  std::string text =
      common_lines(launch) + set_line("step", step_name(step.kind)) + set_line("run", context.run) +
      set_line("claim", context.claim) + set_line("owner", context.owner) +
      set_line("take_over", context.take_over ? "1" : "0") +
      set_line("steady_gib", std::to_string(context.steady.threshold_gib)) +
      set_line("steady_interval", Json(context.steady.interval_seconds).dump()) +
      set_line("backup", step.parameter("backup")) + set_line("start", step.parameter("start")) +
      set_line("remove", step.parameter("remove")) + set_line("expected_id", step.parameter("id")) +
      set_line("revision", step.parameter("revision"));
  if (step.kind == StepKind::kCheckout) text += map_writer(context.node_maps);
  return text + kNodeScriptBody;
}

double step_timeout_s(StepKind kind) {
  switch (kind) {
    case StepKind::kRetire:
    case StepKind::kStop:
    case StepKind::kRestore:
      return 150;  // a minute until the container is killed, another until its memory is back
    case StepKind::kLaunch:
    case StepKind::kFetch:
    case StepKind::kRemove:
    case StepKind::kPrune:
      return 120;
    default:
      return 40;
  }
}

std::string look_script(const RankLaunch& launch) {
  return common_lines(launch) + "step=look\n" + kNodeScriptBody;
}

std::map<std::string, std::string> read_values(std::string_view output) {
  std::map<std::string, std::string> values;
  while (!output.empty()) {
    const size_t end = std::min(output.find('\n'), output.size());
    const std::string_view line = output.substr(0, end);
    output.remove_prefix(std::min(end + 1, output.size()));
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      values[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
  }
  return values;
}

std::string normalised_origin(const std::string& url) {
  std::string text = url;
  const size_t scheme = text.find("://");
  if (scheme != std::string::npos) {
    text.erase(0, scheme + 3);
  } else if (const size_t colon = text.find(':'); colon != std::string::npos && text[0] != '/') {
    text[colon] = '/';  // host:path
  }
  if (const size_t at = text.find('@'); at != std::string::npos && at < text.find('/')) text.erase(0, at + 1);
  while (!text.empty() && text.back() == '/') text.pop_back();
  if (text.ends_with(".git")) text.resize(text.size() - 4);
  return text;
}

}  // namespace spark::ops
