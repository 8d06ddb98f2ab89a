// The machine that a policy is applied to: its files below a root folder, and the commands that change its
// state. With the root "/" it is this machine; with any other folder only files are touched, all of them
// inside it whatever links say, and the commands are listed instead of run, which is how the tests and a dry
// run work.
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
  // The folders that write() would create, outermost first.
  std::vector<std::string> missing_folders(const std::string& path) const;
  // Creates missing folders (0755). Atomic.
  void write(const std::string& path, const HostFile& file);
  // What a write() that was killed has left beside the file.
  void remove_unfinished(const std::string& path);
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
