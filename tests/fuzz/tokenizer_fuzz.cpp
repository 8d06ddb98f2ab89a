// Any bytes as text, and as a stream: encode and decode round trips, the detokenizer against decode(), stop
// strings against a naive search, the output parser against itself with other cuts, tokenizer.json against
// truncation and edits.
#include <cstdlib>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/file.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace spark::text;

void require(bool holds) {
  if (!holds) std::abort();
}

std::string tokenizer_json() {
  static const std::string json = spark::read_file(SPARK_TEST_DATA "/golden/tiny-tokenizer.json");
  return json;
}

const Tokenizer& tokenizer() {
  static const Tokenizer result = Tokenizer::from_json(tokenizer_json(), "tiny");
  return result;
}

void round_trip(std::string_view bytes) {
  const std::string valid = replace_malformed_utf8(bytes);
  require(is_valid_utf8(valid));
  for (const ControlTokens control : {ControlTokens::kAsText, ControlTokens::kRecognised}) {
    const std::vector<int32_t> ids = tokenizer().encode(bytes, control);
    require(tokenizer().decode(ids) == valid);
    Detokenizer detokenizer(tokenizer());
    std::string text;
    for (const int32_t id : ids) {
      require(control == ControlTokens::kRecognised || !tokenizer().is_added(id));
      text += detokenizer.push(id);
      require(is_valid_utf8(text));
    }
    require(text + detokenizer.flush() == valid);
  }
}

void random_ids(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c) + 3);
  Detokenizer detokenizer(tokenizer());
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  require(text + detokenizer.flush() == tokenizer().decode(ids));
}

// The first three bytes give the lengths of two stop strings and the chunk size.
void stop_strings(std::string_view bytes) {
  if (bytes.size() < 8) return;
  const size_t first = static_cast<uint8_t>(bytes[0]) % 5 + 1;
  const size_t second = static_cast<uint8_t>(bytes[1]) % 2 + 1;
  const size_t chunk = static_cast<uint8_t>(bytes[2]) % 7 + 1;
  bytes.remove_prefix(3);
  if (bytes.size() < first + second) return;
  const std::vector<std::string> stops = {std::string(bytes.substr(0, first)),
                                          std::string(bytes.substr(first, second))};
  const std::string text(bytes.substr(first + second));
  std::string expected = text;
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest == 0) continue;
    expected = text.substr(0, end - longest);
    break;
  }
  StopStrings matcher(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += chunk)
    out += matcher.push(std::string_view(text).substr(at, chunk));
  require(out + matcher.flush() == expected);
}

struct Collected {
  std::string text;  // all parts with their kind
  bool refused = false;
  bool operator==(const Collected&) const = default;
};

Collected collect(std::string_view bytes, size_t chunk, OutputStart start, OutputParserOptions options) {
  Collected result;
  std::string reasoning;
  std::string content;
  std::string calls;
  const auto take = [&](const OutputDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallEvent& event : delta.tool_calls) {
      if (event.kind == ToolCallEvent::Kind::kStart) calls += "\x01" + event.text + "\x02";
      if (event.kind == ToolCallEvent::Kind::kArguments) calls += event.text;
      if (event.kind == ToolCallEvent::Kind::kEnd) calls += "\x03";
    }
  };
  try {
    OutputParser parser(start, options);
    for (size_t at = 0; at < bytes.size(); at += chunk) take(parser.push(bytes.substr(at, chunk)));
    take(parser.flush(true));
  } catch (const spark::Error&) {
    require(options.strictness == Strictness::kStrict);
    result.refused = true;
    return result;
  }
  result.text = reasoning + "\x04" + content + "\x04" + calls;
  return result;
}

// Bytes below 16 stand for the pieces of the markup, so that the fuzzer meets its grammar.
std::string with_markup(std::string_view bytes) {
  static const char* const kPieces[] = {"</think>",
                                        "\n\n<｜DSML｜ calls>\n",
                                        "</｜DSML｜ calls>",
                                        "<｜DSML｜ invoke name=\"",
                                        "\">\n",
                                        "</｜DSML｜ invoke>\n",
                                        "<｜DSML｜ parameter name=\"",
                                        "\" string=\"true\">",
                                        "\" string=\"false\">",
                                        "</｜DSML｜ parameter>\n",
                                        "\n",
                                        "<",
                                        "｜DSML｜",
                                        "\"",
                                        "f",
                                        "1"};
  std::string text;
  for (const char c : bytes) {
    if (static_cast<uint8_t>(c) < 16) {
      text += kPieces[static_cast<uint8_t>(c)];
    } else {
      text += c;
    }
  }
  return text;
}

void output(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto flags = static_cast<uint8_t>(bytes[0]);
  const OutputStart start = {.in_reasoning = (flags & 3) == 1, .in_tool_calls = (flags & 3) == 2};
  const std::string text = with_markup(bytes.substr(1));
  for (const Strictness strictness : {Strictness::kTolerant, Strictness::kStrict}) {
    const OutputParserOptions options = {.tool_calls = (flags & 4) == 0, .strictness = strictness};
    const Collected whole = collect(text, text.size() + 1, start, options);
    for (const size_t chunk : {1, 3, 11}) require(collect(text, chunk, start, options) == whole);
  }
}

void broken_file(std::string_view bytes) {
  if (bytes.size() < 6) return;
  std::string json = tokenizer_json();
  const size_t at = (static_cast<uint8_t>(bytes[0]) << 16 | static_cast<uint8_t>(bytes[1]) << 8 |
                     static_cast<uint8_t>(bytes[2])) %
                    json.size();
  json.replace(at, static_cast<uint8_t>(bytes[3]), bytes.substr(4));
  try {
    const Tokenizer changed = Tokenizer::from_json(json, "changed");
    require(changed.decode(changed.encode("a b 1", ControlTokens::kAsText)) == "a b 1");
  } catch (const spark::Error&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
    case 1:
      round_trip(bytes);
      break;
    case 2:
      random_ids(bytes);
      break;
    case 3:
    case 4:
      stop_strings(bytes);
      break;
    case 5:
    case 6:
      output(bytes);
      break;
    default:
      broken_file(bytes);
  }
  return 0;
}
