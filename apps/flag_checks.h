// Checks of flags that CLI11's own do not make: it reads "-1" and numbers of thirty digits into unsigned
// flags, and lets NaN through every range.
//
//   app.add_option("--seed", seed, "...")->check(whole_number());
//   app.add_option("--timeout", timeout_s, "...")->check(number_between(0, 86400));
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace spark::app {

inline CLI::Validator whole_number() {
  return {[](const std::string& text) {
            uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_one = error == std::errc() && end == text.data() + text.size();
            return is_one ? std::string() : text + " is no whole number from 0 to 18446744073709551615";
          },
          "", "whole number"};
}

inline CLI::Validator number_between(double low, double high) {
  return {[low, high](const std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool fits = !text.empty() && *end == '\0' && value >= low && value <= high;
            return fits ? std::string()
                        : text + " is no number from " + CLI::detail::to_string(low) + " to " +
                              CLI::detail::to_string(high);
          },
          "", "number between"};
}

inline CLI::Validator not_empty() {
  return {
      [](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); },
      "", "not empty"};
}

}  // namespace spark::app
