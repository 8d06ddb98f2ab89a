// What both programs do around their work: what is thrown is said once, on standard error, and so is a mapped
// file that loses bytes.
//
//   int main(int argc, char** argv) {
//     return spark::app::run_program([&] { return spark::app::run(argc, argv); }, kFailed);
//   }
#pragma once

#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "common/error.h"
#include "common/mapped_fault.h"
#include "common/standard_streams.h"

namespace spark::app {

// For who has printed what was asked for: it must not be lost without a word on a full disk or a closed pipe.
inline void require_written_output() {
  std::cout.flush();
  if (!std::cout) throw Error("cannot be written", "standard output", "check the disk or pipe it goes to");
}

// A refused thread has no name and no path; every other error of the system here has.
inline Error explained(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) return Error(error.what());
  return Error("a thread cannot be started: " + error.code().message(), "",
               "raise the limits of address space (ulimit -v) and of threads (ulimit -u, a container's limit "
               "of processes), or use fewer threads");
}

// The body's exit code, or `failed` when it throws. `memory_hint` says what to lower when memory runs out.
template <typename Body>
int run_program(const Body& body, int failed, const std::string& memory_hint = {}) {
  fill_standard_streams();
  explain_lost_pages(failed);
  try {
    return body();
  } catch (const Error& error) {
    std::cerr << "error: " << error.describe() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "error: out of memory" << (memory_hint.empty() ? "" : "; " + memory_hint) << "\n";
  } catch (const std::system_error& error) {
    std::cerr << "error: " << explained(error).describe() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "error: " << Error(error.what()).describe() << "\n";
  }
  return failed;
}

}  // namespace spark::app
