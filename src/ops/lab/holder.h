// The process that is a node: the first process of its own network, mount, process, host name and IPC
// namespaces. When it dies the kernel ends everything in them.
//
//   Holder holder = start_holder("node1", namespaces, [] { build_the_root(); });  // runs in the new process
//   holder.wait_ready(10);       // its setup function has returned
//   holder.release();            // from now on it outlives this program
//
// Until release() the new process dies with this one, however this one ends, so that a killed `lab up`
// leaves nothing. Must be called from the main thread of a program with one thread (the death signal follows
// the thread that forked).
#pragma once

#include <functional>
#include <string>

#include "common/child_process.h"
#include "ops/lab/state.h"

namespace spark::ops {

struct HolderWork {
  std::string log;              // its standard output and error
  std::function<void()> setup;  // runs first; a throw ends the process and is reported by wait_ready
  std::function<void()> tick;   // then, every 100 ms; may be empty
};

class Holder {
 public:
  Holder(Holder&&) = default;
  ~Holder();  // kills it unless released
  Holder& operator=(Holder&&) = delete;

  pid_t pid() const { return identity_.pid; }
  const ProcessIdentity& identity() const { return identity_; }
  void begin();                       // lets the setup begin: the caller has moved it into its cgroups
  void wait_ready(double timeout_s);  // throws Error with what the setup threw
  void release();

 private:
  friend Holder start_holder(const std::string& name, bool whole_node, const HolderWork& work);
  Holder() = default;
  std::string report(double timeout_s);

  std::string name_;
  ProcessIdentity identity_;
  Descriptor orders_;   // this side writes: 'b' begin, 'k' keep living
  Descriptor reports_;  // the other side writes its report, and closes once it was released
  bool released_ = false;
};

// `whole_node`: all namespaces; otherwise network and processes only (the management network).
Holder start_holder(const std::string& name, bool whole_node, const HolderWork& work);

}  // namespace spark::ops
