// The checkpoint's files, the checkout, mount sources.
#include <algorithm>

#include "ops/probe/text_reader.h"
#include "ops/site/text_forms.h"

namespace spark::ops::probe {
namespace {

void read_index(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("model-index");
  if (answer == nullptr) return;
  ModelFacts& model = reader.facts().model;
  for (const std::string& line : lines_of(answer->output)) {
    if (line.rfind("\"total_size\":", 0) == 0) {
      model.total_bytes = whole_number(trimmed(line.substr(13)));
    } else if (line.size() > 2 && line.front() == '"' && line.back() == '"') {
      model.shard_names.push_back(line.substr(1, line.size() - 2));
    } else if (!line.empty()) {
      reader.fault("model-index", "has the line \"" + line.substr(0, 60) + "\"");
    }
  }
  std::sort(model.shard_names.begin(), model.shard_names.end());
  model.index = !model.shard_names.empty();
}

// "SIZE HEADER END NAME": header length and end of the last tensor, "-" when the header cannot be read
void read_shards(const FactReader& reader) {
  const CommandAnswer* answer = reader.answer("model-shards");
  if (answer == nullptr) return;
  for (const std::string& line : lines_of(answer->output)) {
    const auto words = words_of(line);
    const auto size = words.size() == 4 ? whole_number(words[0]) : std::nullopt;
    if (!size || *size < 0) {
      reader.fault("model-shards", "has the line \"" + line.substr(0, 60) + "\"");
      continue;
    }
    ShardFacts shard{words[3], *size, {}};
    const auto header = whole_number(words[1]), end = whole_number(words[2]);
    constexpr int64_t kLimit = int64_t{1} << 50;
    if (header && end && *header >= 0 && *end >= 0 && *header < kLimit && *end < kLimit)
      shard.needed_bytes = 8 + *header + *end;
    reader.facts().model.shards[shard.name] = shard;
  }
}

// "file PATH" for every file, then in the same order " Total/best extents    12/9"
void read_extents(const FactReader& reader) {
  const CommandAnswer* answer = reader.dump().command("extents");
  if (answer == nullptr) return;
  ModelFacts& model = reader.facts().model;
  std::vector<std::string> files;
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (const std::string& line : lines_of(answer->output)) {
    if (line.rfind("file ", 0) == 0) {
      files.push_back(line.substr(5));
    } else if (line.find("Total/best extents") != std::string::npos) {
      const auto words = words_of(line);
      const auto parts = split(words.back(), '/');
      const auto current = whole_number(parts[0]);
      const auto best = parts.size() == 2 ? whole_number(parts[1]) : std::nullopt;
      if (current && best) counts.emplace_back(*current, *best);
    }
  }
  if (files.empty() || counts.size() != files.size()) {
    model.extents_failure =
        !answer->ok() && counts.empty()
            ? answer->failure()
            : "reported " + std::to_string(counts.size()) + " of " + std::to_string(files.size()) + " files";
    return;
  }
  std::vector<ModelFacts::Extents> extents;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto [current, best] = counts[i];
    if (best < 1 || current < best) {
      model.extents_failure = "reported " + std::to_string(current) + "/" + std::to_string(best) + " extents";
      return;
    }
    extents.push_back({files[i], current, best});
  }
  model.extents = std::move(extents);
}

}  // namespace

void read_model(const FactReader& reader) {
  reader.facts().model.asked = reader.dump().command("model-index") != nullptr;
  read_index(reader);
  read_shards(reader);
  read_extents(reader);
}

void read_deployment(const FactReader& reader) {
  DeploymentFacts& deployment = reader.facts().deployment;
  if (const CommandAnswer* commit = reader.answer("checkout")) {
    deployment.commit = trimmed(commit->output);
    if (!is_commit(deployment.commit)) {
      reader.fault("checkout", "is \"" + deployment.commit.substr(0, 60) + "\", not a commit");
      deployment.commit.clear();
    }
  }
  if (const CommandAnswer* changes = reader.answer("checkout-changes"))
    deployment.changes = lines_of(changes->output);
  if (const CommandAnswer* mounts = reader.answer("mounts")) {
    for (const std::string& line : lines_of(mounts->output)) {
      const size_t blank = line.find(' ');
      if (blank != std::string::npos) deployment.mounts[line.substr(blank + 1)] = line.substr(0, blank);
    }
  }
}

}  // namespace spark::ops::probe
