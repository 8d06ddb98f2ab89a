// The sparse attention core for one row and a group of heads. See SparseAttentionArgs for the formula.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/buffer.h"

namespace spark::engine::cpu {

constexpr int kChunkSlots = 64;
constexpr int kHeadLanes = 16;  // heads side by side in a group are a multiple of this

// The list of one row: pointers to records, null = empty slot. Slots first_main .. last_main-1 hold main
// records, the others window records.
struct SlotList {
  const uint8_t* const* record = nullptr;
  int64_t slots = 0;
  int64_t first_main = 0;
  int64_t last_main = 0;
};

struct AttendTask {
  SlotList list;
  int heads = 0;  // of this group
  int64_t width = 0;
  int pairs = 0;
  float scale = 0;
  const uint16_t* q = nullptr;     // BF16 [heads][width]
  const float* sink = nullptr;     // [heads]
  const float* cos_sin = nullptr;  // [pairs][2]
  uint16_t* o = nullptr;           // BF16 [heads][width]
};

void attend(const AttendTask& task, Buffer& scratch);

}  // namespace spark::engine::cpu
