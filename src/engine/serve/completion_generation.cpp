#include "engine/serve/generation.h"

namespace spark::engine {
namespace {

class CompletionGeneration : public Generation {
 public:
  CompletionGeneration(Engine& engine, const text::Tokenizer& tokenizer,
                       std::shared_ptr<HttpExchange> exchange, GenerationJob given)
      : Generation(engine, tokenizer, std::move(exchange), std::move(given)), choices_(choice_count()) {
    for (size_t i = 0; i < choices_.size(); ++i) choices_[i].index = static_cast<int64_t>(i);
  }

 protected:
  std::optional<Json> event(size_t choice, Output& output, const std::optional<api::Usage>& usage) override {
    api::CompletionChoice& state = choices_[choice];
    api::CompletionChoice delta;
    delta.index = state.index;
    delta.text = std::move(output.text);
    delta.logprobs = logprobs_of(output);
    delta.text_offset = state.text_offset;
    if (delta.logprobs) state.text_offset += token_characters(*delta.logprobs);
    delta.finish_reason = finish_reason_of(output);
    delta.stop_reason = stop_reason_of(output);
    if (job().delivery.return_token_ids) {
      delta.token_ids = tokens_of(output);
      if (!state.prompt_token_ids) delta.prompt_token_ids = state.prompt_token_ids = prompt_of(choice);
    }
    const bool says_nothing =
        delta.text.empty() && !delta.logprobs && !delta.token_ids && !delta.finish_reason;
    if (says_nothing && !usage) return std::nullopt;
    api::CompletionResponse response = envelope();
    response.choices.push_back(std::move(delta));
    response.usage = usage;
    return response.json();
  }

  Json progress_event(size_t choice) const override {
    api::CompletionResponse response = envelope();
    response.choices.emplace_back();
    response.choices.back().index = choices_[choice].index;
    return response.json();
  }

  Json usage_event(const api::Usage& usage) const override {
    api::CompletionResponse response = envelope();
    response.usage = usage;
    return response.json();
  }

  void keep(size_t choice, Output& output) override {
    api::CompletionChoice& state = choices_[choice];
    state.text += output.text;
    if (auto logprobs = logprobs_of(output)) {
      if (!state.logprobs) state.logprobs.emplace();
      state.logprobs->insert(state.logprobs->end(), logprobs->begin(), logprobs->end());
    }
    if (job().delivery.return_token_ids) {
      if (!state.token_ids) state.token_ids.emplace();
      for (const TokenOutput& token : output.tokens) state.token_ids->push_back(token.token);
      state.prompt_token_ids = prompt_of(choice);
    }
    state.finish_reason = finish_reason_of(output);
    state.stop_reason = stop_reason_of(output);
  }

  Json whole(const api::Usage& usage) override {
    api::CompletionResponse response = envelope();
    response.choices = std::move(choices_);
    response.usage = usage;
    return response.json();
  }

 private:
  api::CompletionResponse envelope() const { return {job().id, job().created, job().model, {}, {}}; }

  static int64_t token_characters(const std::vector<api::PositionLogprobs>& positions) {
    int64_t count = 0;
    for (const api::PositionLogprobs& position : positions) {
      for (const char c : position.chosen.token) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }
    return count;
  }

  std::vector<api::CompletionChoice> choices_;
};

}  // namespace

std::shared_ptr<Generation> make_completion_generation(Engine& engine, const text::Tokenizer& tokenizer,
                                                       std::shared_ptr<HttpExchange> exchange,
                                                       GenerationJob job) {
  return std::make_shared<CompletionGeneration>(engine, tokenizer, std::move(exchange), std::move(job));
}

}  // namespace spark::engine
