// spark-guard: kills a service before the machine runs out of memory. docs/guard.md.
#include <unistd.h>

#include "common/standard_streams.h"
#include "ops/guard/guard.h"

namespace {

void print(int fd, std::string_view text) {
  [[maybe_unused]] const auto ignored = ::write(fd, text.data(), text.size());
}

}  // namespace

int main(int argc, char** argv) {
  using namespace spark::ops;
  spark::fill_standard_streams();
  const GuardCommand command = read_guard_command(argc, argv, environ);
  if (!command.fault.empty()) {
    print(2, "spark-guard: ");
    print(2, command.fault.view());
    print(2, "\nspark-guard --help tells its flags\n");
    return 2;
  }
  switch (command.request) {
    case GuardRequest::kHelp:
      print(1, kGuardUsage);
      return 0;
    case GuardRequest::kVersion:
      print(1, "spark-guard " SPARK_VERSION "\n");
      return 0;
    case GuardRequest::kStatus:
      return print_guard_status(command.options);
    case GuardRequest::kSwitch:
      return switch_guard(command.options);
    case GuardRequest::kGuard:
      break;
  }
  return run_guard(command.options);
}
