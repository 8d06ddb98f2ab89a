// Scores and selection of the indexer in one launch, for the rows of a decode step.
#pragma once

#include "engine/kernels/cuda/launch.h"

namespace spark::engine::cuda {

// Throws Error for heads that the indexer's kernels do not take.
void require_index_shape(const IndexSelectArgs& args);

// Whether there are few enough rows, a row's list fits in the shared memory of a cluster's blocks, and nobody
// asks for the scores.
bool index_cluster_fits(const DeviceLimits& device, const IndexSelectArgs& args);
// `settled_candidates`: the candidate blocks that are read are complete when the kernel starts.
void launch_index_cluster(const Launch& on, const IndexSelectArgs& args, bool settled_candidates);

}  // namespace spark::engine::cuda
