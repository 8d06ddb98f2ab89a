#include "text/tokenizer_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/json.h"
#include "text/pretokenizer.h"

namespace spark::text {
namespace {

constexpr int64_t kMaxTokenId = (1 << 24) - 1;

// Streams model.vocab and model.merges into tables and copies every other token of the document into `rest`,
// to be parsed as usual. A document of 128,000 keys would be slow to build and to search.
class TokenizerSax : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  explicit TokenizerSax(TokenizerFile& file) : file_(file) {}

  const std::string& rest() const { return rest_; }
  bool saw_vocabulary() const { return saw_vocabulary_; }
  bool saw_merges() const { return saw_merges_; }

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return integer(value, std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return integer(static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)), std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& literal) override { return scalar(literal); }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& value) override {
    if (section_ == Section::kMerges) {
      if (levels_.size() == kSectionDepth) {
        file_.merges.add(value);
      } else {
        pair_.push_back(value);
      }
      return true;
    }
    return scalar(quoted(value));
  }

  bool start_object(std::size_t) override {
    if (section_ != Section::kNone) fail("an object");
    if (at_model_key("vocab")) {
      section_ = Section::kVocabulary;
      saw_vocabulary_ = true;
      open('{', false);
      return true;
    }
    before_value();
    open('{', true);
    return true;
  }
  bool end_object() override { return close('}'); }

  bool key(string_t& name) override {
    if (section_ == Section::kVocabulary) {
      file_.vocabulary.add(name);
      return true;
    }
    Level& level = levels_.back();
    if (level.count++ > 0) rest_ += ',';
    rest_ += quoted(name);
    rest_ += ':';
    level.key = name;
    return true;
  }

  bool start_array(std::size_t) override {
    if (section_ == Section::kVocabulary) fail("a list");
    if (section_ == Section::kMerges) {
      if (levels_.size() > kSectionDepth) fail("a list in a list");
      pair_.clear();
      levels_.push_back({});
      return true;
    }
    if (at_model_key("merges")) {
      section_ = Section::kMerges;
      saw_merges_ = true;
      open('[', false);
      return true;
    }
    before_value();
    open('[', true);
    return true;
  }

  bool end_array() override {
    if (section_ == Section::kMerges && levels_.size() > kSectionDepth) {
      if (pair_.size() != 2) {
        throw Error("merge " + std::to_string(file_.merges.size()) + " has " + std::to_string(pair_.size()) +
                    " parts; it must have 2");
      }
      file_.merges.add(pair_[0] + ' ' + pair_[1]);
      levels_.pop_back();
      return true;
    }
    return close(']');
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string message = error.what();
    const size_t cut = message.find("parse error");
    throw Error("is not valid JSON: " + message.substr(cut == std::string::npos ? 0 : cut));
  }

 private:
  enum class Section { kNone, kVocabulary, kMerges };
  struct Level {
    std::string key;  // the member being read
    size_t count = 0;
    bool array = false;
  };
  static constexpr size_t kSectionDepth = 3;  // document, model, the section
  static constexpr size_t kMaxDepth = 64;

  static std::string quoted(const std::string& text) { return nlohmann::ordered_json(text).dump(); }

  // The next value is model.NAME; it is left out of the rest, where a null takes its place.
  bool at_model_key(std::string_view name) {
    if (levels_.size() != 2 || levels_[0].key != "model" || levels_[1].key != name) return false;
    rest_ += "null";
    return true;
  }

  void open(char bracket, bool copied) {
    if (levels_.size() >= kMaxDepth) throw Error("nested deeper than 64 levels");
    levels_.push_back({});
    levels_.back().array = bracket == '[';
    if (copied) rest_ += bracket;
  }

  bool close(char bracket) {
    levels_.pop_back();
    if (section_ == Section::kNone) {
      rest_ += bracket;
    } else {
      section_ = Section::kNone;
    }
    return true;
  }

  void before_value() {
    if (!levels_.empty() && levels_.back().array && levels_.back().count++ > 0) rest_ += ',';
  }

  bool scalar(std::string_view literal) {
    if (section_ != Section::kNone) fail(std::string(literal));
    before_value();
    rest_ += literal;
    return true;
  }

  bool integer(int64_t value, const std::string& literal) {
    if (section_ != Section::kVocabulary) return scalar(literal);
    const std::string_view token = file_.vocabulary[file_.vocabulary.size() - 1];
    if (value < 0 || value > kMaxTokenId) {
      throw Error("model.vocab gives \"" + std::string(token) + "\" the id " + literal + "; ids are 0 to " +
                  std::to_string(kMaxTokenId));
    }
    file_.vocabulary_ids.push_back(static_cast<int32_t>(value));
    return true;
  }

  [[noreturn]] void fail(const std::string& seen) const {
    if (section_ == Section::kVocabulary) throw Error("model.vocab must map strings to ids, and has " + seen);
    throw Error("model.merges must list pairs of strings, and has " + seen);
  }

  TokenizerFile& file_;
  std::string rest_;
  std::vector<Level> levels_;
  std::vector<std::string> pair_;
  Section section_ = Section::kNone;
  bool saw_vocabulary_ = false;
  bool saw_merges_ = false;
};

// The published files spell the line breaks of the third pattern either as escapes or as themselves.
std::string with_escaped_line_breaks(const std::string& pattern) {
  std::string result;
  for (const char c : pattern) {
    if (c == '\r') {
      result += "\\r";
    } else if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

bool is_null_or_absent(const JsonReader& reader) {
  return !reader.present() || reader.json()->is_null();
}

void require_null(const JsonReader& reader, const std::string& what_it_would_do) {
  if (!is_null_or_absent(reader))
    reader.fault("is set, which " + what_it_would_do + "; only null is supported");
}

void require_false(const JsonReader& reader) {
  if (!is_null_or_absent(reader) && reader.boolean()) reader.fault("is true; only false is supported");
}

void check_split(const JsonReader& split, std::string_view expected) {
  if (split.field("type").string() != "Split") {
    split.field("type").fault("must be \"Split\"");
    return;
  }
  const std::string pattern = split.field("pattern").field("Regex").string();
  if (with_escaped_line_breaks(pattern) != expected) {
    split.field("pattern").fault("is the unknown pattern " + pattern,
                                 "supported here is exactly " + std::string(expected));
  }
  if (split.field("behavior").string() != "Isolated") split.field("behavior").fault("must be \"Isolated\"");
  require_false(split.field("invert"));
}

void check_pre_tokenizer(const JsonReader& pre) {
  if (pre.field("type").string() != "Sequence") {
    pre.field("type").fault("must be \"Sequence\": three Splits, then ByteLevel");
    return;
  }
  const std::vector<JsonReader> steps = pre.field("pretokenizers").items();
  if (steps.size() != kSplitPatterns.size() + 1) {
    pre.field("pretokenizers").fault("has " + std::to_string(steps.size()) + " steps; it must have 4");
    return;
  }
  for (size_t i = 0; i < kSplitPatterns.size(); ++i) check_split(steps[i], kSplitPatterns[i]);
  if (steps[3].field("type").string() != "ByteLevel") steps[3].field("type").fault("must be \"ByteLevel\"");
  require_false(steps[3].field("add_prefix_space"));
  if (!steps[3].field("use_regex").present() || steps[3].field("use_regex").boolean()) {
    steps[3].field("use_regex").fault("must be false");
  }
}

void check_normalizer(const JsonReader& normalizer) {
  if (is_null_or_absent(normalizer)) return;
  if (normalizer.field("type").string() == "Sequence" && normalizer.field("normalizers").items().empty())
    return;
  normalizer.fault("would change the text; only null or an empty Sequence is supported");
}

void check_model(const JsonReader& model, const TokenizerSax& sax) {
  if (model.field("type").string() != "BPE") {
    model.field("type").fault("must be \"BPE\"");
    return;
  }
  model.reject_unknown({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  require_null(model.field("dropout"), "makes tokens random");
  require_null(model.field("unk_token"), "is not used by a byte-level vocabulary");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonReader reader = model.field(affix);
    if (!is_null_or_absent(reader) && !reader.string().empty()) {
      reader.fault("is set; only null or an empty string is supported");
    }
  }
  for (const char* flag : {"fuse_unk", "byte_fallback", "ignore_merges"}) require_false(model.field(flag));
  if (!sax.saw_vocabulary()) model.field("vocab").fault("must be an object of strings and ids");
  if (!sax.saw_merges()) model.field("merges").fault("must be a list of pairs");
}

AddedToken read_added_token(const JsonReader& reader) {
  AddedToken token;
  token.id = static_cast<int32_t>(reader.field("id").integer(0, kMaxTokenId));
  token.content = reader.field("content").string();
  if (token.content.empty()) reader.field("content").fault("is empty: it would match everywhere");
  token.special = reader.field("special").boolean();
  token.normalized = reader.field("normalized").boolean();
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    if (reader.field(flag).boolean()) {
      reader.field(flag).fault("is true for \"" + token.content + "\"; only false is supported");
    }
  }
  return token;
}

void check_rest(const Json& rest, const TokenizerSax& sax, TokenizerFile& file, Faults& faults) {
  const JsonReader root(rest, "", faults);
  if (!rest.is_object()) {
    root.fault("must be an object");
    return;
  }
  root.reject_unknown({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  if (root.field("version").string() != "1.0") root.field("version").fault("must be \"1.0\"");
  require_null(root.field("truncation"), "cuts the text");
  require_null(root.field("padding"), "adds tokens");
  check_normalizer(root.field("normalizer"));
  check_pre_tokenizer(root.field("pre_tokenizer"));
  const JsonReader post = root.field("post_processor");
  if (!is_null_or_absent(post) && post.field("type").string() != "ByteLevel") {
    post.field("type").fault("must be \"ByteLevel\" or post_processor null: others add tokens");
  }
  if (root.field("decoder").field("type").string() != "ByteLevel") {
    root.field("decoder").field("type").fault("must be \"ByteLevel\"");
  }
  check_model(root.field("model"), sax);
  if (!is_null_or_absent(root.field("added_tokens"))) {
    for (const JsonReader& item : root.field("added_tokens").items())
      file.added.push_back(read_added_token(item));
  }
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& source) {
  constexpr size_t kMaxBytes = size_t{256} << 20;
  if (json.size() > kMaxBytes) throw Error("is larger than 256 MiB", source, "this is no tokenizer.json");
  TokenizerFile file;
  TokenizerSax sax(file);
  try {
    nlohmann::ordered_json::sax_parse(json.begin(), json.end(), &sax);
  } catch (const Error& error) {
    throw Error(error.what(), source);
  }
  Faults faults;
  check_rest(parse_json(sax.rest(), source), sax, file, faults);
  throw_if_any(faults, source, "use the tokenizer.json that was published with the model");
  return file;
}

}  // namespace spark::text
