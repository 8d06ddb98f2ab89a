#include "engine/kernels/cuda/plan/scratch_plan.h"

#include <algorithm>
#include <bit>

#include "engine/kernels/cuda/plan/linear_plan.h"
#include "engine/kernels/cuda/plan/work_shapes.h"

namespace spark::engine::cuda {
namespace {

constexpr int64_t kBf16 = 2, kWord = 4, kWord64 = 8;
constexpr int64_t kIndexBytes = int64_t{256} << 20;

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// The work of at most kMaxLinearRows rows, cut into items of few rows.
void add_items(ExpertForm form, const ExpertWork& shape, ScratchSizes& sizes) {
  const int64_t rows = std::min<int64_t>(power_of_two(shape.rows), kMaxLinearRows);
  const int64_t most = rows * shape.top_k;
  const int64_t stride = expert_codes_stride(shape.width);
  sizes.of(Scratch::kExpertItems) = most * static_cast<int64_t>(sizeof(ExpertItem));
  sizes.of(Scratch::kExpertRow) = most * kExpertRows * kWord;
  sizes.of(Scratch::kExpertWeight) = most * kExpertRows * kWord;
  sizes.of(Scratch::kExpertDestination) = most * kWord;
  sizes.of(Scratch::kExpertOutputs) = most * shape.hidden * kBf16;
  sizes.of(Scratch::kExpertArrivals) = ceil_div(shape.hidden, kDownChannels) * kWord;
  if (form == ExpertForm::kStream) {
    sizes.of(Scratch::kExpertWords) = most * shape.width / 4 * kWord64;
  } else {
    sizes.of(Scratch::kExpertCodes) = most * stride;
    sizes.of(Scratch::kExpertScales) = most * stride / 32;
    sizes.of(Scratch::kExpertXScales) = rows * ceil_div(shape.hidden, 128) * kWord;
  }
}

void add_prompt(const ExpertWork& shape, ScratchSizes& sizes) {
  const int64_t most = power_of_two(std::min<int64_t>(shape.rows, kMaxPrefillRows)) * shape.top_k;
  const int64_t stride = expert_codes_stride(shape.width);
  sizes.of(Scratch::kExpertItems) =
      (shape.experts + most / kPrefillItemRows) * static_cast<int64_t>(sizeof(ExpertItem));
  sizes.of(Scratch::kExpertRow) = most * kWord;
  sizes.of(Scratch::kExpertWeight) = most * kWord;
  sizes.of(Scratch::kExpertDestination) = most * kWord;
  sizes.of(Scratch::kExpertCodes) = most * stride;
  sizes.of(Scratch::kExpertScales) = most * stride / 32;
  sizes.of(Scratch::kExpertOutputs) = most * shape.hidden * kBf16;
}

// 1, 2, 4, ... and the first power of two that `most` fits in: numbers of rows whose sizes differ.
template <class Use>
void for_sizes(int64_t most, const Use& use) {
  for (int64_t n = 1; n < most; n *= 2) use(n);
  use(most);
}

void add_experts(const ExpertWork& shape, int64_t most_rows, ScratchTotal& total) {
  ExpertWork of_rows = shape;
  for_sizes(most_rows, [&](int64_t rows) {
    of_rows.rows = rows;
    for (const ExpertForm form : {ExpertForm::kItems, ExpertForm::kStream}) {
      total.add(expert_scratch(form, of_rows));
    }
    if (rows > kMaxLinearRows) total.add(expert_scratch(ExpertForm::kPrompt, of_rows));
  });
}

void add_indexer(const ScratchModel& model, ScratchTotal& total) {
  for_sizes(model.rows, [&](int64_t rows) {
    for_sizes(model.index_entries, [&](int64_t entries) {
      total.add(index_scratch({.rows = rows, .row_scores = entries}));
      if (model.candidate_block == 0) return;
      const int64_t blocks = ceil_div(entries, model.candidate_block);
      total.add(index_scratch({.rows = rows, .row_scores = entries, .row_blocks = blocks}));
    });
    if (model.restricted_entries == 0) return;
    total.add(index_scratch({.rows = rows, .row_scores = model.restricted_entries}));
  });
}

}  // namespace

ScratchSizes mix_scratch(int64_t rows, int64_t columns) {
  ScratchSizes sizes;
  sizes.of(Scratch::kMhcPartials) = power_of_two(rows) * kMixOutputs * mhc_mix_chunks(columns) * kWord;
  return sizes;
}

ScratchSizes expert_scratch(ExpertForm form, const ExpertWork& shape) {
  ScratchSizes sizes;
  const int64_t rows = power_of_two(shape.rows);
  sizes.of(Scratch::kSharedGate) = rows * shape.shared_width * kBf16;
  sizes.of(Scratch::kSharedUp) = rows * shape.shared_width * kBf16;
  sizes.of(Scratch::kSharedOut) = rows * shape.hidden * kBf16;
  sizes.of(Scratch::kSharedCodes) = rows * shape.shared_width;
  sizes.of(Scratch::kSharedScales) = rows * shape.shared_width / 32;
  sizes.of(Scratch::kExpertCount) = kWord;
  if (form == ExpertForm::kPrompt) {
    add_prompt(shape, sizes);
  } else {
    add_items(form, shape, sizes);
  }
  return sizes;
}

int64_t index_rows_at_once(const IndexWork& shape) {
  const int64_t row = std::max<int64_t>(1, kBf16 * (shape.row_scores + shape.row_blocks));
  return std::min(shape.rows, std::max<int64_t>(8, kIndexBytes / row));
}

ScratchSizes index_scratch(const IndexWork& shape) {
  const int64_t rows = index_rows_at_once(shape);
  ScratchSizes sizes;
  // Of the product: sequences grow, too.
  sizes.of(Scratch::kIndexScores) = power_of_two(rows * shape.row_scores) * kBf16;
  if (shape.row_blocks > 0) {
    sizes.of(Scratch::kIndexBlocks) = power_of_two(rows * shape.row_blocks) * kBf16;
  }
  return sizes;
}

ScratchSizes draft_scratch(const DraftWork& shape) {
  const int64_t rows = power_of_two(shape.rows);
  ScratchSizes sizes = argmax_scratch(shape.rows);
  sizes.of(Scratch::kDraftRows) = rows * shape.rank * kBf16;
  sizes.of(Scratch::kDraftProduct) = rows * shape.vocab * kWord;
  return sizes;
}

ScratchSizes argmax_scratch(int64_t rows) {
  ScratchSizes sizes;
  sizes.of(Scratch::kArgmax) = power_of_two(rows) * kArgmaxPieces * kWord64;
  return sizes;
}

ScratchSizes select_scratch(int64_t rows, int64_t vocab) {
  const int64_t most = power_of_two(rows);
  ScratchSizes sizes;
  sizes.of(Scratch::kSelectBest) = most * kSelectPieces * kWord64;
  sizes.of(Scratch::kSelectMasses) = most * vocab * kWord64;
  sizes.of(Scratch::kSelectTotals) = most * kWord64;
  return sizes;
}

void ScratchTotal::add(const ScratchSizes& sizes) {
  for (size_t use = 0; use < kScratchUses; ++use) {
    if (sizes.bytes[use] > 0) sizes_[use].insert(sizes.bytes[use]);
  }
}

int64_t ScratchTotal::bytes() const {
  int64_t sum = 0;
  for (const std::set<int64_t>& use : sizes_) {
    for (const int64_t bytes : use) sum += bytes;
  }
  return sum;
}

int64_t most_scratch_bytes(const ScratchModel& model) {
  ScratchTotal total;
  const int64_t rows = std::max(model.rows, model.drafts.rows);
  for_sizes(rows, [&](int64_t n) { total.add(mix_scratch(n, model.mix_columns)); });
  add_experts(model.experts, model.rows, total);
  if (model.index_entries > 0) add_indexer(model, total);
  if (model.drafts.rows > 0) {
    add_experts(model.draft_experts, model.drafts.rows, total);
    for_sizes(model.drafts.rows, [&](int64_t n) {
      total.add(draft_scratch({.rows = n, .rank = model.drafts.rank, .vocab = model.drafts.vocab}));
    });
  }
  return total.bytes();
}

}  // namespace spark::engine::cuda
