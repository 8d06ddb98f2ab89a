// The deployment repository as configuration sees it: files named relative to its root, never outside it.
//
//   Repository repository("/home/spark/projects/spark-deploy");
//   std::string text = repository.read("config/cluster.json");
//
// Absolute paths, and paths that leave the root by ".." or through a symbolic link, are Errors. `overlay`
// lets a test or an editor put a text in place of a file; nothing is written.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace spark::ops {

class Repository {
 public:
  explicit Repository(std::string root);

  const std::string& root() const { return root_; }

  void overlay(const std::string& path, std::string content) { overlay_[path] = std::move(content); }
  void hide(const std::string& path) { overlay_[path] = std::nullopt; }

  // The normalised relative path; throws Error (where = path) when it is absolute, empty or leaves the
  // repository.
  std::string confine(const std::string& path) const;
  bool exists(const std::string& path) const;  // a readable regular file; false for paths outside
  std::string read(const std::string& path) const;
  std::string absolute(const std::string& path) const { return root_ + "/" + path; }

 private:
  std::string root_;
  std::map<std::string, std::optional<std::string>> overlay_;
};

}  // namespace spark::ops
