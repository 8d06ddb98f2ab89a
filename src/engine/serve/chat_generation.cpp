#include "engine/serve/generation.h"
#include "text/reasoning.h"

namespace spark::engine {
namespace {

class ChatGeneration : public Generation {
 public:
  ChatGeneration(Engine& engine, const text::Tokenizer& tokenizer, std::shared_ptr<HttpExchange> exchange,
                 GenerationJob given, bool starts_in_reasoning)
      : Generation(engine, tokenizer, std::move(exchange), std::move(given)) {
    for (size_t i = 0; i < choice_count(); ++i) {
      choices_.push_back({{}, text::ReasoningParser(starts_in_reasoning)});
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
    split(choices_[choice].parser, output, delta);
    delta.logprobs = logprobs_of(output);
    delta.finish_reason = finish_reason_of(output);
    delta.stop_reason = stop_reason_of(output);
    if (job().delivery.return_token_ids) delta.token_ids = tokens_of(output);
    const bool says_something = delta.content || delta.reasoning || delta.logprobs || delta.token_ids;
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
    split(choices_[choice].parser, output, delta);
    if (delta.content) message.content = message.content.value_or("") + *delta.content;
    if (delta.reasoning) message.reasoning = message.reasoning.value_or("") + *delta.reasoning;
    if (auto logprobs = logprobs_of(output)) {
      if (!message.logprobs) message.logprobs.emplace();
      message.logprobs->insert(message.logprobs->end(), logprobs->begin(), logprobs->end());
    }
    if (job().delivery.return_token_ids) {
      if (!message.token_ids) message.token_ids.emplace();
      for (const TokenOutput& token : output.tokens) message.token_ids->push_back(token.token);
    }
    message.finish_reason = finish_reason_of(output);
    message.stop_reason = stop_reason_of(output);
  }

  Json whole(const api::Usage& usage) override {
    api::ChatResponse response = envelope(false);
    for (Choice& choice : choices_) {
      choice.message.role = "assistant";
      if (!choice.message.content) choice.message.content = "";
      response.choices.push_back(std::move(choice.message));
    }
    response.usage = usage;
    if (job().delivery.return_token_ids) response.prompt_token_ids = prompt_of(0);
    return response.json();
  }

 private:
  struct Choice {
    api::ChatChoice message;  // when not streaming: the answer so far
    text::ReasoningParser parser;
  };

  static void split(text::ReasoningParser& parser, const Output& output, api::ChatChoice& delta) {
    const auto add = [&](const text::ReasoningParser::Piece& piece) {
      if (!piece.reasoning.empty()) delta.reasoning = delta.reasoning.value_or("") + piece.reasoning;
      if (!piece.content.empty()) delta.content = delta.content.value_or("") + piece.content;
    };
    add(parser.push(output.text));
    if (output.finish) add(parser.flush());
  }

  api::ChatResponse envelope(bool is_chunk) const {
    return {job().id, job().created, job().model, is_chunk, {}, {}, {}};
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::shared_ptr<Generation> make_chat_generation(Engine& engine, const text::Tokenizer& tokenizer,
                                                 std::shared_ptr<HttpExchange> exchange, GenerationJob job,
                                                 bool starts_in_reasoning) {
  return std::make_shared<ChatGeneration>(engine, tokenizer, std::move(exchange), std::move(job),
                                          starts_in_reasoning);
}

}  // namespace spark::engine
