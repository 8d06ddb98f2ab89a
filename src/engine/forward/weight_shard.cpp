#include "engine/forward/weight_shard.h"

#include <algorithm>
#include <cstring>

#include "common/error.h"

namespace spark::engine {

WeightShards::WeightShards(const Checkpoint& checkpoint, const std::vector<model::TensorEntry>& catalogue,
                           const model::RankSplit& split, int32_t rank)
    : checkpoint_(checkpoint), split_(split), rank_(rank) {
  if (split.ranks == 1) return;
  for (const model::TensorEntry& entry : catalogue) {
    if (entry.split_over != model::SplitOver::kNothing) cut_.emplace(entry.name, entry);
  }
}

WeightPart WeightShards::part(const std::string& name) {
  const TensorView view = checkpoint_.tensor(name);
  WeightPart part{
      .dtype = view.dtype, .shape = {view.shape.begin(), view.shape.end()}, .bytes = view.bytes, .copy = {}};
  if (const auto found = cut_.find(name); found != cut_.end()) {
    const model::Slice slice = model::slice_of(found->second, split_, rank_);
    const auto axis = static_cast<size_t>(slice.axis);
    SPARK_CHECK(axis < part.shape.size() && slice.end <= part.shape[axis]);
    // The tensor as [outer][extent of the axis][inner bytes].
    int64_t outer = 1;
    for (size_t i = 0; i < axis; ++i) outer *= part.shape[i];
    auto inner = static_cast<int64_t>(model::dtype_bytes(view.dtype));
    for (size_t i = axis + 1; i < part.shape.size(); ++i) inner *= part.shape[i];
    const int64_t whole = part.shape[axis] * inner;
    const int64_t kept = (slice.end - slice.begin) * inner;
    part.shape[axis] = slice.extent;
    if (outer == 1 && slice.end - slice.begin == slice.extent) {
      part.bytes = view.bytes.subspan(static_cast<size_t>(slice.begin * inner), static_cast<size_t>(kept));
    } else {
      const int64_t padded = slice.extent * inner;
      part.copy.assign(static_cast<size_t>(outer * padded), 0);
      for (int64_t i = 0; kept > 0 && i < outer; ++i) {
        std::memcpy(part.copy.data() + i * padded, view.bytes.data() + i * whole + slice.begin * inner,
                    static_cast<size_t>(kept));
      }
      part.bytes = part.copy;
    }
  }
  if (loaded_.insert(name).second) loaded_bytes_ += static_cast<int64_t>(part.bytes.size());
  return part;
}

}  // namespace spark::engine
