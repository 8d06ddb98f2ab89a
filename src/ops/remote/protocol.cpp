#include "ops/remote/protocol.h"

#include <charconv>
#include <cmath>

#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

constexpr char kMark = '\036';  // ASCII record separator: no program prints it by accident

// One line each, because csh does not take a newline inside quotes. $1 nonce, $2 seconds, $3 "root" or
// "user", $4 kInner.
constexpr const char* kOuter = R"sh(r=; if [ "$3" = root ] && [ "$(id -u)" != 0 ]; then r="sudo -n"; fi; )sh"
                               R"sh(exec $r timeout -k 2 "$2" sh -c "$4" spark "$1")sh";

// File descriptor 3 is the caller: what the script reads is /dev/null or its own input. The watcher ignores
// the signals that it sends first, so that it lives to send SIGKILL.
constexpr const char* kInner =
    R"sh(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; LC_ALL=C; export PATH LC_ALL; )sh"
    R"sh(IFS= read -r s && IFS= read -r d || exit 126; )sh"
    R"sh(exec 3<&0 </dev/null; )sh"
    R"sh({ trap "" HUP INT TERM; IFS= read -r x <&3; kill -TERM 0; sleep 2; kill -KILL 0; } >/dev/null 2>&1 & w=$!; )sh"
    R"sh(s=$(printf %s "$s" | base64 -d) || exit 126; )sh"
    R"sh(printf "\036spark-start %s\n" "$1"; printf "\036spark-start %s\n" "$1" >&2; )sh"
    R"sh(if [ -n "$d" ]; then printf %s "$d" | base64 -d | ( exec 3<&-; shift; eval "$s" ); c=$?; )sh"
    R"sh(else ( exec 3<&-; shift; eval "$s" ); c=$?; fi; )sh"
    R"sh(printf "\036spark-end %s %s\n" "$1" "$c" >&2; exec 2>/dev/null; kill -KILL $w; exit "$c")sh";

std::optional<int> code_at(std::string_view text) {
  int code = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (fault != std::errc() || end == text.data() + text.size() || *end != '\n') return std::nullopt;
  return code;
}

}  // namespace

std::string remote_command_line(const std::string& nonce, double timeout_s, bool as_root) {
  // A little longer than this side waits: this side's deadline decides, the node's is for a dead network.
  const long long seconds = std::llround(std::ceil(timeout_s)) + 2;
  return "exec sh -c " + shell_quote(kOuter) + " spark " + nonce + " " + std::to_string(seconds) +
         (as_root ? " root " : " user ") + shell_quote(kInner);
}

std::string base64_text(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    unsigned group = 0;
    for (size_t i = 0; i < 3; ++i)
      group = group << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) text += at + i <= bytes.size() ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::string remote_input(std::string_view script, std::string_view input) {
  return base64_text(script) + "\n" + base64_text(input) + "\n";
}

MarkedText split_marked(const std::string& stream, const std::string& nonce) {
  MarkedText result;
  const std::string start = kMark + ("spark-start " + nonce + "\n");
  const size_t begin = stream.find(start);
  if (begin == std::string::npos) {
    result.before = stream;
    return result;
  }
  result.started = true;
  result.before = stream.substr(0, begin);
  const std::string rest = stream.substr(begin + start.size());
  const std::string end_mark = kMark + ("spark-end " + nonce + " ");
  const size_t end = rest.rfind(end_mark);
  if (end != std::string::npos)
    result.exit_code = code_at(std::string_view(rest).substr(end + end_mark.size()));
  if (!result.exit_code) {
    result.text = rest;
    return result;
  }
  // Something that the script left behind may have written after it.
  result.text = rest.substr(0, end) + rest.substr(rest.find('\n', end) + 1);
  return result;
}

}  // namespace spark::ops
