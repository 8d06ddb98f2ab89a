#include "engine/kernels/cpu/simd_targets.h"

#include <hwy/highway.h>

#include "engine/kernels/cpu/tile_unit.h"

namespace spark::engine::cpu {

const char* simd_name() {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  const int64_t usable = usable_simd_targets();
  return hwy::TargetName(usable & -usable);  // the lowest bit is the best
}

void limit_simd_targets(int64_t mask) {
  hwy::SetSupportedTargetsForTest(mask);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  allow_tile_unit(mask == 0);
}

int64_t usable_simd_targets() {
  return hwy::SupportedTargets() & HWY_TARGETS;
}

}  // namespace spark::engine::cpu
