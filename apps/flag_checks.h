// Checks of flags that CLI11's own do not make: it reads "-1" and numbers of thirty digits into unsigned
// flags, lets NaN through every range, and takes 010 for eight.
//
//   app.add_option("--seed", seed, "...")->check(whole_number());
//   app.add_option("--timeout", timeout_s, "...")->check(number_between(0, 86400));
//   add_choice(app, "--color", color, {{"auto", kAuto}, {"never", kNever}}, "...");
//   check_written_values(app);      // after the last flag: what no flag's value may be
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace spark::app {

// Digits alone, as a person writes them: no sign but "-", no 0x, no leading zeros, which would be octal.
inline bool is_decimal(const std::string& text) {
  const size_t first = text.starts_with('-') ? 1 : 0;
  const size_t digits = text.size() - first;
  if (digits == 0 || (digits > 1 && text[first] == '0') || text == "-0") return false;
  return text.find_first_not_of("0123456789", first) == std::string::npos;
}

inline CLI::Validator whole_number() {
  return {[](const std::string& text) {
            uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_one = is_decimal(text) && error == std::errc() && end == text.data() + text.size();
            return is_one ? std::string() : text + " is no whole number from 0 to 18446744073709551615";
          },
          "", "whole number"};
}

inline CLI::Validator number_between(double low, double high) {
  return {[low, high](const std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool fits =
                error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
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

inline CLI::Validator valid_utf8() {
  return {[](const std::string& text) {
            return text::is_valid_utf8(text) ? std::string() : std::string("must be valid UTF-8");
          },
          "", "valid UTF-8"};
}

inline CLI::Validator decimal() {
  return {[](const std::string& text) {
            return is_decimal(text) ? std::string()
                                    : "\"" + text + "\" is no whole number in plain decimal digits";
          },
          "", "decimal"};
}

// A flag whose value is one of a few words. CLI11's transformers of names into values print the values, and
// take them, too: an enum of bytes puts a NUL into messages. The names are in lower case; a value in any case
// is taken.
template <typename Value>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, Value& value,
                        const std::vector<std::pair<std::string, Value>>& choices,
                        const std::string& description) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  const auto take = [&value, choices](const std::string& text) {
    const std::string name = CLI::detail::to_lower(text);
    value = std::find_if(choices.begin(), choices.end(), [&](const auto& choice) {
              return choice.first == name;
            })->second;
  };
  return app.add_option_function<std::string>(flag, take, description)
      ->check(CLI::IsMember(names, CLI::ignore_case));
}

// What holds for every flag with a value, so that no flag can forget it: the value is not empty, and a whole
// number is written in decimal digits. Call it after the last flag has been added.
inline void check_written_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_min() == 0) continue;  // a switch
    const std::string type = option->get_type_name();
    // transform() puts a check before the flag's own, whose message would be beside the point.
    if (type.starts_with("INT") || type.starts_with("UINT")) option->transform(decimal());
    option->transform(not_empty());
  }
}

}  // namespace spark::app
