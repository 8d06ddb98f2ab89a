// Reasoning and tool calls in the model's output: fixtures, and the same result however the stream is cut.
#include <gtest/gtest.h>

#include <random>

#include "common/error.h"
#include "text/chat.h"
#include "text/output_parser.h"
#include "unit/text/case_file.h"

namespace spark::text {
namespace {

Json as_json(const ParsedOutput& output) {
  Json calls = Json::array();
  for (const ToolCall& call : output.tool_calls)
    calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return {{"reasoning", output.reasoning}, {"content", output.content}, {"calls", calls}};
}

ParsedOutput parse_in_pieces(const std::string& text, OutputStart start, OutputParserOptions options,
                             bool ended, size_t (*next_length)(std::mt19937&), std::mt19937& random) {
  ParsedOutput result;
  OutputParser parser(start, options);
  const auto take = [&](OutputDelta delta) {
    result.reasoning += delta.reasoning;
    result.content += delta.content;
    for (ToolCallEvent& event : delta.tool_calls) {
      if (event.kind == ToolCallEvent::Kind::kStart) result.tool_calls.push_back({{}, event.text, {}});
      if (event.kind == ToolCallEvent::Kind::kArguments)
        result.tool_calls.at(event.call).arguments += event.text;
    }
  };
  for (size_t at = 0; at < text.size();) {
    const size_t length = next_length(random);
    take(parser.push(std::string_view(text).substr(at, length)));
    at += length;
  }
  take(parser.flush(ended));
  return result;
}

OutputStart read_start(const std::string& name) {
  return {name == "reasoning", name == "tool_calls"};
}

TEST(OutputCases, ReasoningContentAndCalls) {
  std::mt19937 random(5);
  for (const FileCase& c : read_cases("output.test")) {
    const auto text = c["text"].get<std::string>();
    const OutputStart start = read_start(c["start"].get<std::string>());
    const bool ended = !c.has("cut");
    const bool tools = !c.has("no_tools");
    const Json expected = {{"reasoning", c.has("reasoning") ? c["reasoning"] : Json("")},
                           {"content", c.has("content") ? c["content"] : Json("")},
                           {"calls", c.has("calls") ? c["calls"] : Json::array()}};
    const OutputParserOptions tolerant = {.tool_calls = tools};
    EXPECT_EQ(as_json(parse_output(text, start, tolerant, ended)).dump(), expected.dump()) << c.place;
    for (int round = 0; round < 20; ++round) {
      const auto length = [](std::mt19937& r) -> size_t { return r() % 7 + 1; };
      ASSERT_EQ(as_json(parse_in_pieces(text, start, tolerant, ended, length, random)).dump(),
                expected.dump())
          << c.place;
    }
    const OutputParserOptions strict = {.tool_calls = tools, .strictness = Strictness::kStrict};
    if (c.has("strict_error")) {
      try {
        parse_output(text, start, strict, ended);
        ADD_FAILURE() << c.place;
      } catch (const Error& error) {
        EXPECT_NE(error.describe().find(c["strict_error"].get<std::string>()), std::string::npos)
            << c.place << error.describe();
      }
    } else if (!c.has("tolerant_only")) {
      EXPECT_EQ(as_json(parse_output(text, start, strict, ended)).dump(), expected.dump()) << c.place;
    }
  }
}

std::string random_text(std::mt19937& random) {
  const char* const pieces[] = {"a",        " ",  "\n",   "\"",   "\\", "<",      "</",
                                "｜DSML｜", "中", "🙂", "\x01", "{",  "<think>"};
  std::string text;
  for (size_t n = random() % 8; n > 0; --n) text += pieces[random() % std::size(pieces)];
  return text;
}

Json random_arguments(std::mt19937& random) {
  Json arguments = Json::object();
  for (size_t n = random() % 4; n > 0; --n) {
    const std::string key = "k" + std::to_string(random() % 100);
    switch (random() % 5) {
      case 0:
        arguments[key] = static_cast<int64_t>(random());
        break;
      case 1:
        arguments[key] = Json{{"a", random_text(random)}, {"b", {1.5, nullptr}}};
        break;
      case 2:
        arguments[key] = random() % 2 == 0;
        break;
      default:
        arguments[key] = random_text(random);
    }
  }
  return arguments;
}

TEST(Output, ReadsBackWhatThePromptEncoderWrites) {
  std::mt19937 random(17);
  for (int round = 0; round < 1500; ++round) {
    ChatMessage answer;
    answer.role = Role::kAssistant;
    answer.content = {text_part(random_text(random))};
    answer.reasoning = random_text(random);
    std::vector<Json> arguments;
    for (size_t n = random() % 3; n > 0; --n) {
      arguments.push_back(random_arguments(random));
      answer.tool_calls.push_back({"", "f" + std::to_string(n), arguments.back().dump()});
    }
    ChatOptions options;
    options.add_generation_prompt = false;
    const ChatMessage user = {.role = Role::kUser, .content = {text_part("q")}};
    std::string text = prompt_text(render_chat({user, answer}, options));
    const size_t start = text.find("<｜Assistant｜><think>") + std::string("<｜Assistant｜><think>").size();
    text = text.substr(start, text.rfind("<｜end▁of▁sentence｜>") - start);

    for (const Strictness strictness : {Strictness::kStrict, Strictness::kTolerant}) {
      const auto length = [](std::mt19937& r) -> size_t { return r() % 9 + 1; };
      const ParsedOutput output = parse_in_pieces(text, OutputStart{.in_reasoning = true},
                                                  {.strictness = strictness}, true, length, random);
      ASSERT_EQ(output.reasoning, *answer.reasoning) << text;
      ASSERT_EQ(output.content, answer.content[0].text) << text;
      ASSERT_EQ(output.tool_calls.size(), arguments.size()) << text;
      for (size_t i = 0; i < arguments.size(); ++i) {
        ASSERT_EQ(output.tool_calls[i].name, answer.tool_calls[i].name);
        ASSERT_EQ(Json::parse(output.tool_calls[i].arguments), arguments[i]) << text;
      }
    }
  }
}

TEST(Output, ContentHoldsBackOnlyPossibleTags) {
  OutputParser parser(OutputStart{});
  EXPECT_EQ(parser.push("one\n\n").content, "one");
  EXPECT_EQ(parser.push("two\n").content, "\n\ntwo");
  EXPECT_EQ(parser.push("\n<").content, "");
  EXPECT_EQ(parser.push("b>").content, "\n\n<b>");
  EXPECT_EQ(parser.push("x\n\n<｜DSML｜ calls>").content, "x");
  OutputDelta delta =
      parser.push("\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">stre");
  ASSERT_EQ(delta.tool_calls.size(), 2U);
  EXPECT_EQ(delta.tool_calls[0].kind, ToolCallEvent::Kind::kStart);
  EXPECT_EQ(delta.tool_calls[0].text, "f");
  EXPECT_EQ(delta.tool_calls[1].text, "{\"a\": \"stre");
  EXPECT_EQ(parser.push("am").tool_calls.at(0).text, "am");
  EXPECT_EQ(parser.tool_call_count(), 1U);
}

TEST(Output, LongGarbageInsideABlockIsLinear) {
  OutputParser parser(OutputStart{.in_tool_calls = true});
  for (int i = 0; i < 100000; ++i) parser.push("<｜DSML｜ inv");
  EXPECT_TRUE(parser.flush(true).tool_calls.empty());
}

}  // namespace
}  // namespace spark::text
