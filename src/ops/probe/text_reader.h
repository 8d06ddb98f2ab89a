// Small readers of command outputs, shared by the facts_*.cpp files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/probe/facts.h"

namespace spark::ops::probe {

std::vector<std::string> lines_of(std::string_view text);
std::vector<std::string> words_of(std::string_view text);  // separated by blanks and tabs
std::vector<std::string> split(std::string_view text, char separator);
std::string trimmed(std::string_view text);
std::optional<double> decimal(std::string_view text);  // finite; nothing else around it

// A dump and the faults that reading it finds. Every reader records one fault per thing that is there but
// makes no sense, and returns nothing for it.
class FactReader {
 public:
  FactReader(const ProbeDump& dump, Facts& facts, Faults& faults)
      : dump_(dump), facts_(facts), faults_(faults) {}

  const ProbeDump& dump() const { return dump_; }
  Facts& facts() const { return facts_; }

  std::string text(const std::string& path) const;  // first line of a file; "" when there is none
  std::optional<int64_t> number(const std::string& path) const;
  // The output of a command that succeeded; null, with a note in facts.failures, otherwise.
  const CommandAnswer* answer(const std::string& command) const;
  // The same, parsed as JSON; null (of nlohmann) when it is not.
  Json json(const std::string& command) const;
  void fault(const std::string& where, const std::string& what) const;

 private:
  const ProbeDump& dump_;
  Facts& facts_;
  Faults& faults_;
};

void read_identity(const FactReader& reader);
void read_kernel(const FactReader& reader);
void read_boot(const FactReader& reader);
void read_memory(const FactReader& reader);
void read_links(const FactReader& reader);
void read_rdma(const FactReader& reader);
void read_gpu(const FactReader& reader);
void read_host(const FactReader& reader);
void read_service(const FactReader& reader);
void read_docker(const FactReader& reader);
void read_model(const FactReader& reader);
void read_deployment(const FactReader& reader);

}  // namespace spark::ops::probe
