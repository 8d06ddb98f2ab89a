#include "ops/guard/report.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ops/guard/files.h"

namespace spark::ops {
namespace {

PathText path_with(const GuardOptions& options, std::string_view suffix) {
  PathText path = joined(options.run_folder.view(), "/", options.service.view());
  return path.add(suffix);
}

bool socket_address(const PathText& path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.view().size() >= sizeof address.sun_path) return false;
  path.view().copy(address.sun_path, path.view().size());
  return true;
}

std::string_view take_word(std::string_view& text) {
  const size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return word;
}

}  // namespace

StatusText status_text(const GuardOptions& options, const GuardStatus& status, std::string_view boot) {
  StatusText text;
  const auto word = [&text](const char* key, std::string_view value) {
    text.add(key).add("=").add(value).add("\n");
  };
  const auto number = [&text](const char* key, int64_t value) {
    text.add(key).add("=").add_number(value).add("\n");
  };
  word("state", status.state);
  word("reason", status.reason);
  word("service", options.service.view());
  word("kind", status.kind);
  word("means", status.means);
  number("pid", status.pid);
  word("phase", guard_stage_name(options.stage));
  number("threshold_kib", options.limits.threshold_kib);
  number("interval_ms", options.limits.interval_ms);
  number("available_kib", status.available_kib);
  number("minimum_kib", status.minimum_kib);
  number("samples", status.samples);
  number("sampled_ms", status.sampled_ms);
  word("pressure_full_avg10", status.pressure.view());
  number("swapped_in_pages", status.swapped_in_pages);
  number("driver_errors", status.driver_errors);
  number("locked", status.locked ? 1 : 0);
  number("oom_protected", status.oom_protected ? 1 : 0);
  word("boot", boot);
  number("guard_pid", ::getpid());
  return text;
}

PathText status_path(const GuardOptions& options) {
  return path_with(options, ".status");
}
PathText socket_path(const GuardOptions& options) {
  return path_with(options, ".sock");
}

StatusFile::StatusFile(const GuardOptions& options) {
  ::mkdir(options.run_folder.c_str(), 0755);
  file_.reset(::open(status_path(options).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
}

void StatusFile::write(const StatusText& text) {
  if (!file_.open()) return;
  // Blanks fill what a longer text left behind; the size never changes, so readers never see it empty.
  static char page[2048];
  const std::string_view view = text.view();
  view.copy(page, sizeof page);
  for (size_t i = view.size(); i < sizeof page; ++i) page[i] = '\n';
  [[maybe_unused]] const auto written = ::pwrite(file_.get(), page, sizeof page, 0);
}

ControlSocket::ControlSocket(const GuardOptions& options) : path_(socket_path(options)) {
  sockaddr_un address;
  if (!socket_address(path_, address)) return;
  ::mkdir(options.run_folder.c_str(), 0755);
  Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return;
  ::unlink(path_.c_str());
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Only the owner may switch phases; others read the status file.
  const mode_t before = ::umask(0177);
  const bool bound = ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::umask(before);
  if (bound && ::listen(listener.get(), 8) == 0) listener_ = std::move(listener);
}

ControlSocket::~ControlSocket() {
  if (listener_.open()) ::unlink(path_.c_str());
}

void ControlSocket::watch(pollfd* events, int64_t now_ms) {
  for (size_t i = 0; i < kPeers; ++i) {
    if (peers_[i].socket.open() && now_ms - peers_[i].since_ms >= kPatienceMs) peers_[i].socket.close();
    events[i] = {peers_[i].socket.get(), POLLIN, 0};
  }
  events[kPeers] = {listener_.get(), POLLIN, 0};
}

void ControlSocket::admit(const pollfd* events, int64_t now_ms) {
  if (events[kPeers].revents == 0) return;
  // At most as many as there are places: those who keep knocking do not keep the guard here.
  for (size_t taken = 0; taken < kPeers; ++taken) {
    Descriptor guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest.open()) return;
    Peer* place = &peers_[0];
    for (Peer& peer : peers_) {
      if (place->socket.open() && (!peer.socket.open() || peer.since_ms < place->since_ms)) place = &peer;
    }
    place->socket = std::move(guest);
    place->since_ms = now_ms;
  }
}

bool ControlSocket::receive(const pollfd* events, size_t i, Switch& wanted) {
  Descriptor& socket = peers_[i].socket;
  if (!socket.open() || events[i].revents == 0) return false;
  char request[128];
  const ssize_t count = ::recv(socket.get(), request, sizeof request, 0);
  std::string_view words(request, count > 0 ? static_cast<size_t>(count) : 0);
  while (!words.empty() && (words.back() == '\n' || words.back() == '\0')) words.remove_suffix(1);
  const std::string_view verb = take_word(words);
  wanted = verb == "switch" ? parse_switch(words) : Switch{};
  if (verb == "status" || wanted.wanted) return true;
  socket.close();
  return false;
}

void ControlSocket::answer(size_t i, std::string_view text) {
  // A socket's buffer takes the whole text at once, or the peer is not worth waiting for.
  ::send(peers_[i].socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  peers_[i].socket.close();
}

ControlSocket::Switch parse_switch(std::string_view words) {
  ControlSocket::Switch wanted;
  const std::string_view stage = take_word(words);
  if (stage == "steady")
    wanted.stage = GuardStage::kSteady;
  else if (stage != "startup")
    return {};
  wanted.threshold_kib = whole_number_of(take_word(words));
  wanted.interval_ms = whole_number_of(take_word(words));
  wanted.wanted = words.empty() && wanted.threshold_kib > 0 && wanted.interval_ms >= 10;
  return wanted;
}

bool adopt_previous(GuardOptions& options, std::string_view text, int64_t pid, std::string_view boot) {
  const int64_t threshold = leading_number(value_of(text, "threshold_kib"));
  const int64_t interval = leading_number(value_of(text, "interval_ms"));
  if (value_of(text, "state") != "watching" || boot.empty() || value_of(text, "boot") != boot) return false;
  if (leading_number(value_of(text, "pid")) != pid || threshold <= 0 || interval <= 0) return false;
  options.stage = value_of(text, "phase") == "steady" ? GuardStage::kSteady : GuardStage::kStartup;
  options.limits.threshold_kib = threshold;
  options.limits.interval_ms = interval;
  return true;
}

}  // namespace spark::ops
