#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "common/file.h"
#include "text/added_tokens.h"
#include "text/byte_level.h"
#include "text/byte_pair.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

namespace spark::text {
namespace {

// Offsets and positions in one text are 32-bit.
constexpr size_t kMaxTextBytes = size_t{256} << 20;

// Working memory grows with the text; that of a large one is not kept.
constexpr size_t kMaxKeptTextBytes = size_t{1} << 20;

}  // namespace

struct Tokenizer::Tables {
  // What one call of encode() works with; kept for the next call.
  struct EncodeScratch {
    PreTokenizer cutter;
    BytePairEncoder::Scratch merging;
  };

  class ScratchPool {
   public:
    std::unique_ptr<EncodeScratch> take() {
      const std::lock_guard lock(mutex_);
      if (idle_.empty()) return std::make_unique<EncodeScratch>();
      std::unique_ptr<EncodeScratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
    void give_back(std::unique_ptr<EncodeScratch> scratch) {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(scratch));
    }

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncodeScratch>> idle_;
  };

  TokenizerFile file;                                   // owns the strings the views below point into
  std::vector<std::string_view> strings;                // by id
  std::string bytes;                                    // of all tokens
  std::vector<size_t> byte_ends;                        // by id
  size_t longest = 1;                                   // bytes of a token that plain text may become
  std::vector<uint8_t> flags;                           // by id: kAddedFlag, kSpecialFlag
  std::unordered_map<std::string_view, int32_t> added;  // by content
  AddedTokenMatcher first_pass;                         // added tokens with normalized = false
  AddedTokenMatcher second_pass;                        // the others, in the text between those
  std::unique_ptr<BytePairEncoder> merging;
  mutable ScratchPool pool;

  static constexpr uint8_t kAddedFlag = 1;
  static constexpr uint8_t kSpecialFlag = 2;

  explicit Tables(TokenizerFile parsed) : file(std::move(parsed)) {}
  void build(const std::string& source);
  void place_ids(Faults& faults);
  void place_added(Faults& faults);
  std::vector<Merge> resolve_merges(Faults& faults) const;
  std::array<int32_t, 256> find_byte_tokens(Faults& faults) const;
  void spell_bytes();
  // All of `text`, or so much of it that it certainly has more tokens than `max_tokens`.
  std::string_view beginning_of(std::string_view text, size_t max_tokens) const;

  void encode_plain(std::string_view text, EncodeScratch& work, std::vector<int32_t>& out,
                    size_t max_tokens = SIZE_MAX) const;
  void encode_recognising(std::string_view text, const AddedTokenMatcher& matcher, EncodeScratch& work,
                          std::vector<int32_t>& out) const;

  std::unordered_map<std::string_view, int32_t> ids;  // of the vocabulary; only while building
};

void Tokenizer::Tables::build(const std::string& source) {
  Faults faults;
  place_ids(faults);
  if (faults.empty()) place_added(faults);
  throw_if_any(faults, source, "use the tokenizer.json that was published with the model");
  const std::array<int32_t, 256> byte_tokens = find_byte_tokens(faults);
  const std::vector<Merge> merges = resolve_merges(faults);
  throw_if_any(faults, source, "use the tokenizer.json that was published with the model");
  spell_bytes();
  merging = std::make_unique<BytePairEncoder>(byte_tokens, merges);
  ids.clear();
}

// Gives every id its string; vocabulary and added tokens together must fill 0 .. n - 1.
void Tokenizer::Tables::place_ids(Faults& faults) {
  int32_t last = -1;
  for (const int32_t id : file.vocabulary_ids) last = std::max(last, id);
  for (const AddedToken& token : file.added) last = std::max(last, token.id);
  if (static_cast<size_t>(last) + 1 > file.vocabulary.size() + file.added.size()) {
    faults.push_back({"model.vocab",
                      "and added_tokens have " + std::to_string(file.vocabulary.size() + file.added.size()) +
                          " tokens, too few for ids up to " + std::to_string(last),
                      ""});
    return;
  }
  strings.assign(static_cast<size_t>(last + 1), {});
  flags.assign(strings.size(), 0);
  ids.reserve(file.vocabulary.size());
  for (size_t i = 0; i < file.vocabulary.size(); ++i) {
    const std::string_view token = file.vocabulary[i];
    const int32_t id = file.vocabulary_ids[i];
    std::string_view& place = strings[static_cast<size_t>(id)];
    if (token.empty()) faults.push_back({"model.vocab", "has an empty token, id " + std::to_string(id), ""});
    if (!ids.emplace(token, id).second) {
      faults.push_back({"model.vocab", "has \"" + std::string(token) + "\" twice", ""});
    } else if (!place.empty()) {
      faults.push_back({"model.vocab",
                        "gives id " + std::to_string(id) + " to both \"" + std::string(place) + "\" and \"" +
                            std::string(token) + "\"",
                        ""});
    }
    place = token;
  }
}

void Tokenizer::Tables::place_added(Faults& faults) {
  for (size_t i = 0; i < file.added.size(); ++i) {
    const AddedToken& token = file.added[i];
    const std::string where = "added_tokens[" + std::to_string(i) + "]";
    std::string_view& place = strings[static_cast<size_t>(token.id)];
    const auto in_vocabulary = ids.find(token.content);
    const bool same = in_vocabulary != ids.end() && in_vocabulary->second == token.id;
    if (!added.emplace(token.content, token.id).second) {
      faults.push_back({where, "\"" + token.content + "\" stands twice", ""});
    } else if (in_vocabulary != ids.end() && !same) {
      faults.push_back({where,
                        "\"" + token.content + "\" has id " + std::to_string(in_vocabulary->second) +
                            " in model.vocab and " + std::to_string(token.id) + " here",
                        ""});
    } else if (!place.empty() && !same) {
      faults.push_back(
          {where, "id " + std::to_string(token.id) + " is taken by \"" + std::string(place) + "\"", ""});
    }
    place = token.content;
    flags[static_cast<size_t>(token.id)] =
        static_cast<uint8_t>(kAddedFlag | (token.special ? kSpecialFlag : 0));
    (token.normalized ? second_pass : first_pass).add(token.content, token.id);
  }
  const auto gap = std::find(strings.begin(), strings.end(), std::string_view());
  if (gap != strings.end() && faults.empty()) {
    faults.push_back({"model.vocab",
                      "and added_tokens leave id " + std::to_string(gap - strings.begin()) +
                          " without a token; the largest id is " + std::to_string(strings.size() - 1),
                      ""});
  }
}

std::array<int32_t, 256> Tokenizer::Tables::find_byte_tokens(Faults& faults) const {
  std::array<int32_t, 256> result{};
  for (size_t byte = 0; byte < result.size(); ++byte) {
    const std::string spelling = byte_level_string(std::string(1, static_cast<char>(byte)));
    const auto found = ids.find(spelling);
    if (found == ids.end()) {
      faults.push_back(
          {"model.vocab", "has no token \"" + spelling + "\" for byte " + std::to_string(byte), ""});
    } else if (flags[static_cast<size_t>(found->second)] != 0) {
      faults.push_back({"added_tokens",
                        "has \"" + spelling +
                            "\", the token of a single byte; plain text must "
                            "not become an added token",
                        ""});
    } else {
      result[byte] = found->second;
    }
  }
  return result;
}

std::vector<Merge> Tokenizer::Tables::resolve_merges(Faults& faults) const {
  std::vector<Merge> merges;
  merges.reserve(file.merges.size());
  std::vector<std::pair<int32_t, int32_t>> pairs;
  pairs.reserve(file.merges.size());
  std::string joined;
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const std::string_view merge = file.merges[i];
    const auto fault = [&](const std::string& what) {
      faults.push_back(
          {"model.merges[" + std::to_string(i) + "]", "\"" + std::string(merge) + "\" " + what, ""});
    };
    const size_t blank = merge.find(' ');
    if (blank == std::string_view::npos || merge.find(' ', blank + 1) != std::string_view::npos) {
      fault("must be two tokens with one blank between them");
      continue;
    }
    const auto left = ids.find(merge.substr(0, blank));
    const auto right = ids.find(merge.substr(blank + 1));
    joined.assign(merge.substr(0, blank)).append(merge.substr(blank + 1));
    const auto result = ids.find(joined);
    if (left == ids.end() || right == ids.end() || result == ids.end()) {
      fault("has a part, or gives a token, that is not in model.vocab");
    } else if (flags[static_cast<size_t>(result->second)] != 0) {
      fault("builds an added token; plain text must not become an added token");
    } else {
      merges.push_back({left->second, right->second, result->second});
      pairs.emplace_back(left->second, right->second);
    }
  }
  std::sort(pairs.begin(), pairs.end());
  const auto twice = std::adjacent_find(pairs.begin(), pairs.end());
  if (twice != pairs.end()) {
    faults.push_back({"model.merges",
                      "has \"" + std::string(strings[static_cast<size_t>(twice->first)]) + " " +
                          std::string(strings[static_cast<size_t>(twice->second)]) + "\" twice",
                      ""});
  }
  return merges;
}

void Tokenizer::Tables::spell_bytes() {
  byte_ends.reserve(strings.size());
  for (size_t id = 0; id < strings.size(); ++id) {
    const bool plain = (flags[id] & kAddedFlag) == 0;
    // A vocabulary string outside the byte alphabet stands for itself, as in the library's decoder.
    if (!plain || !append_byte_level_bytes(strings[id], bytes)) bytes.append(strings[id]);
    if (plain) longest = std::max(longest, bytes.size() - (byte_ends.empty() ? 0 : byte_ends.back()));
    byte_ends.push_back(bytes.size());
  }
}

std::string_view Tokenizer::Tables::beginning_of(std::string_view text, size_t max_tokens) const {
  if (max_tokens >= text.size() / longest) return text;
  return text.substr(0, (max_tokens + 1) * longest);
}

void Tokenizer::Tables::encode_plain(std::string_view text, EncodeScratch& work, std::vector<int32_t>& out,
                                     size_t max_tokens) const {
  work.cutter.cut(text, [&](std::string_view word) {
    merging->encode_word(word, work.merging, out);
    return out.size() <= max_tokens;
  });
}

void Tokenizer::Tables::encode_recognising(std::string_view text, const AddedTokenMatcher& matcher,
                                           EncodeScratch& work, std::vector<int32_t>& out) const {
  const auto between = [&](std::string_view piece) {
    if (&matcher == &first_pass) {
      encode_recognising(piece, second_pass, work, out);
    } else {
      encode_plain(piece, work, out);
    }
  };
  size_t begin = 0;
  while (const auto hit = matcher.find(text, begin)) {
    between(text.substr(begin, hit->begin - begin));
    out.push_back(hit->id);
    begin = hit->begin + hit->length;
  }
  between(text.substr(begin));
}

Tokenizer::Tokenizer(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::string& path) {
  return from_json(read_file(path), path);
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& source) {
  auto tables = std::make_unique<Tables>(parse_tokenizer_file(json, source));
  tables->build(source);
  return Tokenizer(std::move(tables));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, ControlTokens control_tokens,
                                       const EncodeBounds& bounds) const {
  std::vector<int32_t> out;
  out.reserve(std::min(text.size() / 3, bounds.max_tokens) + 1);
  append_encoded(text, control_tokens, out, bounds);
  return out;
}

void Tokenizer::append_encoded(std::string_view text, ControlTokens control_tokens, std::vector<int32_t>& out,
                               const EncodeBounds& bounds) const {
  if (out.size() > bounds.max_tokens) return;
  if (control_tokens == ControlTokens::kAsText)
    text = tables_->beginning_of(text, bounds.max_tokens - out.size());
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_malformed_utf8(text);
    text = repaired;
  }
  if (text.size() > kMaxTextBytes) {
    throw Error("the text has " + std::to_string(text.size()) + " bytes; one text may have " +
                    std::to_string(kMaxTextBytes),
                "tokenizer", "split it");
  }
  auto work = tables_->pool.take();
  work->merging.stop = bounds.stop;
  if (control_tokens == ControlTokens::kAsText) {
    tables_->encode_plain(text, *work, out, bounds.max_tokens);
  } else {
    tables_->encode_recognising(text, tables_->first_pass, *work, out);
  }
  work->merging.stop = nullptr;
  if (text.size() <= kMaxKeptTextBytes) tables_->pool.give_back(std::move(work));
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view token = token_bytes(id);
    if (!skip_special || !is_special(id)) bytes.append(token);
  }
  return is_valid_utf8(bytes) ? bytes : replace_malformed_utf8(bytes);
}

void Tokenizer::check_id(int32_t id) const {
  if (contains(id)) return;
  throw Error("token id " + std::to_string(id) + " does not exist", "tokenizer",
              "ids are 0 to " + std::to_string(vocab_size() - 1));
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  check_id(id);
  const auto at = static_cast<size_t>(id);
  const size_t begin = at == 0 ? 0 : tables_->byte_ends[at - 1];
  return std::string_view(tables_->bytes).substr(begin, tables_->byte_ends[at] - begin);
}

std::string_view Tokenizer::token_string(int32_t id) const {
  check_id(id);
  return tables_->strings[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto found = tables_->added.find(content);
  return found == tables_->added.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_added(int32_t id) const {
  check_id(id);
  return (tables_->flags[static_cast<size_t>(id)] & Tables::kAddedFlag) != 0;
}

bool Tokenizer::is_special(int32_t id) const {
  check_id(id);
  return (tables_->flags[static_cast<size_t>(id)] & Tables::kSpecialFlag) != 0;
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(tables_->strings.size());
}

}  // namespace spark::text
