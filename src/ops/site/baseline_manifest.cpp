#include "ops/site/baseline_manifest.h"

#include <limits>

#include "ops/site/json_object.h"

namespace spark::ops {
namespace {

BaselineCapacity read_capacity(const JsonReader& reader) {
  BaselineCapacity capacity;
  if (!reader.present() || !require_object(reader)) return capacity;
  reader.reject_unknown({"kv_cache_bytes_per_rank", "kv_cache_tokens", "max_model_len", "max_num_seqs",
                         "reported_full_context_concurrency", "graph_capture_gib", "vision_tower_gib",
                         "display_carveout_weights_mib", "checkpoint_native_max_position_embeddings"});
  const auto count = [&](const char* key) {
    return reader.field(key).optional_integer(1, std::numeric_limits<int64_t>::max());
  };
  const auto amount = [&](const char* key) { return reader.field(key).optional_number(0, 1e9); };
  capacity.kv_cache_bytes_per_rank = count("kv_cache_bytes_per_rank");
  capacity.kv_cache_tokens = count("kv_cache_tokens");
  capacity.max_model_len = count("max_model_len");
  capacity.max_num_seqs = count("max_num_seqs");
  capacity.reported_full_context_concurrency = amount("reported_full_context_concurrency");
  capacity.graph_capture_gib = amount("graph_capture_gib");
  capacity.vision_tower_gib = amount("vision_tower_gib");
  capacity.display_carveout_weights_mib = amount("display_carveout_weights_mib");
  capacity.checkpoint_native_max_position_embeddings = count("checkpoint_native_max_position_embeddings");
  return capacity;
}

BaselineNode read_baseline_node(const std::string& name, const JsonReader& reader) {
  BaselineNode node;
  node.name = name;
  if (!require_object(reader)) return node;
  reader.reject_unknown({"image_id", "role"});
  node.image_id = reader.field("image_id").string();
  node.role = reader.field("role").string();
  return node;
}

}  // namespace

BaselineManifest read_baseline_manifest(const Json& document, Faults& faults) {
  BaselineManifest manifest;
  const JsonReader root(document, "", faults);
  if (!require_object(root)) return manifest;
  root.reject_unknown({"schema_version", "status", "captured_at", "container_name", "image_tag", "image_id",
                       "nodes", "source_identity", "runtime_choices", "capacity", "change_from_previous",
                       "previous_baseline", "evidence", "build", "benchmark_reference", "hosts",
                       "description"});
  root.field("schema_version").integer(1, 1, 1);
  manifest.status = root.field("status").string();
  manifest.captured_at = root.field("captured_at").string();
  manifest.container_name = root.field("container_name").string();
  manifest.image_tag = root.field("image_tag").string();
  manifest.image_id = root.field("image_id").string();
  if (const JsonReader nodes = root.field("nodes"); require_object(nodes)) {
    for (const auto& [name, value] : nodes.members())
      manifest.nodes.push_back(read_baseline_node(name, value));
  }
  manifest.capacity = read_capacity(root.field("capacity"));
  manifest.benchmark_reference = root.field("benchmark_reference").optional_string();
  for (const char* key : {"source_identity", "runtime_choices", "evidence", "build", "hosts"}) {
    if (root.field(key).present()) require_object(root.field(key));
  }
  manifest.document = document;
  return manifest;
}

}  // namespace spark::ops
