// Cache records as the operands of attention's products.
//
// A lane takes 32 adjacent channels of a record: 16 bytes of an FP4 entry, 32 of an FP8 record. Eight of them
// are a unit: 16 bytes of BF16, whose pairs are channels (0, 4), (1, 5), (2, 6), (3, 7), because those codes
// lie 16 bits apart in a word. So the lane's words are fragments of the matrix instruction's second operand
// as they come (the queries are given the same order), and no transposition or exchange stands between load
// and product.
//
// The codes are put into place as BF16 bits, subnormal or not, with an exponent that is too small; one exact
// multiplication applies the scale (FP8: two). All values are 2^-8 of the record's, so that no E4M3 scale
// overflows; the scores' factor and the last division take that back.
#pragma once

#include "engine/kernels/cuda/attention_records.cuh"
#include "engine/kernels/cuda/device.cuh"

namespace spark::engine::cuda {

constexpr float kRecordShift = 256.0f;  // 2^8, see above
constexpr int kUnitChannels = 8;
constexpr int kLaneUnits = 4;  // 32 channels

// As loaded. An FP4 entry uses `low` and the two scales, an FP8 record both halves and the scale of an even
// lane's channels or of an odd one's. An empty slot (not `live`) holds whatever there was; its scales are
// taken for zero.
struct RawChannels {
  uint4 low = {}, high = {};
  uint32_t scales = 0;  // two bytes
};
// Where the pair of scales of 32 channels lies in a record.
__device__ __forceinline__ uint32_t scales_at(bool main, uint32_t width, uint32_t channel) {
  return main ? width / 2 + channel / 16 : width + (channel / 32 & ~1u);
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* p) {
  return __ldcg(p) | uint32_t{__ldcg(p + 1)} << 8 | uint32_t{__ldcg(p + 2)} << 16 |
         uint32_t{__ldcg(p + 3)} << 24;
}
template <bool kAligned>
__device__ __forceinline__ uint4 load_words(const uint8_t* p) {
  if constexpr (kAligned) return __ldcg(reinterpret_cast<const uint4*>(p));
  return make_uint4(load_word(p), load_word(p + 4), load_word(p + 8), load_word(p + 12));
}

// From L2: a line may hold a record that is read early and one that is not written yet. `kAligned`: records
// lie on 16 bytes. All slots use the same loads, an empty one of `any` record: whatever else is written to a
// load's registers waits for it, whether it is done or not. For that reason alignment is no choice at run
// time.
template <bool kAligned>
__device__ __forceinline__ void load_channels(RawChannels& raw, const uint8_t* record, const uint8_t* any,
                                              bool main, int width, int channel) {
  if (record == nullptr || channel >= width) {
    record = any;
    channel = 0;
    main = false;
  }
  const auto at = static_cast<uint32_t>(channel), all = static_cast<uint32_t>(width);
  const uint8_t* codes = record + (main ? at / 2 : at);
  const uint8_t* scales = record + scales_at(main, all, at);
  raw.low = load_words<kAligned>(codes);
  if constexpr (kAligned) {
    raw.scales = __ldcg(reinterpret_cast<const uint16_t*>(scales));
  } else {
    // A record may end with the first scale of a pair.
    const bool odd = !main && (at / 32 & 1) != 0;
    raw.scales =
        odd ? uint32_t{__ldcg(scales + 1)} << 8 : __ldcg(scales) | (main ? __ldcg(scales + 1) << 8 : 0);
  }
  if (!main) raw.high = load_words<kAligned>(codes + 16);
}

// The same of a record that lies in shared memory, on 16 bytes.
__device__ __forceinline__ void read_channels(RawChannels& raw, const uint8_t* record, bool main, int width,
                                              int channel) {
  const auto at = static_cast<uint32_t>(channel), all = static_cast<uint32_t>(width);
  const uint8_t* codes = record + (main ? at / 2 : at);
  raw.low = *reinterpret_cast<const uint4*>(codes);
  raw.scales = *reinterpret_cast<const uint16_t*>(record + scales_at(main, all, at));
  if (!main) raw.high = *reinterpret_cast<const uint4*>(codes + 16);
}

// Both halves of a word the scale of channels 16 i .. 16 i + 15 of the lane's.
struct UnitScales {
  uint32_t pair[2];
};
__device__ __forceinline__ UnitScales main_scales(const RawChannels& raw, bool live) {
  const float2 s = half2_to_float2(e4m3x2_to_half2(live ? raw.scales : 0));
  const float low = s.x * 0x1p118f, high = s.y * 0x1p118f;
  return {{pack_bf16(low, low), pack_bf16(high, high)}};
}
__device__ __forceinline__ UnitScales window_scales(const RawChannels& raw, bool live) {
  // A lane's channels are 32 times its number from some even multiple on.
  const uint32_t scale = raw.scales >> (threadIdx.x & 1) * 8 & 0xFF;
  const float s = live ? ue8m0_to_float(scale) : 0.0f;
  const uint32_t pair = pack_bf16(s, s);
  return {{pair, pair}};
}

// A code s e e m at bits 3..0 of a half times 2^12 + 2^6 has its sign at bit 15 and e e m at bits 8..6, which
// is its value times 2^-126; what else the product holds is masked out. Nothing carries into the other half.
__device__ __forceinline__ uint4 main_unit(uint32_t codes, uint32_t scale) {
  constexpr uint32_t kCode = 0x000F000F, kPlace = 0x81C081C0, kFirst = (1u << 12) + (1u << 6);
  const uint32_t upper = codes >> 8;
  const uint32_t v0 = (codes & kCode) * kFirst & kPlace;
  const uint32_t v1 = (codes & kCode << 4) * (kFirst >> 4) & kPlace;
  const uint32_t v2 = (upper & kCode) * kFirst & kPlace;
  const uint32_t v3 = (upper & kCode << 4) * (kFirst >> 4) & kPlace;
  return make_uint4(multiply_bf16x2(v0, scale), multiply_bf16x2(v1, scale), multiply_bf16x2(v2, scale),
                    multiply_bf16x2(v3, scale));
}

// E4M3 shifted by four is the BF16 of its value times 2^-120. The second multiplication rounds only what is
// below 2^-118: a quantiser's scales are far above.
__device__ __forceinline__ uint4 window_unit(uint32_t low, uint32_t high, uint32_t scale) {
  constexpr uint32_t kUp = 0x77807780;  // 2^112, twice
  uint32_t v[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t x = __byte_perm(low, high, 0x4000 + 0x1010 * i);
    const uint32_t placed = (x & 0x80008000u) | (x >> 4 & 0x07F007F0u);
    v[i] = multiply_bf16x2(multiply_bf16x2(placed, kUp), scale);
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

}  // namespace spark::engine::cuda
