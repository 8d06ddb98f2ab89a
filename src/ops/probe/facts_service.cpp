// Ranks that run as processes, and the memory guard.
#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops {

bool ServiceFacts::guarded() const {
  if (!guard_alive || !guard) return false;
  const auto state = guard->find("state");
  return state != guard->end() && state->second == "watching";
}

namespace probe {
namespace {

// "absent", "running PID", "ended PID"
void read_process(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("service-process");
  if (answer == nullptr) return;
  const auto words = words_of(answer->output);
  if (words.size() == 1 && words[0] == "absent") {
    reader.facts().service.process = ServiceFacts::Process{};
    return;
  }
  const auto pid = words.size() == 2 ? whole_number(words[1]) : std::nullopt;
  if (!pid || (words[0] != "running" && words[0] != "ended"))
    return reader.fault("service-process", "is \"" + answer->output.substr(0, 60) + "\"");
  reader.facts().service.process = ServiceFacts::Process{true, words[0] == "running", *pid};
}

void read_guard(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("guard");
  if (answer == nullptr) return;
  std::map<std::string, std::string> values;
  for (const std::string& line : lines_of(answer->output)) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  ServiceFacts& service = reader.facts().service;
  service.guard_alive = values["alive"] == "1";
  values.erase("alive");
  service.guard = std::move(values);
}

}  // namespace

void read_service(const FactReader& reader) {
  reader.answer("guard-program");  // that it runs; facts.failures says why it does not
  read_process(reader);
  read_guard(reader);
}

}  // namespace probe
}  // namespace spark::ops
