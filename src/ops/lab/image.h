// A container image with one program and the libraries that it loads, built without a registry and without a
// container engine: a docker-archive whose bytes depend on its content only, so that every node that loads it
// has the same image ID.
//
//   ImageSpec spec = {.program = "build/release/apps/spark-engine", .tag = "spark-engine:lab"};
//   std::string id = write_image(spec, "/srv/lab/work", "/srv/lab/shared/image.tar");
#pragma once

#include <string>
#include <vector>

namespace spark::ops {

struct ImageSpec {
  std::string program;  // becomes /usr/bin/NAME and the entry point
  std::string tag;
};

// Paths of the shared libraries and the loader that `ldd` names, empty for a static program.
std::vector<std::string> libraries_of(const std::string& program);

// The image ID ("sha256:..."). `work` is a folder for the tree; it is created and removed.
std::string write_image(const ImageSpec& spec, const std::string& work, const std::string& archive);

}  // namespace spark::ops
