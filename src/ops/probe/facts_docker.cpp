// Docker, the service's container, images.
#include "ops/probe/text_reader.h"

namespace spark::ops::probe {
namespace {

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& object_at(const Json& object, const char* key) {
  static const Json kNone = Json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kNone;
}

std::vector<std::string> strings_at(const Json& object, const char* key) {
  std::vector<std::string> words;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return words;
  for (const Json& item : *found) {
    if (item.is_string()) words.push_back(item.get<std::string>());
  }
  return words;
}

bool flag_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

int64_t number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::map<std::string, std::string> environment_of(const Json& config) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : strings_at(config, "Env")) {
    const size_t equals = entry.find('=');
    variables[entry.substr(0, equals)] =
        equals == std::string::npos ? std::string() : entry.substr(equals + 1);
  }
  return variables;
}

// docker inspect prints an array of one object; "No such container" is an answer too.
enum class Inspected { kUnknown, kAbsent, kFound };

Inspected inspect(const FactReader& reader, const std::string& section, Json& object) {
  const CommandAnswer* answer = reader.dump().command(section);
  if (answer == nullptr) return Inspected::kUnknown;
  if (!answer->ok()) {
    if (answer->error.find("No such") != std::string::npos) return Inspected::kAbsent;
    reader.facts().failures[section] = answer->failure();
    return Inspected::kUnknown;
  }
  const Json document = reader.json(section);
  if (!document.is_array() || document.size() != 1 || !document[0].is_object()) {
    if (!document.is_null()) reader.fault(section, "is not the output of docker inspect");
    return Inspected::kUnknown;
  }
  object = document[0];
  return Inspected::kFound;
}

ImageFacts image_of(const Json& object) {
  ImageFacts image;
  image.id = text_at(object, "Id");
  const Json& config = object_at(object, "Config");
  const Json& labels = object_at(config, "Labels");
  for (auto it = labels.begin(); it != labels.end(); ++it) {
    if (it->is_string()) image.labels[it.key()] = it->get<std::string>();
  }
  image.environment = environment_of(config);
  return image;
}

ContainerFacts container_of(const Json& object) {
  ContainerFacts container;
  const Json& state = object_at(object, "State");
  const Json& config = object_at(object, "Config");
  const Json& host = object_at(object, "HostConfig");
  container.running = flag_at(state, "Running");
  container.exit_code = number_at(state, "ExitCode");
  container.oom_killed = flag_at(state, "OOMKilled");
  container.image = text_at(config, "Image");
  container.image_id = text_at(object, "Image");
  container.command = strings_at(config, "Cmd");
  container.environment = environment_of(config);
  for (const std::string& bind : strings_at(host, "Binds")) {
    const auto parts = split(bind, ':');
    if (parts.size() >= 2) container.binds[parts[1]] = {parts[0], parts.size() > 2 ? parts[2] : "rw"};
  }
  container.network_mode = text_at(host, "NetworkMode");
  container.ipc_mode = text_at(host, "IpcMode");
  container.memory_bytes = number_at(host, "Memory");
  container.restart_policy = text_at(object_at(host, "RestartPolicy"), "Name");
  return container;
}

template <typename Seen>
void read_inspected(const FactReader& reader, const std::string& section, std::optional<bool>& exists,
                    std::optional<Seen>& seen, Seen (*read)(const Json&)) {
  Json object;
  const Inspected found = inspect(reader, section, object);
  if (found != Inspected::kUnknown) exists = found == Inspected::kFound;
  if (found == Inspected::kFound) seen = read(object);
}

void read_engine(const FactReader& reader) {
  DockerFacts& docker = reader.facts().docker;
  const Json info = reader.json("docker-info");
  if (!info.is_object()) return;
  // Without a daemon docker info still prints an object, with its complaints in ServerErrors.
  const std::vector<std::string> errors = strings_at(info, "ServerErrors");
  if (!errors.empty()) {
    reader.facts().failures["docker-info"] = "failed: " + errors[0];
    return;
  }
  docker.server_version = text_at(info, "ServerVersion");
  docker.answers = !docker.server_version.empty();
  docker.storage_driver = text_at(info, "Driver");
  docker.root_folder = text_at(info, "DockerRootDir");
  const Json& runtimes = object_at(info, "Runtimes");
  for (auto it = runtimes.begin(); it != runtimes.end(); ++it) docker.runtimes.insert(it.key());
  const CommandAnswer* running = reader.answer("docker-containers");
  if (running == nullptr) return;
  for (const std::string& line : lines_of(running->output)) {
    const auto words = words_of(line);
    if (words.size() == 3) docker.running.push_back({words[0], words[1], words[2]});
  }
}

}  // namespace

void read_docker(const FactReader& reader) {
  DockerFacts& docker = reader.facts().docker;
  read_engine(reader);
  read_inspected(reader, "container", docker.container_exists, docker.container, container_of);
  read_inspected(reader, "image", docker.image_exists, docker.image, image_of);
  std::optional<bool> exists;
  read_inspected(reader, "container-image", exists, docker.container_image, image_of);
}

}  // namespace spark::ops::probe
