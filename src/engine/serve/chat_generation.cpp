#include "engine/serve/generation.h"
#include "text/output_parser.h"

namespace spark::engine {
namespace {

class ChatGeneration : public Generation {
 public:
  ChatGeneration(Engine& engine, const text::Tokenizer& tokenizer, std::shared_ptr<HttpExchange> exchange,
                 GenerationJob given, const ChatOutput& output)
      : Generation(engine, tokenizer, std::move(exchange), std::move(given)), many_calls_(output.many_calls) {
    for (size_t i = 0; i < choice_count(); ++i) {
      choices_.push_back({{}, text::OutputParser(output.start, {.tool_calls = output.tools})});
      choices_.back().message.index = static_cast<int64_t>(i);
    }
  }

 protected:
  std::vector<Json> first_events() override {
    std::vector<Json> events;
    for (const Choice& choice : choices_) {
      api::ChatChoice delta;
      delta.index = choice.message.index;
      delta.role = "assistant";
      delta.content = "";
      api::ChatResponse response = envelope(true);
      response.choices.push_back(std::move(delta));
      if (job().delivery.return_token_ids) response.prompt_token_ids = prompt_of(0);
      events.push_back(response.json());
    }
    return events;
  }

  std::optional<Json> event(size_t choice, Output& output, const std::optional<api::Usage>& usage) override {
    api::ChatChoice delta;
    delta.index = choices_[choice].message.index;
    split(choice, output, delta);
    delta.logprobs = logprobs_of(output);
    delta.finish_reason = ending(choice, output);
    delta.stop_reason = stop_reason_of(output);
    if (job().delivery.return_token_ids) delta.token_ids = tokens_of(output);
    const bool says_something =
        delta.content || delta.reasoning || !delta.tool_calls.empty() || delta.logprobs || delta.token_ids;
    if (!says_something && !delta.finish_reason && !usage) return std::nullopt;
    api::ChatResponse response = envelope(true);
    response.choices.push_back(std::move(delta));
    response.usage = usage;
    return response.json();
  }

  Json progress_event(size_t choice) const override {
    api::ChatChoice delta;
    delta.index = choices_[choice].message.index;
    api::ChatResponse response = envelope(true);
    response.choices.push_back(std::move(delta));
    return response.json();
  }

  Json usage_event(const api::Usage& usage) const override {
    api::ChatResponse response = envelope(true);
    response.usage = usage;
    return response.json();
  }

  void keep(size_t choice, Output& output) override {
    api::ChatChoice& message = choices_[choice].message;
    api::ChatChoice delta;
    split(choice, output, delta);
    if (delta.content) message.content = message.content.value_or("") + *delta.content;
    if (delta.reasoning) message.reasoning = message.reasoning.value_or("") + *delta.reasoning;
    for (api::ToolCallDelta& piece : delta.tool_calls) {
      if (!piece.id.empty()) {
        message.tool_calls.push_back(std::move(piece));
      } else {
        message.tool_calls.back().arguments += piece.arguments;
      }
    }
    if (auto logprobs = logprobs_of(output)) {
      if (!message.logprobs) message.logprobs.emplace();
      message.logprobs->insert(message.logprobs->end(), logprobs->begin(), logprobs->end());
    }
    if (job().delivery.return_token_ids) {
      if (!message.token_ids) message.token_ids.emplace();
      for (const TokenOutput& token : output.tokens) message.token_ids->push_back(token.token);
    }
    message.finish_reason = ending(choice, output);
    message.stop_reason = stop_reason_of(output);
  }

  Json whole(const api::Usage& usage) override {
    api::ChatResponse response = envelope(false);
    for (Choice& choice : choices_) {
      choice.message.role = "assistant";
      // An answer that is nothing but calls has no content; clients tell the two apart.
      if (!choice.message.content && choice.message.tool_calls.empty()) choice.message.content = "";
      response.choices.push_back(std::move(choice.message));
    }
    response.usage = usage;
    if (job().delivery.return_token_ids) response.prompt_token_ids = prompt_of(0);
    return response.json();
  }

 private:
  struct Choice {
    api::ChatChoice message;  // when not streaming: the answer so far
    text::OutputParser parser;
  };

  // A stop string or token of the request cuts a call as a limit does.
  static bool ended_by_model(const Finish& finish) {
    return finish.reason == FinishReason::kStop && std::holds_alternative<std::monostate>(finish.stop);
  }

  // Moves the output's text into the channels of `delta`.
  void split(size_t choice, const Output& output, api::ChatChoice& delta) {
    text::OutputParser& parser = choices_[choice].parser;
    const auto add = [&](const text::OutputDelta& piece) {
      if (!piece.reasoning.empty()) delta.reasoning = delta.reasoning.value_or("") + piece.reasoning;
      if (!piece.content.empty()) delta.content = delta.content.value_or("") + piece.content;
      for (const text::ToolCallEvent& event : piece.tool_calls) add_call(choice, event, delta.tool_calls);
    };
    add(parser.push(output.text));
    if (output.finish) add(parser.flush(ended_by_model(*output.finish)));
  }

  void add_call(size_t choice, const text::ToolCallEvent& event,
                std::vector<api::ToolCallDelta>& calls) const {
    if (event.call > 0 && !many_calls_) return;
    const auto index = static_cast<int64_t>(event.call);
    if (event.kind == text::ToolCallEvent::Kind::kStart) {
      calls.push_back({index, call_id(choice, event.call), event.text, ""});
    } else if (event.kind == text::ToolCallEvent::Kind::kArguments) {
      calls.push_back({index, "", "", event.text});
    }
  }

  // Unique, as the job's own id is.
  std::string call_id(size_t choice, size_t call) const {
    const std::string& job_id = job().id;
    const size_t dash = job_id.find('-');
    return "call_" + job_id.substr(dash == std::string::npos ? 0 : dash + 1) + "_" + std::to_string(choice) +
           "_" + std::to_string(call);
  }

  std::optional<std::string> ending(size_t choice, const Output& output) const {
    auto reason = finish_reason_of(output);
    // Clients act on "tool_calls": not on a call that was cut.
    const text::OutputParser& parser = choices_[choice].parser;
    const bool called = parser.tool_call_count() > 0 && !parser.tool_call_is_open();
    return reason == api::kFinishStop && called ? api::kFinishToolCalls : reason;
  }

  api::ChatResponse envelope(bool is_chunk) const {
    return {job().id, job().created, job().model, is_chunk, {}, {}, {}};
  }

  std::vector<Choice> choices_;
  bool many_calls_;
};

}  // namespace

std::shared_ptr<Generation> make_chat_generation(Engine& engine, const text::Tokenizer& tokenizer,
                                                 std::shared_ptr<HttpExchange> exchange, GenerationJob job,
                                                 ChatOutput output) {
  return std::make_shared<ChatGeneration>(engine, tokenizer, std::move(exchange), std::move(job), output);
}

}  // namespace spark::engine
