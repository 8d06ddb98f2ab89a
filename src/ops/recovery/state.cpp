#include "ops/recovery/state.h"

#include <unistd.h>

#include <filesystem>

#include "common/json.h"
#include "ops/recovery/change.h"

namespace spark::ops {
namespace {

// File contents may be anything; JSON carries text only.
std::string hex_of(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::string bytes_of(const JsonReader& reader) {
  const std::string text = reader.string();
  std::string bytes;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) reader.fault("has an odd number of digits");
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      reader.fault("is not hexadecimal");
      return {};
    }
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

// As an apply writes them: "/etc/sysctl.d", never "etc", "/" or "/etc/../x".
std::string read_path(const JsonReader& reader) {
  const std::string path = reader.string();
  const std::filesystem::path parts(path);
  // By their text: paths that differ in a doubled slash only compare equal.
  if (!parts.is_absolute() || !parts.has_filename() || parts.lexically_normal().string() != path)
    reader.fault("is no plain absolute path");
  return path;
}

RecoveryState::File read_entry(const JsonReader& reader) {
  RecoveryState::File file;
  file.path = read_path(reader.field("path"));
  file.existed = reader.field("existed").boolean();
  if (!file.existed) return file;
  file.before.link = reader.field("link").string();
  file.before.mode = static_cast<unsigned>(reader.field("mode").integer(0, 07777));
  file.before.owner = static_cast<unsigned>(reader.field("owner").integer(0, UINT32_MAX));
  file.before.group = static_cast<unsigned>(reader.field("group").integer(0, UINT32_MAX));
  file.before.content = bytes_of(reader.field("content_hex"));
  return file;
}

Json entry_json(const RecoveryState::File& file) {
  if (!file.existed) return {{"path", file.path}, {"existed", false}};
  return {{"path", file.path},
          {"existed", true},
          {"link", file.before.link},
          {"mode", file.before.mode},
          {"owner", file.before.owner},
          {"group", file.before.group},
          {"content_hex", hex_of(file.before.content)}};
}

}  // namespace

const RecoveryState::File* RecoveryState::find(const std::string& path) const {
  for (const File& file : files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

RecoveryState load_state(const Host& host) {
  RecoveryState state;
  const auto stored = host.file(kRecoveryState);
  if (!stored) return state;
  Faults faults;
  const Json document = parse_json(stored->content, kRecoveryState);
  const JsonReader reader(document, "", faults);
  reader.reject_unknown({"schema_version", "files", "folders", "units", "sysctl"});
  reader.field("schema_version").integer(1, 1);
  for (const JsonReader& item : reader.field("files").items()) state.files.push_back(read_entry(item));
  for (const JsonReader& item : reader.field("folders").items()) state.folders.push_back(read_path(item));
  for (const JsonReader& item : reader.field("units").items())
    state.units.push_back(
        {item.field("name").string(), item.field("enabled").boolean(), item.field("active").boolean()});
  for (const JsonReader& item : reader.field("sysctl").items())
    state.sysctl.emplace_back(item.field("name").string(), item.field("value").string());
  throw_if_any(faults, kRecoveryState, "it was not written by this program; move it away to start anew");
  return state;
}

void save_state(Host& host, RecoveryState& state) {
  // The state's own folders go last. They are named in it before they are there.
  const std::vector<std::string> missing = host.missing_folders(kRecoveryState);
  state.folders.insert(state.folders.begin(), missing.begin(), missing.end());
  Json json = {{"schema_version", 1},
               {"files", Json::array()},
               {"folders", Json::array()},
               {"units", Json::array()},
               {"sysctl", Json::array()}};
  for (const auto& file : state.files) json["files"].push_back(entry_json(file));
  for (const std::string& folder : state.folders) json["folders"].push_back(folder);
  for (const auto& unit : state.units)
    json["units"].push_back({{"name", unit.name}, {"enabled", unit.enabled}, {"active", unit.active}});
  for (const auto& [name, value] : state.sysctl) json["sysctl"].push_back({{"name", name}, {"value", value}});
  host.write(kRecoveryState, {0600, ::geteuid(), ::getegid(), json.dump(1) + "\n", {}});
}

void drop_state(Host& host) {
  host.remove_unfinished(kRecoveryState);
  host.remove(kRecoveryState);
}

}  // namespace spark::ops
