// The `spark` command: one file per command beside this one.
#include <cstdio>

int main() {
  std::puts("usage: spark COMMAND");
  return 2;
}
