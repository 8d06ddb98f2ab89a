#include <algorithm>

#include "engine/kernels/cuda/backend_impl.h"
#include "engine/kernels/cuda/index_cluster.h"

namespace spark::engine::cuda {

void Backend::index_select(const IndexSelectArgs& args) {
  if (index_cluster_fits(limits_, args)) {
    const Launch on = main();
    launch_index_cluster(on, args, settled_before(args.candidate_blocks));
    written(args.selected);
    if (args.mode == CandidateMode::kProduce) written(args.candidate_blocks);
    return;
  }
  const bool restricted = args.mode == CandidateMode::kRestrict;
  const bool produce = args.mode == CandidateMode::kProduce;
  if (args.scores != nullptr) {
    // All scores, for whoever looks at them; they also serve an unrestricted selection.
    launch_index_scores(
        main(), args, {.row_end = args.step.rows, .scores = args.scores, .stride = args.max_entries}, false);
  }
  IndexWorkspace work;
  work.stride =
      std::max<int64_t>(1, restricted ? int64_t{args.max_blocks} * args.block_size : args.max_entries);
  work.block_stride = produce ? ceil_div(std::max(args.max_entries, 1), args.block_size) : 0;
  const IndexWork shape = {
      .rows = args.step.rows, .row_scores = work.stride, .row_blocks = work.block_stride};
  const ScratchSizes sizes = index_scratch(shape);
  const int piece = static_cast<int>(index_rows_at_once(shape));
  work.scores = scratch<uint16_t>(Scratch::kIndexScores, sizes);
  work.block_best = scratch<uint16_t>(Scratch::kIndexBlocks, sizes);
  for (int first = 0; first < args.step.rows; first += piece) {
    work.row_begin = first;
    work.row_end = std::min(first + piece, args.step.rows);
    launch_index_scores(main(), args, work, restricted);
    launch_index_select(main(), args, work);
  }
  written(args.selected);
  if (produce) written(args.candidate_blocks);
}

void Backend::argmax(const float* logits, int32_t rows, int64_t columns, int32_t* index) {
  launch_argmax(main(), logits, rows, columns, columns, index,
                scratch<uint64_t>(Scratch::kArgmax, argmax_scratch(rows)));
}

void Backend::draft(const DraftArgs& args) {
  const int rows = args.step.rows;
  const ScratchSizes sizes = draft_scratch({.rows = rows, .rank = args.rank, .vocab = args.vocab});
  uint16_t* m = scratch<uint16_t>(Scratch::kDraftRows, sizes);
  float* product = scratch<float>(Scratch::kDraftProduct, sizes);
  uint64_t* best = scratch<uint64_t>(Scratch::kArgmax, sizes);
  const int places = args.block_rows > 0 ? std::min(args.block_rows, rows) : rows;
  const int first = std::max(args.place, 0);
  for (int place = first; place < (args.place < 0 ? places : first + 1); ++place) {
    launch_draft_gather(main(), args, place, WeightStore::prepared(*args.embed), m);
    linear({.rows = rows, .x = m, .weight = args.head, .y_f32 = product, .y_stride = args.vocab});
    const Launch pieces = main();
    const Launch finish = main();
    launch_draft_pick(pieces, finish, args, place, product, WeightStore::prepared(*args.confidence_proj), m,
                      best);
  }
}

void Backend::select(const SelectArgs& args) {
  require_vocabulary(args.vocab);
  if (args.rows > 0) launch_select(main(), args, select_workspace(args.rows, args.vocab));
}

void Backend::verify_drafts(const VerifyArgs& args) {
  require_vocabulary(args.vocab);
  const int64_t rows = int64_t{args.blocks} * (2 * args.max_drafts + 1);
  if (args.blocks > 0) launch_verify(main(), args, select_workspace(rows, args.vocab));
}

}  // namespace spark::engine::cuda
