#include "engine/forward/weight_shard.h"

#include <algorithm>
#include <cstring>

#include "common/error.h"

namespace spark::engine {

WeightShards::WeightShards(const Checkpoint& checkpoint, const std::vector<model::TensorEntry>& catalogue,
                           const model::RankSplit& split, int32_t rank, const WeightReads& reads)
    : checkpoint_(checkpoint), split_(split), rank_(rank), on_loaded_(reads.on_loaded) {
  if (split.ranks > 1) {
    for (const model::TensorEntry& entry : catalogue) {
      if (entry.split_over != model::SplitOver::kNothing) cut_.emplace(entry.name, entry);
    }
  }
  if (reads.is_wanted && reads.is_copied) read_directly(catalogue, reads);
}

void WeightShards::read_directly(const std::vector<model::TensorEntry>& catalogue, const WeightReads& reads) {
  std::vector<TensorPart> parts;
  uint64_t bytes = 0;
  for (const model::TensorEntry& entry : catalogue) {
    // Tables are read row by row, and nothing computes vision yet.
    const bool is_loaded =
        entry.component != model::Component::kEngramTable && entry.component != model::Component::kVision;
    const StoredTensor* stored = checkpoint_.find(entry.name);
    if (!is_loaded || stored == nullptr || !reads.is_copied(entry)) continue;
    const Cut cut = cut_of(*stored);
    parts.push_back({entry.name, cut.first_byte(), cut.last_byte()});
    bytes += parts.back().end - parts.back().begin;
  }
  if (bytes < reads.from_bytes) return;
  for (const TensorPart& part : parts) streamed_.insert(part.name);
  stream_ = std::make_unique<TensorStream>(checkpoint_, std::move(parts), reads.stream);
}

WeightShards::Cut WeightShards::cut_of(const StoredTensor& tensor) const {
  Cut cut;
  const auto found = cut_.find(tensor.name);
  if (found == cut_.end()) {
    cut.whole = cut.padded = cut.kept = static_cast<int64_t>(tensor.bytes);
    return cut;
  }
  const model::Slice slice = model::slice_of(found->second, split_, rank_);
  const auto axis = static_cast<size_t>(slice.axis);
  SPARK_CHECK(axis < tensor.shape.size() && slice.end <= tensor.shape[axis]);
  for (size_t i = 0; i < axis; ++i) cut.outer *= tensor.shape[i];
  auto inner = static_cast<int64_t>(model::dtype_bytes(tensor.dtype));
  for (size_t i = axis + 1; i < tensor.shape.size(); ++i) inner *= tensor.shape[i];
  cut.whole = tensor.shape[axis] * inner;
  cut.padded = slice.extent * inner;
  cut.skipped = slice.begin * inner;
  cut.kept = (slice.end - slice.begin) * inner;
  return cut;
}

WeightPart WeightShards::part(const std::string& name) {
  const StoredTensor& stored = *checkpoint_.stored(name).second;
  WeightPart part{.dtype = stored.dtype, .shape = stored.shape, .bytes = {}, .copy = {}, .memory = nullptr};
  const Cut cut = cut_of(stored);
  if (const auto found = cut_.find(name); found != cut_.end()) {
    const model::Slice slice = model::slice_of(found->second, split_, rank_);
    part.shape[static_cast<size_t>(slice.axis)] = slice.extent;
  }
  // What lies between the first and the last byte that this rank needs.
  const bool is_streamed = stream_ != nullptr && streamed_.erase(name) > 0;
  if (is_streamed) {
    StagedBytes staged = stream_->take(name);
    part.bytes = staged.bytes;
    part.memory = std::move(staged.memory);
  } else {
    part.bytes = checkpoint_.tensor(name).bytes.subspan(
        static_cast<size_t>(cut.first_byte()), static_cast<size_t>(cut.last_byte() - cut.first_byte()));
  }
  if (!cut.is_one_piece()) {
    part.copy.assign(static_cast<size_t>(cut.outer * cut.padded), 0);
    for (int64_t i = 0; cut.kept > 0 && i < cut.outer; ++i) {
      std::memcpy(part.copy.data() + i * cut.padded, part.bytes.data() + i * cut.whole,
                  static_cast<size_t>(cut.kept));
    }
    part.bytes = part.copy;
    part.memory = nullptr;
  }
  if (loaded_.insert(name).second) loaded_bytes_ += static_cast<int64_t>(part.bytes.size());
  if (on_loaded_) on_loaded_(loaded_bytes_);
  return part;
}

}  // namespace spark::engine
