// How much scratch memory each operation takes, use by use. The backend allocates by these functions, and the
// memory plan counts with them what a run may leave allocated.
//
// A buffer grows when a larger step comes, and the old one stays, because recorded graphs have its address.
// So sizes go up in powers of two of the rows: however steps come, all that was ever allocated for a use is
// less than twice what its largest step takes.
//
//   const ScratchSizes sizes = draft_scratch({.rows = 5, .rank = 256, .vocab = 129280});
//   sizes.of(Scratch::kDraftRows);     // bytes
//
//   ScratchTotal total;
//   for (int64_t rows = 1; rows <= most; rows *= 2) total.add(draft_scratch(...));
//   total.bytes();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

namespace spark::engine::cuda {

// Kernels on one stream run in order, so a use's memory serves the next call of the same kind.
enum class Scratch : uint8_t {
  kMhcPartials,
  kExpertCount,
  kExpertItems,
  kExpertRow,
  kExpertWeight,
  kExpertDestination,
  kExpertCodes,
  kExpertScales,
  kExpertXScales,
  kExpertWords,
  kExpertOutputs,
  kExpertArrivals,
  kSharedGate,
  kSharedUp,
  kSharedCodes,
  kSharedScales,
  kSharedOut,
  kIndexScores,
  kIndexBlocks,
  kArgmax,
  kSelectBest,
  kSelectMasses,
  kSelectTotals,
  kDraftRows,
  kDraftProduct,
  kCount,
};
inline constexpr size_t kScratchUses = static_cast<size_t>(Scratch::kCount);

// Bytes by use; 0: the operation does not have that use.
struct ScratchSizes {
  std::array<int64_t, kScratchUses> bytes{};

  int64_t of(Scratch use) const { return bytes[static_cast<size_t>(use)]; }
  int64_t& of(Scratch use) { return bytes[static_cast<size_t>(use)]; }
};

ScratchSizes mix_scratch(int64_t rows, int64_t columns);

// Which kernels the routed experts take.
enum class ExpertForm : uint8_t {
  kItems,   // two launches, activations as codes
  kStream,  // one launch, activations as words
  kPrompt,  // more rows than kMaxLinearRows in one go
};
struct ExpertWork {
  int64_t rows = 0;
  int64_t top_k = 0;
  int64_t experts = 0;
  int64_t hidden = 0;
  int64_t width = 0;         // of a routed expert
  int64_t shared_width = 0;  // of the shared one
};
// Of the shared expert, too.
ScratchSizes expert_scratch(ExpertForm form, const ExpertWork& shape);

struct IndexWork {
  int64_t rows = 0;
  int64_t row_scores = 0;  // entries that a row has scores of
  int64_t row_blocks = 0;  // candidate blocks that it has maxima of
};
// Rows of one launch: of long sequences a prompt is taken in pieces.
int64_t index_rows_at_once(const IndexWork& shape);
ScratchSizes index_scratch(const IndexWork& shape);

struct DraftWork {
  int64_t rows = 0;
  int64_t rank = 0;
  int64_t vocab = 0;
};
ScratchSizes draft_scratch(const DraftWork& shape);
ScratchSizes argmax_scratch(int64_t rows);
ScratchSizes select_scratch(int64_t rows, int64_t vocab);

// What is allocated in the end when operations of all these sizes come in the worst order, the smallest
// first.
class ScratchTotal {
 public:
  void add(const ScratchSizes& sizes);
  int64_t bytes() const;

 private:
  std::array<std::set<int64_t>, kScratchUses> sizes_;
};

// The operations of a model's forward pass.
struct ScratchModel {
  int64_t rows = 0;                // of a step
  int64_t mix_columns = 0;         // of all residual streams
  ExpertWork experts = {};         // its rows do not matter
  int64_t index_entries = 0;       // of the longest sequence; 0: no indexer
  int64_t candidate_block = 0;     // entries of a candidate block; 0: none
  int64_t restricted_entries = 0;  // of all candidate blocks of a row
  DraftWork drafts = {};           // rows 0: no drafter
  ExpertWork draft_experts = {};
};
// At most, on every device.
int64_t most_scratch_bytes(const ScratchModel& model);

}  // namespace spark::engine::cuda
