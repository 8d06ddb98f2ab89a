#include "engine/kernels/cuda/plan/pack_plan.h"

#include "common/error.h"

namespace spark::engine::cuda {

PackChoice choose_exponent_base(std::span<const uint64_t> counts) {
  SPARK_CHECK(counts.size() == 257);
  uint64_t all = 0;
  for (const uint64_t count : counts) all += count;
  PackChoice best;
  uint64_t kept = 0;
  // 2^base must be a normal BF16 value, 2^(base) with biased exponent base + 127 <= 254.
  for (int base = 0; base <= 127; ++base) {
    uint64_t inside = counts[256];
    for (int e = base + 1; e <= base + 15; ++e) inside += counts[static_cast<size_t>(e)];
    if (base == 0 || inside > kept) {
      kept = inside;
      best.base = base;
    }
  }
  best.exceptions = all - kept;
  best.worthwhile = all > 0 && best.exceptions <= all / 256;
  best.unpack_scale = static_cast<uint16_t>((127 + best.base) << 7);
  return best;
}

}  // namespace spark::engine::cuda
