#include "ops/watch/script.h"

#include "api/metric_names.h"
#include "common/units.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

namespace metric = api::metric;

// Lines are "KEY value"; each part prints few enough bytes that the parts' lines do not mix in a pipe.
constexpr const char* kBody = R"sh(
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
have() { command -v "$1" >/dev/null 2>&1; }
limited() { timeout -k 1 "$limit" "$@"; }
first_line() { printf '%s\n' "$1" | grep -v '^$' | head -n 1 | cut -c 1-300; } # docker begins with an empty line
began() { [ ! -r "/proc/$1/stat" ] || { read -r line <"/proc/$1/stat" && set -- ${line##*) } && echo "${20}"; } 2>/dev/null; }

# A fault goes on where "the container engine", "the API" begins; a tool's own words stand behind a colon.
container_part() {
  have docker || { echo 'container fault is not installed'; return; }
  out=$(limited docker container inspect --format '{{.State.Status}} {{.State.Pid}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.StartedAt}}' "$service" 2>&1)
  case $?/$out in
    0/*) echo "container state $out" ;;
    124/* | 137/*) echo "container fault gives no answer within $limit s" ;;
    *'o such container'*) echo 'container absent' ;;
    *) echo "container fault fails: $(first_line "$out")" ;;
  esac
}

unit_part() {
  have systemctl || { echo 'unit none'; return; }
  out=$(limited systemctl show -p LoadState -p ActiveState -p MainPID -p ExecMainStatus -p ActiveEnterTimestampMonotonic -p Result "$service.service" 2>/dev/null) ||
    { echo 'unit none'; return; }
  printf '%s\n' "$out" | sed 's/^/unit /'
}

gpu_part() {
  have nvidia-smi || { echo 'gpu fault nvidia-smi is not installed'; return; }
  out=$(limited nvidia-smi --query-gpu=clocks.sm,power.draw,utilization.gpu,temperature.gpu --format=csv,noheader,nounits 2>&1)
  case $? in
    0) echo "gpu values $(first_line "$out")" ;;
    124 | 137) echo "gpu fault nvidia-smi gives no answer within $limit s" ;;
    *) echo "gpu fault nvidia-smi failed: $(first_line "$out")" ;;
  esac
}

# The key goes through a pipe: argument lists are for everybody to read.
authorization() { [ -z "$key" ] || printf 'Authorization: Bearer %s\n' "$key"; }
api_part() {
  key=$(api_key)
  if have curl; then
    out=$(authorization | limited curl -sS --noproxy '*' -H @- -w '\nhttp %{http_code}\n' "$url" 2>&1)
    status=$?
    [ "$status" != 0 ] || { printf '%s\n' "$out" | grep -E "^(http [0-9]|($metrics)[{ ])" | sed 's/^/api /'; return; }
    why=$(printf '%s\n' "$out" | sed -n 's/^curl: ([0-9]*) //p')
    [ "$status" != 28 ] || status=124
  elif [ -n "$url_port" ] && have bash; then
    out=$(authorization | limited bash -c 'exec 3<>"/dev/tcp/$0/$1" || exit 1
      { printf "GET %s HTTP/1.0\r\nHost: %s\r\n" "$2" "$0"
        while IFS= read -r line; do printf "%s\r\n" "$line"; done; printf "\r\n"; } >&3; exec cat <&3' "$url_host" "$url_port" "$url_path" 2>&1)
    status=$?
    [ "$status" != 0 ] || {
      printf '%s\n' "$out" | sed -e 's/\r$//' -e 's,^HTTP/[0-9.]* \([0-9]*\).*,http \1,' |
        grep -E "^(http [0-9]|($metrics)[{ ])" | sed 's/^/api /'
      return
    }
    why=${out##*: }
  else
    echo 'api unasked neither curl nor bash is installed'
    return
  fi
  case $status in
    124 | 137) echo "api fault gives no answer within $limit s" ;;
    *) echo "api fault cannot be asked: $(first_line "$why")" ;;
  esac
}

guard_part() {
  for run in /run/spark-guard "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/spark-guard"; do
    [ -r "$run/$service.status" ] || continue
    sed -n 's/^\([a-z_]*=\)/guard \1/p' "$run/$service.status"
    guard=$(sed -n 's/^guard_pid=\([0-9][0-9]*\)$/\1/p' "$run/$service.status")
    held=$(sed -n 's/^pid=\([1-9][0-9]*\)$/\1/p' "$run/$service.status")
    name=
    [ -z "$guard" ] || [ ! -r "/proc/$guard/comm" ] || read -r name <"/proc/$guard/comm"
    [ "$name" != spark-guard ] || echo 'guard alive'
    break
  done
  for process in $held $known; do
    start=$(began "$process")
    [ -z "$start" ] || echo "process $process $start"
  done
}

files_part() {
  read -r boot </proc/sys/kernel/random/boot_id && echo "boot $boot"
  read -r up rest </proc/uptime && echo "up $up"
  sed -n -e 's/^MemAvailable: *\([0-9]*\) kB/available \1/p' -e 's/^MemTotal: *\([0-9]*\) kB/total \1/p' /proc/meminfo
  sed -n 's/^pswpin \([0-9]*\)$/swapped \1/p' /proc/vmstat
  [ ! -r /proc/pressure/memory ] || sed -n 's/^full avg10=\([0-9.]*\) .*/pressure \1/p' /proc/pressure/memory 2>/dev/null
  for f in "$HOME/spark-hold.json" "$HOME/spark3-hold.json"; do [ ! -e "$f" ] || echo "hold $f"; done
}

held=
echo 'spark-watch 1'
[ "$container" = 0 ] || container_part &
unit_part &
[ "$gpu" = 0 ] || gpu_part &
[ -z "$url" ] || api_part &
guard_part &
files_part
wait
echo end
)sh";

std::string metric_pattern() {
  std::string pattern;
  for (const char* name : {metric::kRequestsRunning, metric::kRequestsWaiting, metric::kGenerationTokens,
                           metric::kPromptTokens, metric::kPrefillBacklog})
    pattern += std::string(name) + "|";
  return pattern + metric::kIterationTokens + "_count";
}

struct UrlParts {
  std::string host, port, path;
};

// Of a plain HTTP address, for a node without curl; empty for others.
UrlParts plain_parts(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return {};
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && authority.find(']', colon) == std::string::npos;
  std::string host = has_port ? authority.substr(0, colon) : authority;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string path = rest.substr(slash);
  return {std::move(host), has_port ? authority.substr(colon + 1) : "80", path.empty() ? "/" : path};
}

}  // namespace

std::string metrics_url(const std::string& ready_url) {
  const size_t scheme = ready_url.find("://");
  if (scheme == std::string::npos || !ready_url.starts_with("http")) return {};
  const size_t authority_end = std::min(ready_url.find('/', scheme + 3), ready_url.size());
  if (authority_end == scheme + 3) return {};
  return ready_url.substr(0, authority_end) + "/metrics";
}

std::string watch_script(const WatchQuestion& question) {
  const UrlParts url = plain_parts(question.metrics_url);
  std::string text;
  const auto set = [&text](const char* name, const std::string& value) {
    text += std::string(name) + "=" + shell_quote(value) + "\n";
  };
  set("service", question.service);
  set("container", question.container ? "1" : "0");
  set("gpu", question.gpu ? "1" : "0");
  set("limit", format_fixed(question.limit_s, 1));
  set("known", question.known_pid > 0 ? std::to_string(question.known_pid) : "");
  set("url", question.metrics_url);
  set("url_host", url.host);
  set("url_port", url.port);
  set("url_path", url.path);
  set("metrics", metric_pattern());
  return text + api_key_function("api_key", question.api_key) + kBody;
}

}  // namespace spark::ops
