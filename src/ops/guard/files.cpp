#include "ops/guard/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <cerrno>

namespace spark::ops {
namespace {

char text_buffer[kGuardBufferBytes];

bool wait_for(int fd, short events, int64_t deadline) {
  const int64_t left = deadline - now_ms();
  if (left <= 0) return false;
  pollfd wait = {fd, events, 0};
  return ::poll(&wait, 1, static_cast<int>(left)) > 0;
}

}  // namespace

std::string_view read_again(int fd) {
  size_t size = 0;
  while (size < sizeof text_buffer) {
    const ssize_t count =
        ::pread(fd, text_buffer + size, sizeof text_buffer - size, static_cast<off_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {};
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  return {text_buffer, size};
}

std::string_view read_path(const char* path) {
  const Descriptor file = open_path(path, O_RDONLY);
  return file.open() ? read_again(file.get()) : std::string_view();
}

Descriptor open_path(const char* path, int flags) {
  return Descriptor(::open(path, flags | O_CLOEXEC));
}

PathText joined(std::string_view a, std::string_view b, std::string_view c) {
  PathText path;
  path.add(a).add(b).add(c);
  return path;
}

int64_t now_ms() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1000000;
}

std::string_view ask_socket(std::string_view path, std::string_view request, int64_t timeout_ms) {
  const int64_t deadline = now_ms() + timeout_ms;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return {};
  path.copy(address.sun_path, path.size());
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) return {};
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  while (!request.empty()) {
    const ssize_t count = ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    if (count > 0)
      request.remove_prefix(static_cast<size_t>(count));
    else if (errno != EAGAIN || !wait_for(socket.get(), POLLOUT, deadline))
      return {};
  }
  size_t size = 0;
  while (size < sizeof text_buffer) {
    const ssize_t count = ::recv(socket.get(), text_buffer + size, sizeof text_buffer - size, 0);
    if (count > 0)
      size += static_cast<size_t>(count);
    else if (count == 0)
      break;
    else if (errno != EINTR && (errno != EAGAIN || !wait_for(socket.get(), POLLIN, deadline)))
      return {};
  }
  return {text_buffer, size};
}

}  // namespace spark::ops
