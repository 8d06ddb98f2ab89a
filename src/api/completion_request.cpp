#include "api/request_fields.h"

namespace spark::api {

namespace {

// Text, token ids, or a list of either.
std::vector<Prompt> read_prompts(const JsonReader& field) {
  if (!field.present()) {
    field.fault("is missing");
    return {};
  }
  const Json& value = *field.json();
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) {
    field.fault("must be a text, a list of token ids, or a list of either");
    return {};
  }
  if (value.empty()) {
    field.fault("is empty");
    return {};
  }
  if (!value.front().is_string() && !value.front().is_array()) return {read_token_ids(field)};
  if (value.size() > static_cast<size_t>(kMaxChoices)) {
    field.fault("has " + std::to_string(value.size()) + " prompts; at most " + std::to_string(kMaxChoices) +
                " are allowed in one request");
    return {};
  }
  std::vector<Prompt> prompts;
  for (const JsonReader& item : field.items()) {
    if (item.json()->is_string()) {
      prompts.emplace_back(item.string());
    } else if (item.json()->is_array()) {
      prompts.emplace_back(read_token_ids(item));
    } else {
      item.fault("must be a text or a list of token ids, like the first prompt");
    }
  }
  return prompts;
}

bool is_empty(const Prompt& prompt) {
  return std::visit([](const auto& value) { return value.empty(); }, prompt);
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const SamplingFields& defaults) {
  Json document = parse_body(body);
  if (const auto found = document.find("stream_options"); found != document.end()) drop_nulls(*found);
  Faults faults(kMaxFaultsListed);
  const JsonReader root(document, "", faults);
  CompletionRequest request;
  request.model = root.field("model").optional_string().value_or("");
  request.prompts = read_prompts(root.field("prompt"));
  request.sampling = read_sampling(root, Route::kCompletion, defaults);
  request.delivery = read_delivery(root);
  if (faults.empty()) {
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      if (!is_empty(request.prompts[i])) continue;
      root.field("prompt").fault(
          request.prompts.size() == 1 ? "is empty" : "has an empty prompt, number " + std::to_string(i));
      break;
    }
    if (static_cast<int64_t>(request.prompts.size()) * request.sampling.n > kMaxChoices) {
      root.field("n").fault("times the number of prompts is above " + std::to_string(kMaxChoices));
    }
  }
  std::vector<std::string> known = shared_field_names(Route::kCompletion);
  known.emplace_back("prompt");
  refuse_unsupported(root, known, Route::kCompletion);
  throw_if_bad(faults);
  return request;
}

Json CompletionRequest::json() const {
  Json root = Json::object();
  if (!model.empty()) root["model"] = model;
  Json list = Json::array();
  for (const Prompt& prompt : prompts) {
    std::visit([&](const auto& value) { list.push_back(value); }, prompt);
  }
  root["prompt"] = list.size() == 1 ? list.front() : list;
  write_sampling(sampling, Route::kCompletion, root);
  write_delivery(delivery, root);
  return root;
}

TokenizeRequest parse_tokenize_request(std::string_view body) {
  Json document = parse_body(body);
  drop_chat_nulls(document);
  Faults faults(kMaxFaultsListed);
  const JsonReader root(document, "", faults);
  TokenizeRequest request;
  request.model = root.field("model").optional_string().value_or("");
  request.return_token_strs = root.field("return_token_strs").optional_boolean().value_or(false);
  std::vector<std::string> known = {"model", "return_token_strs", "add_special_tokens"};
  if (root.field("messages").present()) {
    if (root.field("prompt").present()) root.field("prompt").fault("excludes `messages`");
    request.input = read_chat(root);
    for (std::string& name : chat_field_names()) known.push_back(std::move(name));
  } else {
    request.input = root.field("prompt").string();
    // The tokenizer adds nothing of its own, so either value gives the same ids.
    root.field("add_special_tokens").optional_boolean();
    known.emplace_back("prompt");
  }
  refuse_unsupported(root, known, Route::kChat);
  throw_if_bad(faults);
  return request;
}

DetokenizeRequest parse_detokenize_request(std::string_view body) {
  const Json document = parse_body(body);
  Faults faults(kMaxFaultsListed);
  const JsonReader root(document, "", faults);
  DetokenizeRequest request;
  request.model = root.field("model").optional_string().value_or("");
  request.tokens = read_token_ids(root.field("tokens"));
  refuse_unknown(root, {"model", "tokens"});
  throw_if_bad(faults);
  return request;
}

}  // namespace spark::api
