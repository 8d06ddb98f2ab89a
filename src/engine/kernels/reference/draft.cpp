#include <algorithm>
#include <vector>

#include "engine/kernels/reference/operations.h"

namespace spark::engine::reference {

void draft(const DraftArgs& args) {
  const size_t vocab = static_cast<size_t>(args.vocab);
  const size_t rank = static_cast<size_t>(args.rank);
  const size_t hidden = static_cast<size_t>(args.hidden);
  const uint16_t* table = static_cast<const uint16_t*>(args.embed->data);
  std::vector<float> logits(vocab);
  std::vector<uint16_t> joined(hidden + rank);
  for (int32_t t = 0; t < args.step.rows; ++t) {
    if (args.step.sequence[t] < 0) continue;
    if (args.place >= 0 && t - args.step.first_row[t] != args.place) continue;
    const size_t row = static_cast<size_t>(t);
    const int32_t previous = t == args.step.first_row[t] ? args.step.token[t] : args.draft[t - 1];
    const uint16_t* m = table + static_cast<size_t>(previous) * rank;
    linear({.rows = 1, .x = m, .weight = args.head, .y_f32 = logits.data(), .y_stride = args.vocab});
    for (size_t v = 0; v < vocab; ++v) logits[v] = args.base[row * vocab + v] + logits[v];
    args.draft[t] = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (args.logits != nullptr) std::copy(logits.begin(), logits.end(), args.logits + row * vocab);
    std::copy_n(args.x + row * hidden, hidden, joined.begin());
    std::copy_n(m, rank, joined.begin() + static_cast<std::ptrdiff_t>(hidden));
    linear({.rows = 1,
            .x = joined.data(),
            .weight = args.confidence_proj,
            .y_f32 = args.confidence + t,
            .y_stride = 1});
  }
}

}  // namespace spark::engine::reference
