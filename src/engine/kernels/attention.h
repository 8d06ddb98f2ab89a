// Rotation, cache writers, the ratio-2 pooling, and the sparse attention core. All heads share one latent (K
// = V).
#pragma once

#include "engine/kernels/types.h"

namespace spark::engine {

// cos_sin[t][i] = (cos, sin) of float(position[t] - back) * freq[i], an FP32 product, full argument
// reduction. Compressed entries of ratio r are rotated at their first token, so rows that emit one use back =
// r - 1.
struct RopeAnglesArgs {
  StepRows step = {};
  int32_t back = 0;
  int32_t pairs = 0;            // rotary width / 2
  const float* freq = nullptr;  // [pairs]
  float* cos_sin = nullptr;     // [rows][pairs][2]
};

// Rotates the last 2*pairs channels of every head in place: (a, b) -> (a c - b s, a s + b c), FP32, rounded
// to BF16.
struct RopeArgs {
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t width = 0;
  int32_t pairs = 0;
  bool inverse = false;            // negates s
  const float* cos_sin = nullptr;  // [rows][pairs][2]
  uint16_t* x = nullptr;           // BF16 [rows][heads][width]
};

// Rotates kv (BF16, already normalised), quantises it (FP8 block 32, all channels) and stores the record of
// position[t] in the window cache. `records`, when set, receives them contiguously instead (a drafter's block
// entries).
struct WindowWriteArgs {
  StepRows step = {};
  int32_t width = 0;
  int32_t pairs = 0;
  const float* cos_sin = nullptr;
  const uint16_t* kv = nullptr;  // BF16 [rows][width]
  PagedCache cache = {};
  uint8_t* records = nullptr;  // [rows][window_record_bytes(width)] or null
};

// Ratio-2 pooling. A row at an odd position p closes the pair (p-1, p): per channel (a, b) =
// softmax(score[p-1], score[p]), pooled = round_bf16(a * kv[p-1] + b * kv[p]), FP32 inside. Row p-1 is the
// row before when it is in the step, else slot (p-1) mod ring of the sequence's open-pair state. Rows at even
// positions give zeros. Afterwards (all reads come first) the last `ring` rows of every sequence are stored
// in the state at position mod ring, so a rejected draft can be undone.
struct PoolPairsArgs {
  StepRows step = {};
  int32_t width = 0;
  int32_t ring = 0;
  const float* kv = nullptr;     // FP32 [rows][width]
  const float* score = nullptr;  // FP32 [rows][width]
  float* state = nullptr;        // FP32 [sequences][ring][2][width]: kv then score
  uint16_t* pooled = nullptr;    // BF16 [rows][width]
};

// For every row that completes entry j = position / ratio (that is (position + 1) % ratio == 0):
//   index key : rotate the last 2*pairs of key[t], FP4 block 32 UE8M0 -> key cache record j
//   main entry: rotate the last 2*pairs of latent[t], FP4 block 16 E4M3 -> main cache record j
// cos_sin holds the angles of the entry's first token (back = ratio - 1).
struct EntryWriteArgs {
  StepRows step = {};
  int32_t ratio = 1;
  int32_t width = 0;  // latent width
  int32_t key_width = 0;
  int32_t pairs = 0;
  const float* cos_sin = nullptr;
  const uint16_t* latent = nullptr;  // BF16 [rows][width], after the compressor's norm, unrotated
  const uint16_t* key = nullptr;     // BF16 [rows][key_width], after k_norm, unrotated
  PagedCache main_cache = {};
  PagedCache key_cache = {};
};

// The order in which the window's slots are listed (it decides the 64-slot chunks, hence last bits).
enum class WindowOrder : uint8_t {
  kOldestFirst,  // slot i is position p - window + 1 + i; slots before the start are empty and come first
  kRingSlot,     // slot i is the visible position that is i modulo the window (drafter)
};

// One row, one head: the list is `window` slots, then `selected` entries, then `extra` records; chunks of 64
// consecutive slots. Per chunk: z = (q . kv) * scale; m' = max(m, max z); f = exp(m - m'); e = exp(z - m'); d
// = d*f + sum e; acc = acc*f + sum round_bf16(e) * kv. Then d += exp(sink - m); o = round_bf16(acc / d); 0
// for an empty list. Finally the last 2*pairs channels are rotated back (inverse) at the row's position, BF16
// -> FP32 -> BF16.
struct SparseAttentionArgs {
  StepRows step = {};
  int32_t heads = 0;
  int32_t width = 0;
  int32_t pairs = 0;
  int32_t window = 0;
  float scale = 0;  // width^-0.5
  WindowOrder order = WindowOrder::kOldestFirst;
  const uint16_t* q = nullptr;   // BF16 [rows][heads][width], rotated
  PagedCache window_cache = {};  // records of window_record_bytes(width)
  // Drafter rows all show the window that ends here instead of at their own position, [rows]; null otherwise.
  const int32_t* window_end = nullptr;
  PagedCache main_cache = {};         // records of main_record_bytes(width); base null for window-only layers
  const int32_t* selected = nullptr;  // [rows][max_selected] entry indices, ascending, then -1
  int32_t max_selected = 0;
  const uint8_t* extra =
      nullptr;  // window records [n], shared by the rows first_row..last_row of a sequence, or null
  const float* sink = nullptr;     // FP32 [heads]
  const float* cos_sin = nullptr;  // [rows][pairs][2], at the row's position
  uint16_t* o = nullptr;           // BF16 [rows][heads][width]
};

}  // namespace spark::engine
