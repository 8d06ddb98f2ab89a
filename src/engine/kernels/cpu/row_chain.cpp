#include "engine/kernels/cpu/row_chain.h"

#include <algorithm>
#include <utility>

namespace spark::engine::cpu {

void RowChain::run() {
  if (count_ == 0) return;
  const int64_t rows = rows_;
  const int64_t group = std::min(group_, (rows + pool_.threads() - 1) / pool_.threads());
  const size_t count = std::exchange(count_, 0);
  rows_ = 0;
  group_ = 1;
  pool_.run((rows + group - 1) / group, std::exchange(cost_ns_, 0.0), [&](int64_t task, int worker) {
    const int64_t first = task * group;
    const int64_t taken = std::min(group, rows - first);
    for (size_t i = 0; i < count; ++i) links_[i].call(links_[i].storage, first, taken, worker);
  });
}

}  // namespace spark::engine::cpu
