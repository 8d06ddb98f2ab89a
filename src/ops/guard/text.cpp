#include "ops/guard/text.h"

#include <limits>

namespace spark::ops {
namespace {

// Takes one line off the front of `rest`.
std::string_view next_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return line;
}

std::string_view word_at(std::string_view line, int index) {
  for (; index > 0; --index) {
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos) return {};
    line = line.substr(blank + 1);
  }
  return line.substr(0, line.find(' '));
}

bool list_has(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const size_t end = list.find(',');
    if (list.substr(0, end) == wanted) return true;
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
  }
  return false;
}

// Walks a JSON text far enough to tell keys of the outer object and of its "State" from the same words inside
// strings or deeper objects.
class StateScanner {
 public:
  explicit StateScanner(std::string_view json) : json_(json) {}

  ContainerState scan() {
    ContainerState state;
    bool running_seen = false;
    bool pid_seen = false;
    while (at_ < json_.size() && !(running_seen && pid_seen)) {
      const char c = json_[at_];
      if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        if (--depth_ < 2) in_state_ = false;
      } else if (c == '"') {
        const std::string_view word = string();
        if (at_ < json_.size() && json_[at_] == ':') {
          const std::string_view value = json_.substr(at_ + 1);
          if (depth_ == 1) in_state_ = word == "State";
          if (depth_ == 2 && in_state_ && word == "Running") {
            state.running = value.starts_with("true");
            running_seen = state.running || value.starts_with("false");
          }
          if (depth_ == 2 && in_state_ && word == "Pid") {
            state.pid = leading_number(value);
            pid_seen = state.pid >= 0;
          }
        }
        continue;
      }
      ++at_;
    }
    state.valid = running_seen && pid_seen && (!state.running || state.pid > 0);
    return state;
  }

 private:
  // The string that begins at a quote; leaves at_ behind the closing one.
  std::string_view string() {
    const size_t begin = ++at_;
    while (at_ < json_.size() && json_[at_] != '"') at_ += json_[at_] == '\\' ? 2 : 1;
    const std::string_view word = json_.substr(begin, at_ - begin);
    ++at_;
    return word;
  }

  std::string_view json_;
  size_t at_ = 0;
  int depth_ = 0;
  bool in_state_ = false;
};

}  // namespace

int64_t leading_number(std::string_view text) {
  int64_t value = 0;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    if (value > (std::numeric_limits<int64_t>::max() - 9) / 10) return -1;
    value = value * 10 + (text[digits] - '0');
  }
  return digits == 0 ? -1 : value;
}

int64_t meminfo_kib(std::string_view meminfo, std::string_view name) {
  while (!meminfo.empty()) {
    std::string_view line = next_line(meminfo);
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    return line.ends_with(" kB") ? leading_number(line) : -1;
  }
  return -1;
}

int64_t number_of_line(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const std::string_view line = next_line(lines);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ')
      return leading_number(line.substr(name.size() + 1));
  }
  return -1;
}

std::string_view value_of(std::string_view lines, std::string_view key) {
  while (!lines.empty()) {
    const std::string_view line = next_line(lines);
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == '=')
      return line.substr(key.size() + 1);
  }
  return {};
}

ContainerState container_state(std::string_view http_answer) {
  if (!http_answer.starts_with("HTTP/1.")) return {};
  const int64_t status = http_answer.size() > 12 ? leading_number(http_answer.substr(9)) : -1;
  if (status == 404) return {.valid = true, .running = false, .pid = 0};
  const size_t body = http_answer.find("\r\n\r\n");
  if (status != 200 || body == std::string_view::npos) return {};
  const std::string_view rest = http_answer.substr(body + 4);
  const size_t object = rest.find('{');  // behind the size of a first chunk, if it comes in chunks
  return object == std::string_view::npos ? ContainerState{} : StateScanner(rest.substr(object)).scan();
}

std::string_view cgroup_v2_path(std::string_view proc_cgroup) {
  while (!proc_cgroup.empty()) {
    const std::string_view line = next_line(proc_cgroup);
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

std::string_view cgroup_v1_path(std::string_view proc_cgroup, std::string_view controller) {
  while (!proc_cgroup.empty()) {
    const std::string_view line = next_line(proc_cgroup);
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    if (list_has(line.substr(first + 1, second - first - 1), controller)) return line.substr(second + 1);
  }
  return {};
}

std::string_view cgroup_v2_mount(std::string_view mounts) {
  while (!mounts.empty()) {
    const std::string_view line = next_line(mounts);
    if (word_at(line, 2) == "cgroup2") return word_at(line, 1);
  }
  return {};
}

std::string_view cgroup_v1_mount(std::string_view mounts, std::string_view controller) {
  while (!mounts.empty()) {
    const std::string_view line = next_line(mounts);
    if (word_at(line, 2) == "cgroup" && list_has(word_at(line, 3), controller)) return word_at(line, 1);
  }
  return {};
}

}  // namespace spark::ops
