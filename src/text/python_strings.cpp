#include "text/python_strings.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "text/unicode.h"

namespace spark::text {
namespace {

int python_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 16;
}

class PythonReader {
 public:
  PythonReader(std::string_view module, const std::string& source) : module_(module), source_(source) {
    result_.code = module;
  }

  PythonStrings read() {
    while (at_ < module_.size()) {
      const std::string name(take_name());
      if (!name.empty()) read_assignment(name);
      skip_line();
    }
    return std::move(result_);
  }

 private:
  bool ended() const { return at_ >= module_.size(); }
  char now() const { return ended() ? '\n' : module_[at_]; }
  bool sees(std::string_view text) const { return module_.substr(at_).starts_with(text); }
  // A backslash takes the next character along.
  void pass_character() { at_ = std::min(at_ + (now() == '\\' ? 2 : 1), module_.size()); }

  std::string_view take_name() {
    const size_t begin = at_;
    while (!ended() && is_python_name_byte(now())) ++at_;
    return module_.substr(begin, at_ - begin);
  }

  void skip_blanks() {
    while (!ended() && (now() == ' ' || now() == '\t')) ++at_;
  }

  // What follows the name that begins a line.
  void read_assignment(const std::string& name) {
    skip_blanks();
    if (now() == ':') {
      while (!ended() && now() != '=' && now() != '\n' && now() != '#' && now() != '"' && now() != '\'')
        ++at_;
    }
    const bool appends = sees("+=");
    if ((now() != '=' && !appends) || sees("==")) return;
    at_ += appends ? 2 : 1;
    const auto known = result_.values.extract(name);
    result_.unreadable.erase(name);
    skip_blanks();
    const bool raw = (now() == 'r' || now() == 'R') && at_ + 1 < module_.size();
    if (raw || now() == 'u' || now() == 'U') ++at_;
    if (now() != '"' && now() != '\'') return;
    const Literal literal = pass_literal();
    skip_blanks();
    if ((now() != '\n' && now() != '#') || (appends && known.empty())) return;
    try {
      result_.values[name] = (appends ? known.mapped() : std::string()) + value_of(literal, raw);
    } catch (const Error& error) {
      result_.unreadable.emplace(name, error);
    }
  }

  // To the next line, over the literals of this one; a triple-quoted literal takes its lines along.
  void skip_line() {
    while (!ended() && now() != '\n') {
      if (now() == '#') {
        const size_t end = std::min(module_.find('\n', at_), module_.size());
        blank_out(at_, end);
        at_ = end;
      } else if (now() == '"' || now() == '\'') {
        pass_literal();
      } else {
        pass_character();  // a line break behind a backslash ends no line
      }
    }
    if (!ended()) ++at_;
  }

  struct Literal {
    size_t begin, end;  // between the quotes
  };

  Literal pass_literal() {
    const size_t start = at_;
    const char quote = now();
    const bool triple = sees(std::string(3, quote));
    const std::string closing(triple ? 3 : 1, quote);
    at_ += closing.size();
    const size_t begin = at_;
    while (!sees(closing)) {
      if (ended() || (!triple && now() == '\n')) fail(start, "a string that begins here does not end");
      pass_character();
    }
    const Literal literal = {begin, at_};
    blank_out(begin, at_);
    at_ += closing.size();
    return literal;
  }

  void blank_out(size_t begin, size_t end) {
    std::fill(result_.code.begin() + static_cast<std::ptrdiff_t>(begin),
              result_.code.begin() + static_cast<std::ptrdiff_t>(end), ' ');
  }

  std::string value_of(const Literal& literal, bool raw) const {
    const auto [begin, end] = literal;
    if (raw) return std::string(module_.substr(begin, end - begin));
    std::string value;
    for (size_t i = begin; i < end;) {
      if (module_[i] == '\\') {
        append_escape(i, end, value);
      } else {
        value += module_[i++];
      }
    }
    return value;
  }

  void append_escape(size_t& i, size_t end, std::string& out) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    const char letter = module_[i + 1];  // a literal never ends with a single backslash
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      out += kValues[known];
      i += 2;
    } else if (letter == '\n') {
      i += 2;
    } else if (letter >= '0' && letter <= '7') {
      append_number(i, i + 1, std::min(end, i + 4), 8, 1, out);
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      append_number(i, i + 2, std::min(end, i + 2 + digits), 16, digits, out);
    } else if (letter == 'N') {
      fail(i, "the escape \\N{...} is not supported");
    } else {
      out += '\\';  // Python keeps what it does not know
      ++i;
    }
  }

  // The code point that the digits in [from, to) spell; `i` goes behind them.
  void append_number(size_t& i, size_t from, size_t to, int base, size_t least, std::string& out) const {
    uint32_t code_point = 0;
    size_t at = from;
    for (; at < to && python_digit(module_[at]) < base; ++at) {
      code_point =
          code_point * static_cast<uint32_t>(base) + static_cast<uint32_t>(python_digit(module_[at]));
    }
    const bool is_scalar = code_point < 0xD800 || (code_point > 0xDFFF && code_point <= 0x10FFFF);
    if (at - from < least || !is_scalar) fail(i, "an escape names no character");
    append_utf8(code_point, out);
    i = at;
  }

  [[noreturn]] void fail(size_t at, const std::string& what) const {
    const auto line =
        std::count(module_.begin(), module_.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
    throw Error(what, source_ + ":" + std::to_string(line), "download the file again");
  }

  std::string_view module_;
  const std::string& source_;
  size_t at_ = 0;
  PythonStrings result_;
};

// Python reads every line end as \n, in literals too.
std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  return out;
}

}  // namespace

bool is_python_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

PythonStrings python_strings(std::string_view module, const std::string& source) {
  return PythonReader(with_plain_line_ends(module), source).read();
}

}  // namespace spark::text
