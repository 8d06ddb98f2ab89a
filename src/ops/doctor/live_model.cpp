// Live rules about the checkpoint on every node (specification 3.3, 7.1 item 46).
#include <algorithm>

#include "common/units.h"
#include "ops/doctor/live_context.h"

namespace spark::ops::live {
namespace {

constexpr size_t kShown = 12;

std::vector<std::string> first_of(std::vector<std::string> lines) {
  if (lines.size() <= kShown) return lines;
  const size_t more = lines.size() - kShown;
  lines.resize(kShown);
  lines.push_back("and " + std::to_string(more) + " more");
  return lines;
}

constexpr const char* kDownload =
    "download the pinned revision again into the folder that the profile mounts";

}  // namespace

void model_present(LiveContext& context, const LiveNode& node) {
  const ModelFacts& model = node.facts.model;
  if (!model.asked) return;
  if (!model.index) {
    context.error(
        node.name(),
        "the checkpoint's model.safetensors.index.json cannot be read: " + node.facts.why("model-index"),
        "the checkpoint at " + context.site.engine.model_path, kDownload);
    return;
  }
  std::vector<std::string> missing;
  for (const std::string& name : model.shard_names) {
    if (!model.shards.contains(name)) missing.push_back(name + " is missing");
  }
  if (missing.empty()) return;
  context.error(node.name(),
                std::to_string(missing.size()) + " of " + std::to_string(model.shard_names.size()) +
                    " weight shards are missing",
                "every shard that the index names", kDownload, first_of(missing));
}

void model_whole(LiveContext& context, const LiveNode& node) {
  const ModelFacts& model = node.facts.model;
  std::vector<std::string> wrong;
  for (const std::string& name : model.shard_names) {
    const auto found = model.shards.find(name);
    if (found == model.shards.end()) continue;
    const ShardFacts& shard = found->second;
    if (!shard.needed_bytes) {
      wrong.push_back(name + " has no readable header (" + format_count(static_cast<uint64_t>(shard.bytes)) +
                      " bytes)");
    } else if (*shard.needed_bytes != shard.bytes) {
      wrong.push_back(name + " has " + format_count(static_cast<uint64_t>(shard.bytes)) +
                      " bytes, its header needs " + format_count(static_cast<uint64_t>(*shard.needed_bytes)));
    }
  }
  if (wrong.empty()) return;
  context.error(node.name(), std::to_string(wrong.size()) + " weight shards are not whole",
                "files as long as their headers say", kDownload, first_of(wrong));
}

void model_same(LiveContext& context) {
  const LiveNode* first = nullptr;
  for (const LiveNode& node : context.nodes()) {
    const ModelFacts& model = node.facts.model;
    if (!model.index) continue;
    if (first == nullptr) {
      first = &node;
      continue;
    }
    std::vector<std::string> differences;
    const ModelFacts& reference = first->facts.model;
    if (model.total_bytes != reference.total_bytes || model.shard_names != reference.shard_names)
      differences.emplace_back("the index names other shards, or another number of bytes");
    for (const auto& [name, shard] : model.shards) {
      const auto other = reference.shards.find(name);
      if (other != reference.shards.end() && other->second.bytes != shard.bytes)
        differences.push_back(name + " has " + std::to_string(shard.bytes) + " bytes, on " + first->name() +
                              " " + std::to_string(other->second.bytes));
    }
    if (differences.empty()) continue;
    context.error(node.name(), "its checkpoint is not that of " + first->name(), "one revision on all nodes",
                  kDownload, first_of(differences));
  }
}

void model_fragmentation(LiveContext& context, const LiveNode& node) {
  const ModelFacts& model = node.facts.model;
  if (!model.extents) {
    if (!model.extents_failure.empty() && model.index)  // without an index model.present says it all
      context.warn(
          node.name(), "fragmentation of the weight shards is unknown: e4defrag " + model.extents_failure,
          "a complete report", "it needs ext4 and sudo without a password; not knowing blocks nothing");
    return;
  }
  int64_t current = 0, best = 0;
  size_t affected = 0;
  for (const auto& file : *model.extents) {
    current += file.current, best += file.best;
    affected += file.current > file.best ? 1 : 0;
  }
  if (affected == 0) return;
  context.warn(node.name(),
               std::to_string(affected) + "/" + std::to_string(model.extents->size()) +
                   " weight shards are not at ext4's best extent count (" + std::to_string(current) +
                   " current / " + std::to_string(best) + " best)",
               "every file at its best count; no slowdown has been established", {});
}

void model_fragmentation_hint(LiveContext& context) {
  const bool any = std::any_of(context.nodes().begin(), context.nodes().end(), [](const LiveNode& node) {
    const auto& extents = node.facts.model.extents;
    return extents && std::any_of(extents->begin(), extents->end(),
                                  [](const auto& file) { return file.current > file.best; });
  });
  if (any)
    context.warn({},
                 "weight fragmentation: `spark doctor --live --fragmentation-commands` prints the commands",
                 {}, "run them in a maintenance window with the service stopped, or leave it");
}

}  // namespace spark::ops::live
