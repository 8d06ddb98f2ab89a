// One running local program with pipes to its three standard streams, in a process group of its own. For
// callers that watch several programs at once or feed them while they run; `run_process` is the short form
// for one.
//
//   ChildProcess child({"sort"}, {.with_input = true});
//   child.write_input(text);                       // as much as fits now; never blocks, never raises SIGPIPE
//   child.close_input();
//   poll(child.output(), ...); child.read_output(text, limit);   // never blocks
//   if (child.ended()) use(child.exit_code());
//
// The destructor kills the whole group and waits: nothing of it is left, whatever way the caller leaves.
// (A program that makes a process group or session of its own leaves that of its parent: a daemon survives.)
// A program that cannot be started is an Error that names it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/descriptor.h"

namespace spark {

struct ChildOptions {
  std::string directory = {};                 // working directory; empty: this process's
  bool with_input = false;                    // false: the standard input is empty
  std::vector<std::string> environment = {};  // "NAME=value", in addition to (or instead of) this process's
};

class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments, const ChildOptions& options = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Descriptors to poll for, -1 once closed.
  int input() const { return input_.get(); }
  int output() const { return output_.get(); }
  int error() const { return error_.get(); }
  int exit_event() const { return pidfd_.get(); }  // readable once it has ended; -1 where the kernel has none

  // How many bytes were taken; closes the input when the program no longer reads.
  size_t write_input(std::string_view bytes);
  void close_input() { input_.close(); }

  // Appends what can be read now and closes the stream at its end. False when `into` would exceed `limit`:
  // then it holds exactly `limit` bytes and the rest of what was read is lost.
  bool read_output(std::string& into, size_t limit) { return drain(output_, into, limit); }
  bool read_error(std::string& into, size_t limit) { return drain(error_, into, limit); }

  bool ended();                                 // whether it has ended (its streams may still hold bytes)
  int exit_code() const { return exit_code_; }  // after ended(): 128 + signal number when a signal ended it
  void signal_group(int signal) const;
  // After ended(): what is left of its group is not killed by the destructor.
  void spare_group() { spared_ = true; }
  pid_t pid() const { return pid_; }

 private:
  static bool drain(Descriptor& from, std::string& into, size_t limit);

  pid_t pid_ = -1;
  bool ended_ = false;
  bool spared_ = false;
  int exit_code_ = 0;
  Descriptor input_;
  Descriptor output_;
  Descriptor error_;
  Descriptor pidfd_;
};

}  // namespace spark
