// Text without the heap: what the guard's loop reads and writes goes through fixed buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spark::ops {

// Appends to a fixed buffer; what does not fit is cut, and the text always ends in a zero.
template <size_t N>
class FixedText {
 public:
  FixedText() { clear(); }
  explicit FixedText(std::string_view text) {
    clear();
    add(text);
  }
  void clear() {
    size_ = 0;
    data_[0] = '\0';
  }
  FixedText& add(std::string_view text) {
    for (const char c : text) {
      if (size_ + 1 >= N) break;
      data_[size_++] = c;
    }
    data_[size_] = '\0';
    return *this;
  }
  FixedText& add_number(int64_t value) {
    char digits[24];
    size_t count = 0;
    const bool negative = value < 0;
    auto rest = negative ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
    do {
      digits[count++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    if (negative) add("-");
    while (count > 0) add(std::string_view(&digits[--count], 1));
    return *this;
  }
  const char* c_str() const { return data_; }
  std::string_view view() const { return {data_, size_}; }
  bool full() const { return size_ + 1 >= N; }
  bool empty() const { return size_ == 0; }

 private:
  char data_[N];
  size_t size_;
};

using PathText = FixedText<512>;

// Decimal at the beginning of `text`; -1 when there is none or it overflows.
int64_t leading_number(std::string_view text);

// The value of "NAME:   123 kB" in the text of /proc/meminfo; -1 when it is not there.
int64_t meminfo_kib(std::string_view meminfo, std::string_view name);

// The number of "NAME 123" at the beginning of a line, as /proc/vmstat has them; -1 when it is not there.
int64_t number_of_line(std::string_view lines, std::string_view name);

// The value behind "key=" at the beginning of a line; empty when there is none.
std::string_view value_of(std::string_view lines, std::string_view key);

// What a Docker engine's answer to GET /containers/NAME/json says.
struct ContainerState {
  bool valid = false;  // an answer that could be read: 200 with a state, or 404
  bool running = false;
  int64_t pid = 0;
};
ContainerState container_state(std::string_view http_answer);

// The path of the cgroup v2 line of /proc/PID/cgroup, or of the v1 hierarchy with this controller.
std::string_view cgroup_v2_path(std::string_view proc_cgroup);
std::string_view cgroup_v1_path(std::string_view proc_cgroup, std::string_view controller);

// Mount points in the text of /proc/mounts; empty when there is none.
std::string_view cgroup_v2_mount(std::string_view mounts);
std::string_view cgroup_v1_mount(std::string_view mounts, std::string_view controller);

}  // namespace spark::ops
