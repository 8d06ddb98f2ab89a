// What both programs do around their work: what is thrown is said once, on standard error.
//
//   int main(int argc, char** argv) {
//     return spark::app::run_program([&] { return spark::app::run(argc, argv); }, kFailed);
//   }
#pragma once

#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "common/error.h"

namespace spark::app {

// The body's exit code, or `failed` when it throws. `memory_hint` says what to lower when memory runs out.
template <typename Body>
int run_program(const Body& body, int failed, const std::string& memory_hint = {}) {
  try {
    return body();
  } catch (const Error& error) {
    std::cerr << "error: " << error.describe() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "error: out of memory" << (memory_hint.empty() ? "" : "; " + memory_hint) << "\n";
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
  }
  return failed;
}

}  // namespace spark::app
