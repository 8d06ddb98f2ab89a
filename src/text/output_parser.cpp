#include "text/output_parser.h"

#include <utility>

namespace spark::text {

OutputParser::OutputParser(OutputStart start, OutputParserOptions options)
    : options_(options),
      reasoning_(start, options.tool_calls, options.strictness),
      tool_calls_(start, options.strictness) {}

void OutputParser::sort_events(std::vector<ToolCallEvent> events, OutputDelta& delta) {
  for (ToolCallEvent& event : events) {
    if (event.kind == ToolCallEvent::Kind::kContent) {
      delta.content += event.text;
    } else {
      delta.tool_calls.push_back(std::move(event));
    }
  }
}

OutputDelta OutputParser::parsed(ReasoningParser::Piece piece) {
  OutputDelta out;
  out.reasoning = std::move(piece.reasoning);
  if (options_.tool_calls) {
    sort_events(tool_calls_.push(piece.content), out);
  } else {
    out.content = std::move(piece.content);
  }
  return out;
}

OutputDelta OutputParser::push(std::string_view text) {
  return parsed(reasoning_.push(text));
}

OutputDelta OutputParser::flush(bool ended) {
  OutputDelta out = parsed(reasoning_.flush());
  if (options_.tool_calls) sort_events(tool_calls_.flush(ended), out);
  return out;
}

ParsedOutput parse_output(std::string_view text, OutputStart start, OutputParserOptions options, bool ended) {
  ParsedOutput result;
  OutputParser parser(start, options);
  for (OutputDelta& delta : std::vector<OutputDelta>{parser.push(text), parser.flush(ended)}) {
    result.reasoning += delta.reasoning;
    result.content += delta.content;
    for (ToolCallEvent& event : delta.tool_calls) {
      if (event.kind == ToolCallEvent::Kind::kStart)
        result.tool_calls.push_back({{}, std::move(event.text), {}});
      if (event.kind == ToolCallEvent::Kind::kArguments) result.tool_calls.back().arguments += event.text;
    }
  }
  return result;
}

}  // namespace spark::text
