#include "text/chat.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "text/json_text.h"
#include "unit/text/case_file.h"

namespace spark::text {
namespace {

std::vector<ContentPart> read_content(const Json& value) {
  if (value.is_string()) return {text_part(value.get<std::string>())};
  std::vector<ContentPart> parts;
  for (const Json& part : value) {
    const bool text = part["type"] == "text";
    parts.push_back(text ? text_part(part["text"].get<std::string>())
                         : ContentPart{ContentPart::Kind::kImage, ""});
  }
  return parts;
}

std::vector<ChatMessage> read_messages(const Json& value) {
  std::vector<ChatMessage> messages;
  for (const Json& item : value) {
    ChatMessage message;
    message.role = parse_role(item["role"].get<std::string>()).value();
    message.content = read_content(item["content"]);
    if (item.contains("reasoning")) message.reasoning = item["reasoning"].get<std::string>();
    message.tool_call_id = item.value("tool_call_id", "");
    for (const Json& call : item.value("tool_calls", Json::array())) {
      message.tool_calls.push_back({call["id"].get<std::string>(), call["name"].get<std::string>(),
                                    call["arguments"].get<std::string>()});
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

ChatOptions read_options(const FileCase& c) {
  const Json& value = c["options"];
  ChatOptions options;
  options.thinking = value["thinking"].get<bool>();
  options.reasoning_effort = value.value("effort", kDefaultReasoningEffort);
  options.continue_final_message = value.value("continue", false);
  const std::string choice = value.value("tool_choice", "auto");
  options.tool_choice = choice == "none"       ? ToolChoice::kNone
                        : choice == "required" ? ToolChoice::kRequired
                                               : ToolChoice::kAuto;
  for (const Json& tool : value.value("tools", Json::array())) options.tools.push_back(tool);
  if (value.contains("response_format")) options.response_format = value["response_format"];
  if (c.has("tools_before")) {
    options.template_parts = {c["tools_before"].get<std::string>(), c["tools_after"].get<std::string>()};
  }
  return options;
}

Json segments_json(const std::vector<PromptSegment>& prompt) {
  Json result = Json::array();
  for (const PromptSegment& segment : prompt) {
    result.push_back(segment.control ? Json{{"control", segment.text}} : Json(segment.text));
  }
  return result;
}

ChatMessage message(Role role, const std::string& text) {
  return {.role = role, .content = {text_part(text)}};
}

std::string rendered(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  return prompt_text(render_chat(messages, options));
}

std::string chat_error(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
  try {
    render_chat(messages, options);
  } catch (const Error& error) {
    return error.describe();
  }
  return "";
}

ChatOptions chat_mode() {
  ChatOptions options;
  options.thinking = false;
  return options;
}

TEST(ChatCases, PromptAndIds) {
  for (const FileCase& c : read_cases("chat.test")) {
    const auto prompt = render_chat(read_messages(c["messages"]), read_options(c));
    EXPECT_EQ(segments_json(prompt).dump(), c["prompt"].dump()) << c.place;
    EXPECT_EQ(encode_prompt(prompt, tiny_tokenizer()), c["ids"].get<std::vector<int32_t>>()) << c.place;
  }
}

TEST(Chat, TasksReplaceTheAnswer) {
  ChatMessage user = message(Role::kUser, "q");
  user.task = ChatTask::kQuery;
  EXPECT_EQ(rendered({user}, chat_mode()), "<｜begin▁of▁sentence｜><｜User｜>q<｜query｜>");
  user.task = ChatTask::kAction;
  EXPECT_EQ(rendered({user}, chat_mode()),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think><｜action｜>");
  ChatMessage answer = message(Role::kAssistant, "a");
  answer.reasoning = "why";
  EXPECT_EQ(
      rendered({user, answer, message(Role::kUser, "r")}, chat_mode()),
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think><｜action｜>a<｜end▁of▁sentence｜><｜User｜>r"
      "<｜Assistant｜></think>");
  // A user message after one with a task stays apart.
  EXPECT_EQ(rendered({user, message(Role::kUser, "r")}, chat_mode()),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜User｜>r<｜Assistant｜></think>");
}

TEST(Chat, WithoutGenerationPromptTheLastAnswerIsWhole) {
  ChatMessage answer = message(Role::kAssistant, "a");
  answer.reasoning = "why";
  ChatOptions options;
  options.add_generation_prompt = false;
  const std::string text = rendered({message(Role::kUser, "q"), answer}, options);
  EXPECT_NE(text.find("<｜User｜>q<｜Assistant｜><think>why</think>a<｜end▁of▁sentence｜>"),
            std::string::npos)
      << text;
}

TEST(Chat, ArgumentsEncodedTwiceAreDecoded) {
  ChatMessage answer = message(Role::kAssistant, "");
  answer.tool_calls = {{"1", "f", R"("{\"a\": 1}")"}, {"2", "g", "[1]"}};
  const std::string text = rendered({message(Role::kUser, "q"), answer}, chat_mode());
  EXPECT_NE(text.find(R"( parameter name="a" string="false">1</)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"( parameter name="arguments" string="true">[1]</)"), std::string::npos) << text;
}

TEST(Chat, IntegersOfArgumentsKeepTheirDigits) {
  ChatMessage answer = message(Role::kAssistant, "");
  answer.tool_calls = {
      {"1", "f", R"({"id": 123456789012345678901234567890, "all": [-99999999999999999999, 1e30, 1.0]})"}};
  const std::string text = rendered({message(Role::kUser, "q"), answer}, chat_mode());
  EXPECT_NE(text.find(" string=\"false\">123456789012345678901234567890</"), std::string::npos) << text;
  EXPECT_NE(text.find(" string=\"false\">[-99999999999999999999, 1e+30, 1.0]</"), std::string::npos) << text;
  // More than a double holds: not another number, and not the text instead.
  answer.tool_calls = {{"1", "f", "{\"a\": 1" + std::string(400, '0') + "}"}};
  EXPECT_THROW(rendered({message(Role::kUser, "q"), answer}, chat_mode()), Error);
}

TEST(Chat, ResultsOfUnknownTypeAreNamed) {
  ChatMessage result = message(Role::kTool, "a");
  result.content.push_back({ContentPart::Kind::kUnsupported, ""});
  EXPECT_NE(rendered({result}, chat_mode()).find("<tool_result>a\n\n[Unsupported type]</tool_result>"),
            std::string::npos);
}

TEST(Chat, OutputStartFollowsThePrompt) {
  const ChatMessage user = message(Role::kUser, "q");
  ChatOptions options;
  EXPECT_TRUE(output_start({user}, options).in_reasoning);
  EXPECT_FALSE(output_start({user}, chat_mode()).in_reasoning);
  options.continue_final_message = true;
  EXPECT_TRUE(output_start({user, message(Role::kAssistant, "")}, options).in_reasoning);
  EXPECT_FALSE(output_start({user, message(Role::kAssistant, "a")}, options).in_reasoning);
  options.continue_final_message = false;
  options.tool_choice = ToolChoice::kRequired;
  EXPECT_TRUE(output_start({user}, options).in_tool_calls);
  EXPECT_FALSE(output_start({user}, options).in_reasoning);
}

TEST(Chat, ErrorsSayWhere) {
  const ChatMessage user = message(Role::kUser, "q");
  EXPECT_NE(chat_error({}).find("messages: is empty"), std::string::npos);
  EXPECT_NE(chat_error({user, message(Role::kUser, "a<｜deepseek_image｜>b")})
                .find("messages[1].content[0]: contains the image placeholder"),
            std::string::npos);
  ChatOptions options;
  options.reasoning_effort = 101;
  options.continue_final_message = true;
  options.tools = {Json{{"name", "f"}}};
  const std::string error = chat_error({user}, options);
  EXPECT_NE(error.find("3 faults"), std::string::npos) << error;
  EXPECT_NE(error.find("reasoning_effort: is 101"), std::string::npos) << error;
  EXPECT_NE(error.find("continue_final_message: needs an assistant message"), std::string::npos) << error;
  EXPECT_NE(error.find("tools: cannot be used"), std::string::npos) << error;
  ChatMessage wrong = user;
  wrong.reasoning = "r";
  wrong.tool_calls = {{"1", "f", "{}"}};
  EXPECT_NE(chat_error({wrong}).find("messages[0].tool_calls: belongs to assistant"), std::string::npos);
  ChatMessage image = message(Role::kAssistant, "");
  image.content = {{ContentPart::Kind::kImage, ""}};
  EXPECT_NE(chat_error({image}).find("cannot be an image here"), std::string::npos);
}

TEST(Chat, MissingControlTokenIsAnError) {
  const std::vector<PromptSegment> prompt = {{true, "<｜read_url｜>"}};
  EXPECT_THROW(encode_prompt(prompt, tiny_tokenizer()), Error);
}

TEST(Chat, EffortNames) {
  EXPECT_EQ(parse_reasoning_effort("low"), 50);
  EXPECT_EQ(parse_reasoning_effort("high"), 75);
  EXPECT_EQ(parse_reasoning_effort("max"), 100);
  EXPECT_EQ(parse_reasoning_effort("none"), std::nullopt);
  EXPECT_EQ(parse_role("developer"), Role::kSystem);
  EXPECT_EQ(parse_role("robot"), std::nullopt);
}

TEST(PromptJson, PrintsAsPythonDoes) {
  const Json value = parse_json(
      R"({"b":[1,-2,1e16,1e15,1e2,-0.0,0.1,1e-5,0.0001,123456789.125],"a":{"é\n":null,"x":true},"e":{},"f":[]})",
      "t");
  EXPECT_EQ(to_prompt_json(value),
            "{\"b\": [1, -2, 1e+16, 1000000000000000.0, 100.0, -0.0, 0.1, 1e-05, 0.0001, 123456789.125], "
            "\"a\": {\"é\\n\": null, \"x\": true}, \"e\": {}, \"f\": []}");
}

}  // namespace
}  // namespace spark::text
