#include "ops/remote/ssh_call.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>

#include "ops/remote/protocol.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

// Marks and messages of the client and the login come on top of what the command may write.
constexpr size_t kNoise = size_t{64} << 10;

std::string fresh_nonce() {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::uniform_int_distribution<size_t> pick(0, sizeof kLetters - 2);
  std::string nonce;
  for (int i = 0; i < 20; ++i) nonce += kLetters[pick(device)];
  return nonce;
}

std::string script_of(const RemoteCommand& command) {
  SPARK_CHECK(command.arguments.empty() != command.script.empty());
  if (!command.script.empty()) return command.script;
  std::string text = "exec";
  for (const std::string& word : command.arguments) text += " " + shell_quote(word);
  return text;
}

}  // namespace

SshCall::SshCall(std::vector<std::string> client, const RemoteCall& call)
    : nonce_(fresh_nonce()), limit_(call.command.max_output_bytes), begin_(Clock::now()) {
  const RemoteCommand& command = call.command;
  const std::string script = script_of(command);
  if (script.size() + command.input.size() > kMaxRemoteInput) {
    throw Error("a remote command with " + std::to_string(script.size() + command.input.size()) +
                    " bytes of script and input is too large",
                call.node.name, "copy large files with a command that checks their digest");
  }
  result_.node = call.node.name;
  deadline_ =
      begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(command.timeout_s));
  unsent_ = remote_input(script, command.input);
  client.push_back(remote_command_line(nonce_, command.timeout_s, command.as_root));
  try {
    process_ = std::make_unique<ChildProcess>(client, ChildOptions{.with_input = true});
  } catch (const Error& error) {
    error_ = error.describe();
    finish();
  }
}

void SshCall::advance() {
  if (done_) return;
  if (!unsent_.empty() && process_->input() >= 0) unsent_.erase(0, process_->write_input(unsent_));
  if (process_->input() < 0) unsent_.clear();
  const bool ended = process_->ended();
  // After its end everything that the client wrote is in the pipes; a shared connection that it left in the
  // background may hold them open, so the end of the stream is not waited for.
  size_t before;
  do {
    before = output_.size() + error_.size();
    const bool fits = process_->read_output(output_, limit_ + kNoise);
    overflowed_ |= !process_->read_error(error_, limit_ + kNoise) || !fits;
  } while (ended && !overflowed_ && output_.size() + error_.size() != before);
  if (overflowed_)
    give_up(RemoteOutcome::kTooMuchOutput);
  else if (ended)
    finish();
}

void SshCall::give_up(RemoteOutcome why) {
  if (done_) return;
  result_.outcome = why;
  process_->close_input();
  finish();
}

void SshCall::finish() {
  done_ = true;
  result_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  classify();
  // A client that ended by itself may have left a shared connection in the background, and with it, in this
  // group, the ProxyCommand or jump that carries it.
  if (process_ && process_->ended()) process_->spare_group();
  process_.reset();
}

void SshCall::classify() {
  MarkedText out = split_marked(output_, nonce_);
  MarkedText err = split_marked(error_, nonce_);
  result_.started = out.started || err.started;
  result_.output = std::move(out.text);
  result_.error = std::move(err.text);
  result_.message = std::move(err.before);
  if (result_.outcome != RemoteOutcome::kUnreachable) return;  // given up, and the reason is known
  if (err.exit_code) {
    result_.exit_code = *err.exit_code;
    const bool fits = result_.output.size() <= limit_ && result_.error.size() <= limit_;
    result_.outcome = fits ? RemoteOutcome::kExited : RemoteOutcome::kTooMuchOutput;
    if (fits) return;
    result_.output.resize(std::min(result_.output.size(), limit_));
    result_.error.resize(std::min(result_.error.size(), limit_));
    return;
  }
  const int code = process_ ? process_->exit_code() : 255;
  if (result_.started) {
    result_.outcome = code == 124 ? RemoteOutcome::kTimedOut : RemoteOutcome::kLost;
  } else if (code != 255) {
    result_.outcome = RemoteOutcome::kNotStarted;
  } else {
    result_.fault = transport_fault(result_.message);
  }
}

namespace {

// Readable once a stop is requested.
class StopEvent {
 public:
  explicit StopEvent(const std::stop_token& stop) : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    callback_.emplace(stop, [fd = event_.get()] { ::eventfd_write(fd, 1); });
  }
  ~StopEvent() { callback_.reset(); }
  int fd() const { return event_.get(); }

 private:
  Descriptor event_;
  std::optional<std::stop_callback<std::function<void()>>> callback_;
};

void wait_for_any(const std::vector<SshCall>& calls, const StopEvent& stop) {
  std::vector<pollfd> waits = {{stop.fd(), POLLIN, 0}};
  auto next = SshCall::Clock::now() + std::chrono::minutes(1);
  for (const SshCall& call : calls) {
    if (call.done()) continue;
    const ChildProcess& process = *call.process();
    waits.push_back({process.output(), POLLIN, 0});
    waits.push_back({process.error(), POLLIN, 0});
    waits.push_back({call.wants_write() ? process.input() : -1, POLLOUT, 0});
    waits.push_back({process.exit_event(), POLLIN, 0});
    if (process.exit_event() < 0) next = std::min(next, SshCall::Clock::now() + std::chrono::milliseconds(5));
    next = std::min(next, call.deadline());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - SshCall::Clock::now()).count();
  ::poll(waits.data(), waits.size(), static_cast<int>(std::max<long long>(left, 0)));
}

}  // namespace

void watch_calls(std::vector<SshCall>& calls, const std::stop_token& stop,
                 const std::function<void(size_t index)>& finished) {
  const StopEvent event(stop);
  std::vector<bool> reported(calls.size(), false);
  size_t open = calls.size();
  while (true) {
    for (size_t i = 0; i < calls.size(); ++i) {
      SshCall& call = calls[i];
      if (!call.done()) call.advance();
      if (!call.done() && SshCall::Clock::now() >= call.deadline()) call.give_up(RemoteOutcome::kTimedOut);
      if (!call.done() && stop.stop_requested()) call.give_up(RemoteOutcome::kCancelled);
      if (call.done() && !reported[i]) {
        reported[i] = true;
        --open;
        finished(i);
      }
    }
    if (open == 0) return;
    wait_for_any(calls, event);
  }
}

}  // namespace spark::ops
