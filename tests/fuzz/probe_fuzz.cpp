// What a node answers to the probe, as the doctor reads it: any bytes give facts and faults, never a crash,
// and the facts can always be printed.
//
//   build/fuzz/tests/fuzz/probe_fuzz -max_len=65536 corpus/ tests/data/probe
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ops/probe/facts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spark::Faults faults;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const spark::ops::ProbeDump dump = spark::ops::parse_dump(text, faults);
  const spark::ops::Facts facts = spark::ops::read_facts(dump, faults);
  (void)spark::ops::facts_json(facts).dump();
  spark::Faults again;
  const spark::ops::ProbeDump second = spark::ops::parse_dump(spark::ops::format_dump(dump), again);
  if (dump.complete && (!again.empty() || second.files != dump.files)) std::abort();
  return 0;
}
