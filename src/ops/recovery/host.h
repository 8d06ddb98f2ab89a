// The machine that a policy is applied to: its files below a root folder, and the commands that change its
// state. With the root "/" it is this machine; with any other folder only files are touched and the commands
// are listed instead of run, which is how the tests and a dry run work.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace spark::ops {

struct HostFile {
  unsigned mode = 0;  // permission bits
  unsigned owner = 0, group = 0;
  std::string content;
  std::string link;  // target, when it is a symbolic link; the others are then empty

  bool operator==(const HostFile&) const = default;
};

class Host {
 public:
  explicit Host(std::string root = "/");
  virtual ~Host() = default;

  const std::string& root() const { return root_; }
  bool is_this_machine() const { return root_ == "/"; }

  std::optional<HostFile> file(
      const std::string& path) const;          // nullopt: does not exist; Error: unreadable, a folder
  bool exists(const std::string& path) const;  // anything
  // Creates missing folders (0755), whose paths are returned, outermost first. Atomic.
  std::vector<std::string> write(const std::string& path, const HostFile& file);
  void remove(const std::string& path);         // no error when it does not exist
  void remove_folder(const std::string& path);  // if it is empty

  // Runs a command that changes the machine; throws Error when it fails. On a folder it is listed.
  virtual void run(const std::vector<std::string>& command);
  virtual void set_text_console(const std::string& terminal);
  const std::vector<std::string>& commands() const { return commands_; }  // run or listed so far

 protected:
  void note(std::string command) { commands_.push_back(std::move(command)); }

 private:
  std::string place(const std::string& path) const;

  std::string root_;
  std::vector<std::string> commands_;
};

}  // namespace spark::ops
