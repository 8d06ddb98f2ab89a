#include "ops/doctor/secrets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "common/error.h"
#include "common/file.h"
#include "common/process.h"

namespace spark::ops {
namespace {

struct TokenForm {
  const char* prefix;
  const char* kind;
  size_t length;  // characters after the prefix, at least
};

// Written in two parts, so that this file does not match itself.
constexpr std::array<TokenForm, 10> kTokenForms = {{
    {"github"
     "_pat_",
     "a GitHub token", 20},
    {"gh"
     "p_",
     "a GitHub token", 20},
    {"gh"
     "o_",
     "a GitHub token", 20},
    {"gh"
     "s_",
     "a GitHub token", 20},
    {"h"
     "f_",
     "a Hugging Face token", 20},
    {"ts"
     "key-",
     "a Tailscale key", 20},
    {"gl"
     "pat-",
     "a GitLab token", 20},
    {"xo"
     "xb-",
     "a Slack token", 20},
    {"AK"
     "IA",
     "an AWS access key", 16},
    {"sk"
     "-",
     "an API key", 32},
}};

constexpr std::array<const char*, 4> kForbiddenNames = {".env", "id_rsa", "id_ed25519", "credentials.json"};
constexpr std::array<const char*, 4> kForbiddenSuffixes = {".pem", ".key", ".local.env", ".local.json"};

constexpr std::string_view kKeyBegin = "-----BEGIN ";

// Names beside which a long random text is a credential.
constexpr std::array<const char*, 6> kSecretNames = {"password", "passwd", "secret",
                                                     "api_key",  "apikey", "access_token"};
constexpr size_t kNameReach = 4096;
constexpr size_t kRandomLength = 24;
constexpr double kRandomBits = 4.0;  // per character; hexadecimal digests stay below it

bool is_token_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

size_t token_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_token_char(text[length])) ++length;
  return length;
}

double bits_per_character(std::string_view text) {
  std::array<int, 256> counts = {};
  for (const char c : text) ++counts[static_cast<unsigned char>(c)];
  double bits = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    const double share = count / static_cast<double>(text.size());
    bits -= share * std::log2(share);
  }
  return bits;
}

bool mixes_classes(std::string_view text) {
  bool digit = false, lower = false, upper = false;
  for (const char c : text) {
    digit |= c >= '0' && c <= '9';
    lower |= c >= 'a' && c <= 'z';
    upper |= c >= 'A' && c <= 'Z';
  }
  return digit && lower && upper;
}

bool names_a_secret(std::string_view line) {
  std::string lower(line.substr(0, kNameReach));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return std::any_of(kSecretNames.begin(), kSecretNames.end(),
                     [&](const char* name) { return lower.find(name) != std::string::npos; });
}

// A quoted or assigned text on a line that names a secret, long and random enough to be one.
bool has_random_value(std::string_view line) {
  for (size_t i = 0; i < line.size(); ++i) {
    const size_t length = token_length(line.substr(i));
    if (length == 0) continue;
    const std::string_view word = line.substr(i, length);
    const bool assigned = i > 0 && (line[i - 1] == '"' || line[i - 1] == '\'' || line[i - 1] == '=' ||
                                    line[i - 1] == ' ' || line[i - 1] == ':');
    if (assigned && length >= kRandomLength && mixes_classes(word) &&
        bits_per_character(word) >= kRandomBits) {
      return true;
    }
    i += length;
  }
  return false;
}

std::string token_kind(std::string_view line) {
  for (const TokenForm& form : kTokenForms) {
    const std::string_view prefix = form.prefix;
    for (size_t at = line.find(prefix); at != std::string_view::npos; at = line.find(prefix, at + 1)) {
      if (at > 0 && is_token_char(line[at - 1])) continue;  // in the middle of a word
      const std::string_view rest = line.substr(at + prefix.size());
      const size_t length = token_length(rest);
      // An API key of the short form is told from words joined by hyphens by its digits.
      const bool worded = prefix.size() == 3 && prefix[0] == 's' && !mixes_classes(rest.substr(0, length));
      if (length >= form.length && !worded) return form.kind;
    }
  }
  return {};
}

bool starts_private_key(std::string_view line) {
  const size_t begin = line.find(kKeyBegin);
  return begin != std::string_view::npos && line.find(
                                                "PRIVATE "
                                                "KEY",
                                                begin) != std::string_view::npos;
}

// Letters without their case; other characters stay apart well enough for a filter.
constexpr unsigned char folded(char c) {
  return static_cast<unsigned char>(c) | 0x20U;
}

// The first two characters of everything that could begin a credential, or the name of one.
class Beginnings {
 public:
  Beginnings() {
    add(kKeyBegin);
    for (const TokenForm& form : kTokenForms) add(form.prefix);
    for (const char* name : kSecretNames) add(name);
  }
  bool possible(const char* at) const { return pairs_[pair(at)]; }
  bool certain(std::string_view rest) const {
    return std::any_of(words_.begin(), words_.end(), [&](std::string_view word) {
      return rest.size() >= word.size() && std::equal(word.begin(), word.end(), rest.begin(),
                                                      [](char a, char b) { return folded(a) == folded(b); });
    });
  }

 private:
  static size_t pair(const char* at) { return static_cast<size_t>(folded(at[0])) << 8U | folded(at[1]); }
  void add(std::string_view word) {
    words_.push_back(word);
    pairs_[pair(word.data())] = true;
  }
  std::vector<std::string_view> words_;
  std::array<bool, size_t{1} << 16> pairs_ = {};
};

// Where each line that could hold a credential begins. Most text has none, and one pass with a small table is
// far quicker than a look at every line.
std::vector<size_t> doubtful_lines(std::string_view content) {
  static const Beginnings kBeginnings;
  std::vector<size_t> lines;
  for (size_t i = 0; i + 1 < content.size(); ++i) {
    if (!kBeginnings.possible(content.data() + i) || !kBeginnings.certain(content.substr(i))) continue;
    const size_t before = i == 0 ? std::string_view::npos : content.rfind('\n', i - 1);
    lines.push_back(before == std::string_view::npos ? 0 : before + 1);
    i = std::min(content.find('\n', i), content.size());  // the line is judged as a whole
  }
  return lines;
}

}  // namespace

std::string forbidden_name(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  for (const char* forbidden : kForbiddenNames) {
    if (name == forbidden) return std::string("files named ") + forbidden + " hold credentials";
  }
  for (const char* suffix : kForbiddenSuffixes) {
    if (name.ends_with(suffix))
      return std::string("files ending in ") + suffix + " belong to one site or hold keys";
  }
  return {};
}

std::vector<SecretHit> find_secrets(const std::string& file, std::string_view content) {
  std::vector<SecretHit> hits;
  if (const std::string reason = forbidden_name(file); !reason.empty()) hits.push_back({file, 0, reason});
  size_t number = 1;
  size_t counted = 0;
  for (const size_t begin : doubtful_lines(content)) {
    number += static_cast<size_t>(std::count(content.begin() + static_cast<std::ptrdiff_t>(counted),
                                             content.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
    counted = begin;
    const std::string_view line =
        content.substr(begin, std::min(content.find('\n', begin), content.size()) - begin);
    if (starts_private_key(line)) {
      hits.push_back({file, number, "a private key"});
    } else if (std::string kind = token_kind(line); !kind.empty()) {
      hits.push_back({file, number, std::move(kind)});
    } else if (names_a_secret(line) && has_random_value(line)) {
      hits.push_back({file, number, "a random text beside the name of a secret"});
    }
  }
  return hits;
}

SecretScan scan_tracked_files(const Repository& repository, size_t limit_bytes) {
  SecretScan scan;
  std::string listing;
  try {
    const ProcessResult result =
        run_process({"git", "-C", repository.root(), "ls-files", "-z"}, {.timeout_s = 30});
    if (result.exit_code != 0) throw Error("git ls-files ended with " + std::to_string(result.exit_code));
    listing = result.output;
  } catch (const Error& error) {
    scan.failure = error.describe();
    return scan;
  }
  for (size_t begin = 0; begin < listing.size();) {
    const size_t end = std::min(listing.find('\0', begin), listing.size());
    const std::string path = listing.substr(begin, end - begin);
    begin = end + 1;
    ++scan.files;
    std::error_code error;
    const std::string full = repository.absolute(path);
    const auto status = std::filesystem::symlink_status(full, error);
    std::string content;
    if (std::filesystem::is_regular_file(status)) {
      if (std::filesystem::file_size(full, error) > limit_bytes || error) {
        scan.not_scanned.push_back(path);
      } else {
        try {
          content = read_file(full, limit_bytes);
        } catch (const Error&) {
          scan.not_scanned.push_back(path);
        }
      }
    }  // links and deleted files have a name only
    for (SecretHit& hit : find_secrets(path, content)) scan.hits.push_back(std::move(hit));
  }
  return scan;
}

}  // namespace spark::ops
