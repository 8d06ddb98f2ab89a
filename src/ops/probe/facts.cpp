#include "ops/probe/facts.h"

#include "ops/probe/text_reader.h"

namespace spark::ops {

const Link* NetworkFacts::link(const std::string& name) const {
  if (!links) return nullptr;
  for (const Link& entry : *links) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

const RdmaDevice* NetworkFacts::device(const std::string& name) const {
  for (const RdmaDevice& entry : rdma) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string Facts::why(const std::string& section) const {
  const auto found = failures.find(section);
  return found == failures.end() ? "gave no answer" : found->second;
}

Facts read_facts(const ProbeDump& dump, Faults& faults) {
  Facts facts;
  const probe::FactReader reader(dump, facts, faults);
  probe::read_identity(reader);
  probe::read_kernel(reader);
  probe::read_boot(reader);
  probe::read_memory(reader);
  probe::read_links(reader);
  probe::read_rdma(reader);
  probe::read_gpu(reader);
  probe::read_host(reader);
  probe::read_service(reader);
  probe::read_docker(reader);
  probe::read_model(reader);
  probe::read_deployment(reader);
  return facts;
}

}  // namespace spark::ops
