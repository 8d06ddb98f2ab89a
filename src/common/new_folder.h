// A folder that appears under its name when everything in it is written, or not at all.
//
//   NewFolder folder("netplan");                          // Error: something else than an empty folder is
//   there folder.write("node1/40-cx7.yaml", text, 0600);        // folders on the way are made
//   folder.commit();                                      // without it the destructor removes what was
//   written
//
// A killed process leaves "NAME.XXXXXX" beside the place and nothing under its name.
#pragma once

#include <string>
#include <string_view>

namespace spark {

class NewFolder {
 public:
  explicit NewFolder(std::string place);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void write(const std::string& relative, std::string_view content, unsigned mode = 0644);
  void commit();

 private:
  std::string place_;
  std::string path_;  // empty: committed
};

}  // namespace spark
