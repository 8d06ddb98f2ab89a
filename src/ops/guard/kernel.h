// What the guard asks of the kernel: samples of memory, and protection for itself.
#pragma once

#include "common/descriptor.h"
#include "ops/guard/options.h"
#include "ops/guard/report.h"

namespace spark::ops {

class MemorySource {
 public:
  explicit MemorySource(const GuardOptions& options);
  void sample(GuardStatus& status);  // available_kib, minimum_kib, pressure, swapped_in_pages, driver_errors

 private:
  void read_swap(GuardStatus& status);
  void read_kernel_log(GuardStatus& status);

  Descriptor meminfo_;
  Descriptor pressure_;  // absent where the kernel keeps no pressure figures
  Descriptor vmstat_;
  int64_t swapped_before_ = -1;  // pages at the first sample; negative: no sample yet
  Descriptor kernel_log_;        // absent without the right to read it
};

struct SelfProtection {
  bool locked = false;         // mlockall: none of its pages can be paged out
  bool oom_protected = false;  // oom_score_adj -1000, by the unit or by itself
};
SelfProtection protect_self();

// Whether a kernel log record is the NVIDIA driver running out of memory.
bool is_driver_out_of_memory(std::string_view record);

// "0.00" of the line "full avg10=0.00 ..."; empty when there is none.
std::string_view full_pressure(std::string_view text);

// To a supervising systemd, if there is one: "READY=1", "WATCHDOG=1", "STATUS=...".
class Supervisor {
 public:
  Supervisor();
  void tell(std::string_view message);

 private:
  Descriptor socket_;
};

}  // namespace spark::ops
