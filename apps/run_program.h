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
#include "common/system_failure.h"

namespace spark::app {

// For who has printed what was asked for: it must not be lost without a word on a full disk or a closed pipe.
inline void require_written_output() {
  std::cout.flush();
  if (!std::cout) throw Error("cannot be written", "standard output", "check the disk or pipe it goes to");
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
