// Base of the one-pass JSON readers of this room: every event is refused unless the reader takes it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/error.h"

namespace spark::engine {

class StrictSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictSax(std::string subject, std::string path, std::string hint)
      : subject_(std::move(subject)), path_(std::move(path)), hint_(std::move(hint)) {}

  // Runs the text through this reader. Throws Error on any fault.
  void parse(std::string_view text) {
    // The library takes a NUL for the end of the text.
    if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
      fail("is not valid JSON at byte " + std::to_string(nul) + ": a NUL character");
    }
    nlohmann::json::sax_parse(text.begin(), text.end(), this);
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is not a 64-bit integer");
  }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_object(std::size_t) override { return refuse("an object"); }
  bool start_array(std::size_t) override { return refuse("an array"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    if (const size_t excerpt = reason.find("; last read"); excerpt != std::string::npos)
      reason.erase(excerpt);
    fail("is not valid JSON at byte " + std::to_string(position) + ": " + reason);
  }

 protected:
  // Says what stands at the current place, such as `"shape" of "embed.weight"`, and what must stand there.
  virtual std::string place() const = 0;

  bool refuse(const std::string& what) {
    throw Error(subject_ + ": " + place() + ", not " + what, path_, hint_);
  }
  [[noreturn]] void fail(const std::string& what) const { throw Error(subject_ + " " + what, path_, hint_); }

 private:
  std::string subject_;
  std::string path_;
  std::string hint_;
};

}  // namespace spark::engine
