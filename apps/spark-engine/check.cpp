#include "check.h"

#include <iostream>

#include "attempt.h"
#include "common/error.h"
#include "common/json.h"
#include "common/units.h"
#include "engine/checkpoint/inspect.h"
#include "prepare.h"
#include "text/tool_text.h"

namespace spark::app {
namespace {

void print(const Prepared& prepared, const EngineFlags& flags, const std::string& address) {
  const engine::CacheLimits& limits = prepared.load.limits;
  std::cout << "model      " << prepared.load.folder << "\n"
            << "served as  " << prepared.service.served_names.front() << "\n"
            << "backend    " << prepared.load.backend << "\n"
            << "sequences  " << limits.max_sequences << " of up to "
            << format_count(static_cast<uint64_t>(limits.max_context)) << " tokens, " << limits.max_step_rows
            << " tokens a step\n"
            << "ranks      " << flags.ranks.tensor_parallel_size << ", this is rank " << flags.ranks.rank()
            << ", partial sums in " << engine::name_of(prepared.load.collective_dtype) << "\n"
            << "tools      "
            << (prepared.service.tool_text ? "described by " : "refused: the model's folder has no ")
            << text::kToolTextPath << "\n"
            << "address    " << (address.empty() ? "none: rank 0 serves the API" : address)
            << (!address.empty() && flags.api_keys.empty() && !is_local(flags.http)
                    ? ", open to anyone: no key"
                    : "")
            << "\n\n"
            << prepared.memory.text();
  const auto available = engine::memory_available_to(prepared.load.backend);
  if (available) std::cout << "\navailable: " << format_bytes(*available) << "\n";
}

}  // namespace

int check(const EngineFlags& flags) {
  Faults faults = flags.key_faults;
  engine::Inspection checkpoint;
  const bool was_inspected =
      attempt(&faults, [&] { checkpoint = engine::inspect_checkpoint(flags.model.folder); });
  for (Fault& fault : checkpoint.faults) faults.push_back(std::move(fault));
  Prepared prepared;
  if (was_inspected && checkpoint.faults.empty()) {
    prepared = prepare(flags, &faults);
  } else {  // which has been told what a start would stumble over
    check_flags(flags, checkpoint.config, faults);
  }
  std::string address;
  if (flags.ranks.rank() == 0) {
    attempt(&faults, [&] { address = engine::HttpServer(flags.http).address(); });
  }
  throw_if_any(faults, "this would not start");
  print(prepared, flags, address);
  std::cout << "\nready to start\n";
  return 0;
}

}  // namespace spark::app
