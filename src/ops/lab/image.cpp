#include "ops/lab/image.h"

#include <sys/utsname.h>

#include <filesystem>
#include <sstream>

#include "common/error.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/process.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEpoch = "1970-01-01T00:00:00Z";

std::string architecture() {
  utsname name = {};
  ::uname(&name);
  const std::string machine = name.machine;
  if (machine == "x86_64") return "amd64";
  if (machine == "aarch64") return "arm64";
  return machine;
}

void copy_into(const fs::path& root, const std::string& path, const fs::path& target) {
  const fs::path place = root / target.relative_path();
  fs::create_directories(place.parent_path());
  fs::copy_file(path, place,
                fs::copy_options::overwrite_existing);  // follows links: the image has files only
}

// The same bytes for the same tree.
void pack(const fs::path& folder, const std::string& archive) {
  const ProcessResult result =
      run_process({"tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner",
                   "--format=gnu", "-C", folder, "-cf", archive, "."},
                  {.timeout_s = 120});
  if (result.exit_code != 0) throw Error("tar failed: " + result.error, archive);
}

std::string digest_of(const std::string& path) {
  const MappedFile file(path);
  return sha256_hex({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

}  // namespace

std::vector<std::string> libraries_of(const std::string& program) {
  const ProcessResult result = run_process({"ldd", program}, {.environment = {"LC_ALL=C"}});
  if (result.exit_code != 0) {
    if (result.error.find("not a dynamic") != std::string::npos) return {};
    throw Error("ldd failed: " + result.error + result.output, program);
  }
  std::vector<std::string> paths;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("not found") != std::string::npos)
      throw Error("needs a library that is missing:" + line, program);
    if (line.find("statically linked") != std::string::npos) return {};
    const size_t begin = line.find('/');
    if (begin == std::string::npos) continue;  // linux-vdso
    paths.push_back(line.substr(begin, line.find(" (", begin) - begin));
  }
  return paths;
}

std::string write_image(const ImageSpec& spec, const std::string& work, const std::string& archive) {
  const fs::path top = work;
  const fs::path tree = top / "tree";
  const fs::path parts = top / "archive";
  fs::remove_all(top);
  fs::create_directories(tree / "tmp");
  fs::create_directories(parts);
  const std::string entry = "/usr/bin/" + fs::path(spec.program).filename().string();
  copy_into(tree, spec.program, entry);
  for (const std::string& library : libraries_of(spec.program)) copy_into(tree, library, library);
  pack(tree, parts / "layer.tar");
  const Json config = {
      {"architecture", architecture()},
      {"os", "linux"},
      {"created", kEpoch},
      {"config",
       {{"Entrypoint", {entry}},
        {"Env", {"PATH=/usr/bin"}},
        {"Labels", {{"local.spark.program.sha256", digest_of(spec.program)}}}}},
      {"rootfs", {{"type", "layers"}, {"diff_ids", {"sha256:" + digest_of(parts / "layer.tar")}}}},
      {"history", {{{"created", kEpoch}, {"created_by", "spark lab"}}}}};
  const std::string text = config.dump();
  const std::string id = sha256_hex(text);
  write_file_atomic(parts / (id + ".json"), text);
  const Json manifest = {{{"Config", id + ".json"}, {"RepoTags", {spec.tag}}, {"Layers", {"layer.tar"}}}};
  write_file_atomic(parts / "manifest.json", manifest.dump());
  pack(parts, archive);
  fs::remove_all(top);
  return "sha256:" + id;
}

}  // namespace spark::ops
