#include "ops/launch/evidence.h"

#include <algorithm>
#include <filesystem>

#include "common/file.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr size_t kMaxLogBytes = size_t{64} << 20;

constexpr const char* kRunFolder =
    "folder=/run/spark-launch; [ \"$(id -u)\" = 0 ] || "
    "folder=${XDG_RUNTIME_DIR:-/tmp}/spark-launch\n";

// What a person looks at first when a node was in trouble.
std::string state_script(const RankLaunch& launch) {
  const std::string unit = shell_quote(launch.guard.unit);
  return "sudo=; [ \"$(id -u)\" = 0 ] || sudo='sudo -n'\n"
         "echo '== guard'; cat /run/spark-guard/" +
         shell_quote(launch.service) + ".status 2>&1 | grep .\necho '== guard log'; " +
         (launch.systemd ? "$sudo journalctl --no-pager -n 200 -u " + unit
                         : "tail -n 200 /var/log/spark/" + unit + ".log") +
         " 2>&1\necho '== memory'; cat /proc/meminfo\n"
         "echo '== pressure'; cat /proc/pressure/memory 2>&1\n"
         "echo '== processes by memory'; ps -eo rss,pid,args --sort=-rss 2>&1 | head -n 15 | cut -c 1-160\n"
         "echo '== kernel'; $sudo dmesg 2>&1 | tail -n 100\n"
         "exit 0\n";
}

// Variables whose name says KEY, TOKEN, SECRET or PASSWORD lose their value.
constexpr const char* kWithoutSecrets =
    R"(sed -E 's/("[A-Za-z0-9_]*(KEY|TOKEN|SECRET|PASSWORD)[A-Za-z0-9_]*=)[^"]*"/\1<redacted>"/')";

}  // namespace

std::string evidence_folder(const std::string& profile, const std::string& service, const std::string& time) {
  const std::string name = "failed-starts/" + time + "-" + service;
  const std::filesystem::path path(profile);
  const auto parts = std::distance(path.begin(), path.end());
  if (parts == 3 && *path.begin() == "experiments") return path.parent_path().string() + "/runs/" + name;
  return "results/private/" + name;
}

std::vector<std::string> old_evidence(const std::string& newest, const std::string& service, size_t keep) {
  std::vector<std::string> folders;
  const std::filesystem::path parent = std::filesystem::path(newest).parent_path();
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(parent, absent)) {
    // TIME-SERVICE; another service may end in this one's name.
    const std::string name = entry.path().filename();
    const size_t dash = name.find('-');
    if (dash != std::string::npos && name.substr(dash + 1) == service && entry.is_directory())
      folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  folders.resize(folders.size() - std::min(keep, folders.size()));
  return folders;
}

std::string log_script(const RankLaunch& launch, int lines, const std::string& since) {
  const std::string name = shell_quote(launch.service);
  const std::string count = std::to_string(lines);
  switch (launch.runtime) {
    case LaunchRuntime::kContainer:
      return "docker logs --timestamps " + (lines >= 0 ? "--tail " + count + " " : std::string()) +
             (since.empty() ? "" : "--since " + shell_quote(since) + " ") + name + " 2>&1\n";
    case LaunchRuntime::kUnit:
      return "sudo=; [ \"$(id -u)\" = 0 ] || sudo='sudo -n'\n$sudo journalctl --no-pager -o "
             "short-iso-precise -u " +
             name + (lines >= 0 ? " -n " + count : "") +
             (since.empty() ? "" : " --since " + shell_quote(since)) + "\n";
    case LaunchRuntime::kProcess:
      break;
  }
  return kRunFolder + (lines >= 0 ? "tail -n " + count : std::string("cat")) + " \"$folder\"/" + name +
         ".log\n";
}

void save_evidence(const Remote& remote, const RemoteNode& node, const RankLaunch& launch,
                   const std::string& folder) {
  std::vector<RemoteCall> calls = {
      {node, {.script = log_script(launch, -1), .timeout_s = 60, .max_output_bytes = kMaxLogBytes}},
      {node, {.script = state_script(launch), .timeout_s = 30}},
  };
  if (launch.runtime == LaunchRuntime::kContainer)
    calls.push_back(
        {node,
         {.script = "docker container inspect " + shell_quote(launch.service) + " | " + kWithoutSecrets,
          .timeout_s = 30}});
  const std::vector<RemoteResult> results = remote.run_all(calls);
  if (!results[0].reached()) throw results[0].to_error();
  std::filesystem::create_directories(folder);
  const char* const names[] = {".log", ".state", ".inspect.json"};
  for (size_t i = 0; i < results.size(); ++i) {
    std::string text = results[i].output;
    if (!results[i].ok()) text += "\n[" + results[i].describe() + "]\n";
    write_file_atomic(folder + "/" + node.name + names[i], text);
  }
}

void save_step_words(const std::string& words, const std::string& node, const std::string& folder) {
  if (words.find('\n') >= words.find_last_not_of('\n')) return;
  std::filesystem::create_directories(folder);
  write_file_atomic(folder + "/" + node + ".start", words);
}

}  // namespace spark::ops
