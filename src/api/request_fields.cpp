#include "api/request_fields.h"

#include <algorithm>
#include <cmath>

namespace spark::api {
namespace {

constexpr size_t kMaxMembers = 1024;  // of one JSON object
// Of a body: a prompt of a million token ids for each of four choices fits, and so do a hundred thousand
// messages; what the reader builds of either stays below a hundred megabytes.
constexpr size_t kMaxValues = size_t{4} << 20;
constexpr size_t kMaxAllocatedValues = 400'000;

// What a known field may say while the feature behind it is absent.
enum class Neutral {
  kAnything,  // does not change the answer
  kNothing,   // only absent or null
  kFalse,
  kZero,
  kOne,
  kEmpty,  // empty list, object or string
};

struct KnownField {
  const char* name;
  Neutral neutral;
  const char* hint;
};

constexpr KnownField kKnownFields[] = {
    {"metadata", Neutral::kAnything, ""},
    {"store", Neutral::kAnything, ""},
    {"service_tier", Neutral::kAnything, ""},
    {"safety_identifier", Neutral::kAnything, ""},
    {"prompt_cache_key", Neutral::kAnything, ""},
    {"prompt_cache_retention", Neutral::kAnything, ""},
    {"prediction", Neutral::kAnything, ""},
    {"request_id", Neutral::kAnything, ""},
    {"include_reasoning", Neutral::kAnything, ""},
    {"spaces_between_special_tokens", Neutral::kAnything, ""},
    {"add_special_tokens", Neutral::kFalse, "the model's own encoding is always used"},
    {"tools", Neutral::kEmpty, "tools need the chat route"},
    {"functions", Neutral::kEmpty, "send `tools`, which have replaced it"},
    {"function_call", Neutral::kNothing, "send `tool_choice`, which has replaced it"},
    {"audio", Neutral::kNothing, "this server answers with text only"},
    {"web_search_options", Neutral::kNothing, "this server does not search"},
    {"verbosity", Neutral::kNothing, "say in the prompt how long the answer should be"},
    {"logit_bias", Neutral::kEmpty, "logit bias is not supported"},
    {"frequency_penalty", Neutral::kZero, "penalties are not supported"},
    {"presence_penalty", Neutral::kZero, "penalties are not supported"},
    {"repetition_penalty", Neutral::kOne, "penalties are not supported"},
    {"length_penalty", Neutral::kOne, "beam search is not supported"},
    {"use_beam_search", Neutral::kFalse, "beam search is not supported"},
    {"early_stopping", Neutral::kFalse, "beam search is not supported"},
    {"prompt_logprobs", Neutral::kNothing, "log probabilities of the prompt are not supported"},
    {"echo", Neutral::kFalse, "send the prompt's text and the answer's together yourself"},
    {"suffix", Neutral::kEmpty, "insertion is not supported"},
    {"bad_words", Neutral::kEmpty, "banned words are not supported"},
    {"allowed_token_ids", Neutral::kNothing, "restricting tokens is not supported"},
    {"logits_processors", Neutral::kEmpty, "logits processors are not supported"},
    {"truncate_prompt_tokens", Neutral::kNothing, "shorten the prompt before sending it"},
    {"guided_json", Neutral::kNothing, "structured output is not supported yet"},
    {"guided_regex", Neutral::kNothing, "structured output is not supported yet"},
    {"guided_choice", Neutral::kNothing, "structured output is not supported yet"},
    {"guided_grammar", Neutral::kNothing, "structured output is not supported yet"},
    {"structured_outputs", Neutral::kNothing, "structured output is not supported yet"},
    {"structural_tag", Neutral::kNothing, "structured output is not supported yet"},
    {"chat_template", Neutral::kNothing, "the model's own encoding is always used"},
    {"documents", Neutral::kEmpty, "put the documents into a message"},
    {"mm_processor_kwargs", Neutral::kEmpty, "images are not supported yet"},
    {"kv_transfer_params", Neutral::kNothing, "cache transfer is not supported"},
    {"vllm_xargs", Neutral::kEmpty, "vLLM's own extra arguments mean nothing here"},
};

bool is_neutral(const Json& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::kAnything:
      return true;
    case Neutral::kNothing:
      return false;
    case Neutral::kFalse:
      return value == Json(false);
    case Neutral::kZero:
      return value.is_number() && value.get<double>() == 0.0;
    case Neutral::kOne:
      return value.is_number() && value.get<double>() == 1.0;
    case Neutral::kEmpty:
      return value.is_string() ? value.get_ref<const std::string&>().empty()
                               : value.is_structured() && value.empty();
  }
  return false;
}

void check_response_format(const JsonReader& field) {
  const std::string type = field.field("type").string("text");
  if (type != "text")
    field.fault("asks for \"" + clipped(type) + "\"", "structured output is not supported yet");
}

void check_modalities(const JsonReader& field) {
  if (*field.json() != Json::array({"text"}))
    field.fault("must be [\"text\"]", "this server answers with text only");
}

// Fields whose harmless values depend on more than one value. True when the field is one of them.
bool check_special(const std::string& name, const JsonReader& field, const JsonReader& root, Route route) {
  if (name == "response_format") {
    check_response_format(field);
  } else if (name == "modalities" && route == Route::kChat) {
    check_modalities(field);
  } else if (name == "best_of") {
    if (field.integer(1, kMaxChoices, 1) != root.field("n").optional_integer().value_or(1)) {
      field.fault("must equal `n`", "choosing the best of several is not supported");
    }
  } else {
    return false;
  }
  return true;
}

std::vector<std::string> read_stop(const JsonReader& field) {
  std::vector<std::string> stop;
  if (!field.present()) return stop;
  if (field.json()->is_string()) {
    stop.push_back(field.string());
  } else if (!field.json()->is_array()) {
    field.fault("must be a string or a list of strings");
  } else if (field.json()->size() > kMaxStopStrings) {
    field.fault("has " + std::to_string(field.json()->size()) + " strings; at most " +
                std::to_string(kMaxStopStrings) + " are allowed");
  } else {
    for (const JsonReader& item : field.items()) stop.push_back(item.string("?"));
  }
  for (const std::string& text : stop) {
    if (text.empty()) field.fault("has an empty string");
    if (text.size() > kMaxStopBytes) {
      field.fault("has a string of " + std::to_string(text.size()) + " bytes; at most " +
                  std::to_string(kMaxStopBytes) + " are allowed");
    }
  }
  return stop;
}

std::optional<int64_t> read_max_tokens(const JsonReader& root, Route route) {
  const auto classic = root.field("max_tokens").optional_integer(1);
  if (route == Route::kCompletion) return classic;
  const auto modern = root.field("max_completion_tokens").optional_integer(1);
  if (classic && modern && *classic != *modern) {
    root.field("max_completion_tokens").fault("differs from `max_tokens`", "send one of them");
  }
  return modern ? modern : classic;
}

std::optional<int64_t> read_top_logprobs(const JsonReader& root, Route route) {
  const JsonReader logprobs = root.field("logprobs");
  if (route == Route::kCompletion) {
    // OpenAI's clients may send false for "none" here, too.
    if (logprobs.present() && *logprobs.json() == Json(false)) return std::nullopt;
    return logprobs.optional_integer(0, kMaxTopLogprobs);
  }
  const bool wanted = logprobs.optional_boolean().value_or(false);
  const auto top = root.field("top_logprobs").optional_integer(0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) root.field("top_logprobs").fault("needs `logprobs` to be true");
  return wanted ? std::optional(top.value_or(0)) : std::nullopt;
}

void fault_unknown(const std::string& name, const Json& value, const JsonReader& object,
                   const std::vector<std::string>& known) {
  // The distance to a very long key would take long to compute, and nobody mistypes one.
  const bool is_word = name.size() <= 64 && !object.faults().full();
  const auto guess = is_word ? nearest(name, known) : std::nullopt;
  const std::string path = object.path().empty() ? clipped(name) : object.path() + "." + clipped(name);
  JsonReader(value, path, object.faults())
      .fault("is not a known field", guess ? "did you mean `" + *guess + "`?" : std::string());
}

}  // namespace

std::string clipped(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

void drop_nulls(Json& object) {
  if (!object.is_object()) return;
  for (auto it = object.begin(); it != object.end();) it = it->is_null() ? object.erase(it) : std::next(it);
}

Json parse_body(std::string_view body) {
  Json root;
  try {
    root = parse_json(body, "the body",
                      {.max_members = kMaxMembers,
                       .max_values = kMaxValues,
                       .max_allocated_values = kMaxAllocatedValues,
                       .exact_integers = true});
  } catch (const Error& error) {
    // The parser quotes what it read last, which may be a number of a million digits.
    throw RequestError(bad_request(error.where() + " " + clipped(error.what(), 300)));
  }
  if (!root.is_object()) throw RequestError(bad_request("the body must be a JSON object"));
  drop_nulls(root);
  return root;
}

std::vector<int32_t> read_token_ids(const JsonReader& list) {
  std::vector<int32_t> ids;
  if (!list.present()) {
    list.fault("is missing");
    return ids;
  }
  if (!list.json()->is_array()) {
    list.fault("must be a list of token ids");
    return ids;
  }
  // No reader per item: a list may have a million.
  ids.reserve(list.json()->size());
  for (const Json& item : *list.json()) {
    const bool fits = item.is_number_integer() && (item.is_number_unsigned() || item.get<int64_t>() >= 0) &&
                      item.get<uint64_t>() <= INT32_MAX;
    if (!fits) {
      JsonReader(item, list.path() + "[" + std::to_string(ids.size()) + "]", list.faults())
          .fault("must be a token id: an integer from 0");
      return {};
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

SamplingFields read_sampling(const JsonReader& root, Route route, const SamplingFields& defaults) {
  SamplingFields out;
  out.temperature = defaults.temperature;
  out.top_p = defaults.top_p;
  out.min_p = defaults.min_p;
  out.temperature = root.field("temperature").optional_number(0.0, 100.0).value_or(out.temperature);
  // What is out of range is read as 1: it has its fault, and needs not the one of a zero as well.
  if (root.field("top_p").present()) out.top_p = root.field("top_p").number(0.0, 1.0, 1.0);
  if (out.top_p == 0.0) root.field("top_p").fault("must be above 0 and at most 1");
  out.top_k =
      std::max<int64_t>(0, root.field("top_k").optional_integer(-1, INT32_MAX).value_or(defaults.top_k));
  out.min_p = root.field("min_p").optional_number(0.0, 1.0).value_or(out.min_p);
  out.seed = root.field("seed").optional_integer();
  out.max_tokens = read_max_tokens(root, route);
  out.min_tokens = root.field("min_tokens").optional_integer(0).value_or(0);
  if (out.max_tokens && out.min_tokens > *out.max_tokens) {
    root.field("min_tokens").fault("is above the maximum of " + std::to_string(*out.max_tokens));
  }
  out.ignore_eos = root.field("ignore_eos").optional_boolean().value_or(false);
  out.stop = read_stop(root.field("stop"));
  if (const JsonReader ids = root.field("stop_token_ids"); ids.present()) {
    out.stop_token_ids = read_token_ids(ids);
    if (out.stop_token_ids.size() > kMaxStopTokenIds) {
      ids.fault("has more than " + std::to_string(kMaxStopTokenIds) + " ids");
    }
  }
  out.include_stop_str_in_output =
      root.field("include_stop_str_in_output").optional_boolean().value_or(false);
  out.skip_special_tokens = root.field("skip_special_tokens").optional_boolean().value_or(true);
  out.n = root.field("n").optional_integer(1, kMaxChoices).value_or(1);
  out.top_logprobs = read_top_logprobs(root, route);
  return out;
}

DeliveryFields read_delivery(const JsonReader& root) {
  DeliveryFields out;
  out.stream = root.field("stream").optional_boolean().value_or(false);
  if (const JsonReader options = root.field("stream_options"); options.present()) {
    if (!out.stream) options.fault("needs `stream` to be true");
    if (!options.json()->is_object()) options.fault("must be an object");
    out.include_usage = options.field("include_usage").optional_boolean().value_or(false);
    out.continuous_usage_stats = options.field("continuous_usage_stats").optional_boolean().value_or(false);
    options.field("include_obfuscation").optional_boolean();  // a padding of OpenAI's own; never sent here
    refuse_unknown(options, {"include_usage", "continuous_usage_stats", "include_obfuscation"});
  }
  out.return_token_ids = root.field("return_token_ids").optional_boolean().value_or(false);
  out.return_tokens_as_token_ids =
      root.field("return_tokens_as_token_ids").optional_boolean().value_or(false);
  out.return_progress = root.field("return_progress").optional_boolean().value_or(false);
  if (const JsonReader salt = root.field("cache_salt"); salt.present()) {
    out.cache_salt = salt.optional_string().value_or("");
    if (out.cache_salt.empty()) salt.fault("must be a string that is not empty");
  }
  out.user = root.field("user").optional_string().value_or("");
  out.priority = root.field("priority").optional_integer().value_or(0);
  return out;
}

std::vector<std::string> shared_field_names(Route route) {
  std::vector<std::string> names = {"model",
                                    "temperature",
                                    "top_p",
                                    "top_k",
                                    "min_p",
                                    "seed",
                                    "max_tokens",
                                    "min_tokens",
                                    "ignore_eos",
                                    "stop",
                                    "stop_token_ids",
                                    "include_stop_str_in_output",
                                    "n",
                                    "logprobs",
                                    "stream",
                                    "skip_special_tokens",
                                    "stream_options",
                                    "user",
                                    "priority",
                                    "return_token_ids",
                                    "return_tokens_as_token_ids",
                                    "return_progress",
                                    "cache_salt"};
  if (route == Route::kChat) names.insert(names.end(), {"max_completion_tokens", "top_logprobs"});
  return names;
}

void refuse_unknown(const JsonReader& object, const std::vector<std::string>& known) {
  if (!object.present() || !object.json()->is_object()) return;
  for (auto it = object.json()->begin(); it != object.json()->end(); ++it) {
    if (std::find(known.begin(), known.end(), it.key()) == known.end()) {
      return fault_unknown(it.key(), it.value(), object, known);
    }
  }
}

void refuse_unsupported(const JsonReader& root, const std::vector<std::string>& known, Route route) {
  for (auto it = root.json()->begin(); it != root.json()->end(); ++it) {
    const std::string& name = it.key();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const JsonReader field = root.field(name);
    if (check_special(name, field, root, route)) continue;
    const auto* found = std::find_if(std::begin(kKnownFields), std::end(kKnownFields),
                                     [&](const KnownField& candidate) { return name == candidate.name; });
    if (found != std::end(kKnownFields)) {
      if (!is_neutral(it.value(), found->neutral))
        field.fault("asks for what this server does not do", found->hint);
      continue;
    }
    fault_unknown(name, it.value(), root, known);
  }
}

void write_sampling(const SamplingFields& fields, Route route, Json& root) {
  const SamplingFields usual;
  if (fields.max_tokens) root["max_tokens"] = *fields.max_tokens;
  if (fields.min_tokens != 0) root["min_tokens"] = fields.min_tokens;
  if (fields.ignore_eos) root["ignore_eos"] = true;
  // Always said: servers differ in what they take an absent temperature to be.
  root["temperature"] = fields.temperature;
  if (fields.top_p != usual.top_p) root["top_p"] = fields.top_p;
  if (fields.top_k != 0) root["top_k"] = fields.top_k;
  if (fields.min_p != 0) root["min_p"] = fields.min_p;
  if (fields.seed) root["seed"] = *fields.seed;
  if (!fields.stop.empty()) root["stop"] = fields.stop;
  if (!fields.stop_token_ids.empty()) root["stop_token_ids"] = fields.stop_token_ids;
  if (fields.include_stop_str_in_output) root["include_stop_str_in_output"] = true;
  if (!fields.skip_special_tokens) root["skip_special_tokens"] = false;
  if (fields.n != 1) root["n"] = fields.n;
  if (fields.top_logprobs && route == Route::kCompletion) root["logprobs"] = *fields.top_logprobs;
  if (fields.top_logprobs && route == Route::kChat) {
    root["logprobs"] = true;
    root["top_logprobs"] = *fields.top_logprobs;
  }
}

void write_delivery(const DeliveryFields& fields, Json& root) {
  if (fields.stream) root["stream"] = true;
  if (fields.stream && (fields.include_usage || fields.continuous_usage_stats)) {
    root["stream_options"] = Json{{"include_usage", fields.include_usage}};
    if (fields.continuous_usage_stats) root["stream_options"]["continuous_usage_stats"] = true;
  }
  if (fields.return_token_ids) root["return_token_ids"] = true;
  if (fields.return_tokens_as_token_ids) root["return_tokens_as_token_ids"] = true;
  if (fields.return_progress) root["return_progress"] = true;
  if (!fields.cache_salt.empty()) root["cache_salt"] = fields.cache_salt;
  if (!fields.user.empty()) root["user"] = fields.user;
  if (fields.priority != 0) root["priority"] = fields.priority;
}

}  // namespace spark::api
