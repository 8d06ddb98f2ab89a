#include "text/output_parser.h"

#include <utility>

namespace spark::text {

OutputParser::OutputParser(OutputStage stage, OutputParserOptions options)
    : options_(options),
      reasoning_(stage, options.strictness, options.tool_calls),
      tool_calls_(stage, options.strictness) {}

void OutputParser::sort_events(std::vector<ToolCallEvent> events, OutputDelta& delta) {
  for (ToolCallEvent& event : events) {
    if (event.kind == ToolCallEvent::Kind::kContent) {
      delta.content += event.text;
    } else {
      delta.tool_calls.push_back(std::move(event));
    }
  }
}

OutputDelta OutputParser::parsed(ReasoningParser::Delta delta) {
  OutputDelta out;
  out.reasoning = std::move(delta.reasoning);
  if (options_.tool_calls) {
    sort_events(tool_calls_.push(delta.content), out);
  } else {
    out.content = std::move(delta.content);
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

ParsedOutput parse_output(std::string_view text, OutputStage stage, OutputParserOptions options, bool ended) {
  ParsedOutput result;
  OutputParser parser(stage, options);
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
