#include "engine/kernels/cpu/tile_product.h"

#include <algorithm>

#include "engine/kernels/cpu/tile_unit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/tile_product.cpp"
// The order matters: the choice of targets, the loop over them, then highway.h.
// clang-format off
#include "engine/kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>
#include "engine/kernels/cpu/simd_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

// Rows per pass: as many accumulators as the register file holds beside the decoded weights.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif
constexpr int kWide = kLanes == 4 ? 4 : 2;  // vectors per pass for one row, where decoding dominates
// Whether there are registers for both sums of a block at once; otherwise one is finished before the other.
constexpr size_t kRegisters = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM ? 32 : 16;
constexpr bool fits_together(int rows, int vectors) {
  return static_cast<size_t>(2 * rows * vectors + 2 * vectors + 2) <= kRegisters;
}

struct TileSource {
  const uint8_t* data;
  const uint8_t* scales;
};

template <int M, int V>
using Sums = VF[M][V];

template <int M, int V>
HWY_INLINE void accumulate(const VF (&w)[V], const float* const* x, int64_t k, Sums<M, V>& sums) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const VF xk = set(x[m][k]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[m][v] = hn::MulAdd(w[v], xk, sums[m][v]);
  }
}

template <int M, int V>
HWY_INLINE void clear(Sums<M, V>& sums) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[m][v] = zero();
  }
}

template <int M, int V>
HWY_INLINE void add(const Sums<M, V>& more, Sums<M, V>& sums) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[m][v] = hn::Add(sums[m][v], more[m][v]);
  }
}

// The input of a pair that belongs to the first sum; kHalfEight on is that of the second.
constexpr int kHalfEight = 4;
constexpr int first_of(int pair) {
  return pair / kHalfEight * 8 + pair % kHalfEight;
}

struct Fp8 {
  static constexpr int64_t kBlockBytes = kTile * kBlock;
  static constexpr int64_t kScaleBytes = 4;
  static constexpr float kFactor = kE4m3HalfScale;
  static constexpr bool kScaled = true;

  using D = hn::Repartition<uint16_t, DF>;  // two vectors' worth of outputs
  using DH = hn::Half<D>;
  static HWY_INLINE void decode(hn::Vec<D> high, VF* out) {
    const hn::Repartition<int16_t, DF> di;
    const auto spread = hn::BitCast(D(), hn::ShiftRight<1>(hn::BitCast(di, high)));
    const auto half = hn::And(spread, hn::Set(D(), static_cast<uint16_t>(0xBF80)));
    out[0] = hn::PromoteTo(DF(), hn::BitCast(DF16(), hn::LowerHalf(DH(), half)));
    out[1] = hn::PromoteTo(DF(), hn::BitCast(DF16(), hn::UpperHalf(DH(), half)));
  }
  template <int M, int V>
  static HWY_INLINE void block(const uint8_t* data, size_t lane, const float* const* x, int64_t k,
                               Sums<M, V>& sums) {
    const auto* words = reinterpret_cast<const uint16_t*>(data) + lane;
    Sums<M, V> others;
    clear<M, V>(others);
    if constexpr (fits_together(M, V)) {
      for (int eight = 0; eight < kBlock / 8; ++eight) {
        add_half<M, V, true>(words, eight, x, k, sums);
        add_half<M, V, false>(words, eight, x, k, others);
      }
    } else {
      for (int eight = 0; eight < kBlock / 8; ++eight) add_half<M, V, true>(words, eight, x, k, sums);
      for (int eight = 0; eight < kBlock / 8; ++eight) add_half<M, V, false>(words, eight, x, k, others);
    }
    add<M, V>(others, sums);
  }
  // Four of eight inputs.
  template <int M, int V, bool kFirst>
  static HWY_INLINE void add_half(const uint16_t* words, int eight, const float* const* x, int64_t k,
                                  Sums<M, V>& sums) {
    words += eight * kHalfEight * kTile;
    k += 8 * eight + (kFirst ? 0 : kHalfEight);
#pragma GCC unroll 4
    for (int i = 0; i < kHalfEight; ++i) {
      VF w[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; v += 2) {
        const auto word = hn::LoadU(D(), words + i * kTile + static_cast<size_t>(v) * kLanes);
        decode(kFirst ? hn::ShiftLeft<8>(word) : word, w + v);
      }
      accumulate<M, V>(w, x, k + i, sums);
    }
  }
  static HWY_INLINE void unpack(const uint8_t* data, float* w) {
    const auto* words = reinterpret_cast<const uint16_t*>(data);
    for (int pair = 0; pair < kBlock / 2; ++pair, words += kTile) {
      float* const first = w + first_of(pair) * kTile;
      float* const second = first + kHalfEight * kTile;
      for (size_t lane = 0; lane < kTile; lane += 2 * kLanes) {
        VF one[2], other[2];
        const auto word = hn::LoadU(D(), words + lane);
        decode(hn::ShiftLeft<8>(word), one);
        decode(word, other);
        store(one[0], first + lane);
        store(one[1], first + lane + kLanes);
        store(other[0], second + lane);
        store(other[1], second + lane + kLanes);
      }
    }
  }
  static HWY_INLINE VF scale(const uint8_t* scales, size_t) {
    return set(*reinterpret_cast<const float*>(scales));
  }
};

struct Fp4 {
  static constexpr int64_t kBlockBytes = kTile * kBlock / 2;
  static constexpr int64_t kScaleBytes = kTile;
  static constexpr float kFactor = 0.5F;  // codes are decoded to twice their value
  static constexpr bool kScaled = true;

#if HWY_TARGET == HWY_AVX3
  // One lookup among 16 lanes decodes a nibble.
  struct Decoder {
    VF table;
    HWY_INLINE Decoder() {
      HWY_ALIGN static constexpr float kValues[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
      table = hn::Load(DF(), kValues);
    }
    template <int kNibble>
    HWY_INLINE VF value(VU words) const {
      VU index = hn::ShiftRight<4 * kNibble>(words);
#if HWY_IS_DEBUG_BUILD
      index = hn::And(index, hn::Set(DU(), 15u));  // the instruction ignores the other bits, Highway asserts
#endif
      return hn::TableLookupLanes(table, hn::IndicesFromVec(DF(), index));
    }
  };
  using Words = VU;
  static HWY_INLINE Words split(const Decoder&, VU words) {
    return words;
  }
#else
  // A byte lookup decodes all nibbles to integers.
  struct Words {
    hn::Vec<DI> low, high;
  };
  struct Decoder {
    template <int kNibble>
    HWY_INLINE VF value(const Words& words) const {
      const auto bytes = kNibble % 2 == 0 ? words.low : words.high;
      const auto top = hn::ShiftLeft<24 - 8 * (kNibble / 2)>(bytes);
      return hn::ConvertTo(DF(), hn::ShiftRight<24>(top));
    }
  };
  static HWY_INLINE Words split(const Decoder&, VU words) {
    const hn::Repartition<uint8_t, DF> d8;
    HWY_ALIGN static constexpr uint8_t kValues[16] = {0, 1,   2,   3,   4,   6,   8,   12,
                                                      0, 255, 254, 253, 252, 250, 248, 244};
    const auto table = hn::LoadDup128(d8, kValues);
    const VU mask = hn::Set(DU(), 0x0F0F0F0Fu);
    const auto low = hn::BitCast(d8, hn::And(words, mask));
    const auto high = hn::BitCast(d8, hn::And(hn::ShiftRight<4>(words), mask));
    return {hn::BitCast(DI(), hn::TableLookupBytes(table, low)),
            hn::BitCast(DI(), hn::TableLookupBytes(table, high))};
  }
#endif

  template <int kNibble, int M, int V>
  static HWY_INLINE void step(const Decoder& decoder, const Words (&words)[V], const float* const* x,
                              int64_t k, Sums<M, V>& sums) {
    VF w[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) w[v] = decoder.template value<kNibble>(words[v]);
    accumulate<M, V>(w, x, k + kNibble, sums);
  }
  template <int M, int V>
  static HWY_INLINE void first_steps(const Decoder& decoder, const Words (&words)[V], const float* const* x,
                                     int64_t k, Sums<M, V>& sums) {
    step<0, M, V>(decoder, words, x, k, sums);
    step<1, M, V>(decoder, words, x, k, sums);
    step<2, M, V>(decoder, words, x, k, sums);
    step<3, M, V>(decoder, words, x, k, sums);
  }
  template <int M, int V>
  static HWY_INLINE void other_steps(const Decoder& decoder, const Words (&words)[V], const float* const* x,
                                     int64_t k, Sums<M, V>& sums) {
    step<4, M, V>(decoder, words, x, k, sums);
    step<5, M, V>(decoder, words, x, k, sums);
    step<6, M, V>(decoder, words, x, k, sums);
    step<7, M, V>(decoder, words, x, k, sums);
  }
  template <int V>
  static HWY_INLINE void load_words(const Decoder& decoder, const uint32_t* source, int word,
                                    Words (&words)[V]) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const uint32_t* from = source + word * kTile + static_cast<size_t>(v) * kLanes;
      words[v] = split(decoder, hn::LoadU(DU(), from));
    }
  }
  template <int M, int V>
  static HWY_INLINE void block(const uint8_t* data, size_t lane, const float* const* x, int64_t k,
                               Sums<M, V>& sums) {
    const Decoder decoder;
    const auto* source = reinterpret_cast<const uint32_t*>(data) + lane;
    Sums<M, V> others;
    clear<M, V>(others);
    Words words[V];
    if constexpr (fits_together(M, V)) {
      for (int word = 0; word < kBlock / 8; ++word) {
        load_words<V>(decoder, source, word, words);
        first_steps<M, V>(decoder, words, x, k + 8 * word, sums);
        other_steps<M, V>(decoder, words, x, k + 8 * word, others);
      }
    } else {
      for (int word = 0; word < kBlock / 8; ++word) {
        load_words<V>(decoder, source, word, words);
        first_steps<M, V>(decoder, words, x, k + 8 * word, sums);
      }
      for (int word = 0; word < kBlock / 8; ++word) {
        load_words<V>(decoder, source, word, words);
        other_steps<M, V>(decoder, words, x, k + 8 * word, others);
      }
    }
    add<M, V>(others, sums);
  }
  static HWY_INLINE void unpack(const uint8_t* data, float* w) {
    const Decoder decoder;
    const auto* source = reinterpret_cast<const uint32_t*>(data);
    for (int word = 0; word < kBlock / 8; ++word, source += kTile, w += 8 * kTile) {
      for (size_t lane = 0; lane < kTile; lane += kLanes) {
        const Words words = split(decoder, hn::LoadU(DU(), source + lane));
        float* to = w + lane;
        store(decoder.template value<0>(words), to);
        store(decoder.template value<1>(words), to + kTile);
        store(decoder.template value<2>(words), to + 2 * kTile);
        store(decoder.template value<3>(words), to + 3 * kTile);
        store(decoder.template value<4>(words), to + 4 * kTile);
        store(decoder.template value<5>(words), to + 5 * kTile);
        store(decoder.template value<6>(words), to + 6 * kTile);
        store(decoder.template value<7>(words), to + 7 * kTile);
      }
    }
  }
  // UE8M0 to FP32: byte 0 is 2^-127 (a subnormal), byte 255 is NaN.
  static HWY_INLINE VF scale(const uint8_t* scales, size_t lane) {
    const DU du;
    const VU byte = hn::PromoteTo(du, hn::LoadU(DU8(), scales + lane));
    const VU ends = hn::And(hn::Add(byte, hn::Set(du, 1u)), hn::Set(du, 0xFEu));
    const VU extra = hn::IfThenElseZero(hn::Eq(ends, hn::Zero(du)), hn::Set(du, 0x00400000u));
    return hn::BitCast(DF(), hn::Or(hn::ShiftLeft<23>(byte), extra));
  }
};

struct Bf16 {
  static constexpr int64_t kBlockBytes = kTile * kBlock * 2;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr float kFactor = 1.0F;
  static constexpr bool kScaled = false;
  template <int M, int V>
  static HWY_INLINE void block(const uint8_t* data, size_t lane, const float* const* x, int64_t k,
                               Sums<M, V>& sums) {
    const auto* words = reinterpret_cast<const uint32_t*>(data) + lane;
#pragma GCC unroll 16
    for (int pair = 0; pair < kBlock / 2; ++pair, words += kTile) {
      VF even[V], odd[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const VU word = hn::LoadU(DU(), words + static_cast<size_t>(v) * kLanes);
        even[v] = hn::BitCast(DF(), hn::ShiftLeft<16>(word));
        odd[v] = hn::BitCast(DF(), hn::And(word, hn::Set(DU(), 0xFFFF0000u)));
      }
      accumulate<M, V>(even, x, k + 2 * pair, sums);
      accumulate<M, V>(odd, x, k + 2 * pair + 1, sums);
    }
  }
  static HWY_INLINE VF scale(const uint8_t*, size_t) {
    return set(1.0F);
  }
};

constexpr int64_t kWidened = 128;  // inputs of a row that are widened together

// M rows (widened, [M][kWidened]) against V vectors of outputs of an F32 tile, from `lane` on; adds to `out`.
template <int M, int V>
HWY_INLINE void double_columns(const float* values, size_t lane, const double* x, int64_t count,
                               double* out) {
  VD sums[M][V];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sums[m][v] = hn::LoadU(DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
  for (int64_t k = 0; k < count; ++k) {
    VD w[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      w[v] = load_doubles(values + k * kTile + lane + static_cast<size_t>(v) * kDoubles);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const VD xk = set_double(x[m * kWidened + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[m][v] = hn::MulAdd(w[v], xk, sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      hn::StoreU(sums[m][v], DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
}

// mHC has 24 outputs: three vectors of 8 instead of four.
template <int M>
HWY_NOINLINE void double_rows(const float* values, const RowView* rows, int64_t first, int64_t count,
                              size_t outputs, double* out) {
  HWY_ALIGN double x[M * kWidened];
  for (int i = 0; i < M * kTile; ++i) out[i] = 0;
  for (int64_t begin = 0; begin < count; begin += kWidened) {
    const int64_t inputs = std::min(kWidened, count - begin);
    for (int m = 0; m < M; ++m) {
      const float* from = rows[m].x + first + begin;
      for (int64_t k = 0; k < inputs; k += kDoubles)
        hn::Store(load_doubles(from + k), DD(), x + m * kWidened + k);
    }
    const float* w = values + begin * kTile;
    if (kDoubles == 8 && outputs <= 24) {
      double_columns<M, 3>(w, 0, x, inputs, out);
    } else {
      for (size_t lane = 0; lane < outputs; lane += 2 * kDoubles)
        double_columns<M, 2>(w, lane, x, inputs, out);
    }
  }
}

void f32_product_simd(const uint8_t* data, const RowView* rows, int64_t count, int64_t first, int64_t last,
                      int64_t outputs, double* out) {
  const auto* values = reinterpret_cast<const float*>(data) + first * kBlock * kTile;
  const int64_t inputs = (last - first) * kBlock;
  const auto lanes = static_cast<size_t>(outputs);
  int64_t m = 0;
  for (; m + kMaxRows <= count; m += kMaxRows)
    double_rows<kMaxRows>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
  for (; m + 4 <= count; m += 4)
    double_rows<4>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
  for (; m < count; ++m) double_rows<1>(values, rows + m, first * kBlock, inputs, lanes, out + m * kTile);
}

// Adds a block's sums, scaled, to the totals.
template <typename Format, int M, int V>
HWY_INLINE void add_block(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                          const Sums<M, V>& sums, Sums<M, V>& totals) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    [[maybe_unused]] const VF factor =
        Format::scale(source.scales + b * Format::kScaleBytes, lane + static_cast<size_t>(v) * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if constexpr (Format::kScaled) {
        const VF sum = hn::Mul(sums[m][v], set(Format::kFactor));  // exact
        const float row = scale[m] != nullptr ? scale[m][b] : 1.0F;
        totals[m][v] = hn::MulAdd(hn::Mul(sum, set(row)), factor, totals[m][v]);
      } else {
        totals[m][v] = hn::Add(totals[m][v], sums[m][v]);
      }
    }
  }
}

template <int M, int V>
HWY_INLINE void load_totals(const float* out, size_t lane, Sums<M, V>& totals) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) totals[m][v] = load(out + m * kTile + lane + static_cast<size_t>(v) * kLanes);
  }
}

template <int M, int V>
HWY_INLINE void store_totals(const Sums<M, V>& totals, float* out, size_t lane) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(totals[m][v], out + m * kTile + lane + static_cast<size_t>(v) * kLanes);
  }
}

// Adds a block's sums, scaled, to totals in memory; in double the terms are those of add_block().
template <typename Format, int M, int V>
HWY_INLINE void add_to_totals(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                              const Sums<M, V>& sums, float* out) {
  Sums<M, V> totals;
  load_totals<M, V>(out, lane, totals);
  add_block<Format, M, V>(source, lane, scale, b, sums, totals);
  store_totals<M, V>(totals, out, lane);
}
template <typename Format, int M, int V>
HWY_INLINE void add_to_totals(const TileSource& source, size_t lane, const float* const* scale, int64_t b,
                              const Sums<M, V>& sums, double* out) {
  Sums<M, V> terms;
  clear<M, V>(terms);
  add_block<Format, M, V>(source, lane, scale, b, sums, terms);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      double* total = out + m * kTile + lane + static_cast<size_t>(v) * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(DD(), total), low_doubles(terms[m][v])), DD(), total);
      total += kDoubles;
      hn::StoreU(hn::Add(hn::LoadU(DD(), total), high_doubles(terms[m][v])), DD(), total);
    }
  }
}

// M rows, V vectors of outputs from `lane` on, all blocks. Totals stay in registers where there is room.
template <typename Format, int M, int V>
HWY_INLINE void columns(const TileSource& source, size_t lane, const float* const* x,
                        const float* const* scale, int64_t first, int64_t last, float* out) {
  constexpr bool kKeep = M * V <= (kLanes == 16 ? 8 : 4);
  Sums<M, V> totals;
  clear<M, V>(totals);
  if (!kKeep) store_totals<M, V>(totals, out, lane);
  for (int64_t b = first; b < last; ++b) {
    Sums<M, V> sums;
    clear<M, V>(sums);
    Format::template block<M, V>(source.data + b * Format::kBlockBytes, lane, x, b * kBlock, sums);
    if (!kKeep) load_totals<M, V>(out, lane, totals);
    add_block<Format, M, V>(source, lane, scale, b, sums, totals);
    if (!kKeep) store_totals<M, V>(totals, out, lane);
  }
  if (kKeep) store_totals<M, V>(totals, out, lane);
}

// The same with totals in double.
template <typename Format, int M, int V>
HWY_INLINE void columns(const TileSource& source, size_t lane, const float* const* x,
                        const float* const* scale, int64_t first, int64_t last, double* out) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * V; ++v)
      hn::StoreU(hn::Zero(DD()), DD(), out + m * kTile + lane + static_cast<size_t>(v) * kDoubles);
  }
  for (int64_t b = first; b < last; ++b) {
    Sums<M, V> sums;
    clear<M, V>(sums);
    Format::template block<M, V>(source.data + b * Format::kBlockBytes, lane, x, b * kBlock, sums);
    add_to_totals<Format, M, V>(source, lane, scale, b, sums, out);
  }
}

// Out: float, or double for totals that are not to be rounded.
template <typename Format, int M, typename Out>
HWY_NOINLINE void rows_pass(const TileSource& source, const RowView* rows, int64_t count, int64_t first,
                            int64_t last, Out* out) {
  constexpr int kVectors = M == 1 ? kWide : 2;
  const float* x[M];
  const float* scale[M];
  for (int m = 0; m < M; ++m) {
    const RowView& row = rows[std::min<int64_t>(m, count - 1)];
    x[m] = row.x;
    scale[m] = row.scale;
  }
  for (size_t lane = 0; lane < kTile; lane += kVectors * kLanes)
    columns<Format, M, kVectors>(source, lane, x, scale, first, last, out);
}

// One of a block's two sums.
template <int M>
HWY_INLINE void unpacked_half(const float* w, const float* const* x, int64_t k, Sums<M, 2>& sums) {
  for (int eight = 0; eight < kBlock; eight += 8) {
#pragma GCC unroll 4
    for (int i = eight; i < eight + kHalfEight; ++i) {
      const VF wk[2] = {load(w + i * kTile), load(w + i * kTile + kLanes)};
      accumulate<M, 2>(wk, x, k + i, sums);
    }
  }
}

// M rows against the unpacked weights w [inputs][outputs] of block b; adds to `out`.
template <typename Format, int M, typename Out>
HWY_INLINE void unpacked_block(const TileSource& source, const float* w, const RowView* rows, int64_t count,
                               int64_t b, Out* out) {
  const float* x[M];
  const float* scale[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const RowView& row = rows[std::min<int64_t>(m, count - 1)];
    x[m] = row.x;
    scale[m] = row.scale;
  }
  for (size_t lane = 0; lane < kTile; lane += 2 * kLanes) {
    Sums<M, 2> sums, others;
    clear<M, 2>(sums);
    clear<M, 2>(others);
    unpacked_half<M>(w + lane, x, b * kBlock, sums);
    unpacked_half<M>(w + kHalfEight * kTile + lane, x, b * kBlock + kHalfEight, others);
    add<M, 2>(others, sums);
    add_to_totals<Format, M, 2>(source, lane, scale, b, sums, out);
  }
}

// More rows than one pass takes: a block is unpacked once for all of them. Sums are those of columns().
template <typename Format, typename Out>
HWY_NOINLINE void unpacked_rows(const TileSource& source, const RowView* rows, int64_t count, int64_t first,
                                int64_t last, Out* out) {
  HWY_ALIGN float w[kBlock * kTile];
  std::fill_n(out, (count + kMaxRows - 1) / kMaxRows * kMaxRows * kTile, Out(0));
  for (int64_t b = first; b < last; ++b) {
    Format::unpack(source.data + b * Format::kBlockBytes, w);
    for (int64_t m = 0; m < count; m += kMaxRows) {
      const int64_t left = count - m;
      if (left > kMaxRows / 2) {
        unpacked_block<Format, kMaxRows>(source, w, rows + m, left, b, out + m * kTile);
      } else {
        unpacked_block<Format, kMaxRows / 2>(source, w, rows + m, left, b, out + m * kTile);
      }
    }
  }
}

template <typename Format, typename Out>
void all_rows(const TileSource& source, const RowView* rows, int64_t count, int64_t first, int64_t last,
              Out* out) {
  if constexpr (Format::kScaled) {
    if (count > kMaxRows + 2) return unpacked_rows<Format>(source, rows, count, first, last, out);
  }
  for (int64_t m = 0; m < count;) {
    const int64_t left = count - m;
    int64_t taken = std::min<int64_t>(left, kMaxRows);
    if (left == 1) {
      rows_pass<Format, 1>(source, rows + m, 1, first, last, out + m * kTile);
    } else if (left == 2) {
      rows_pass<Format, 2>(source, rows + m, 2, first, last, out + m * kTile);
    } else if (left <= 4 || kMaxRows == 4) {
      taken = std::min<int64_t>(left, 4);
      rows_pass<Format, 4>(source, rows + m, taken, first, last, out + m * kTile);
    } else {
      rows_pass<Format, kMaxRows>(source, rows + m, taken, first, last, out + m * kTile);
    }
    m += taken;
  }
}

template <typename Out>
HWY_INLINE void packed_product(WeightFormat format, const TileSource& source, const RowView* rows,
                               int64_t count, int64_t first, int64_t last, Out* out) {
  switch (format) {
    case WeightFormat::kFp8:
      return all_rows<Fp8>(source, rows, count, first, last, out);
    case WeightFormat::kFp4:
      return all_rows<Fp4>(source, rows, count, first, last, out);
    case WeightFormat::kBf16:
      return all_rows<Bf16>(source, rows, count, first, last, out);
    case WeightFormat::kF32:
      return;  // f32_product_simd
  }
}

void tile_product_simd(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, float* out) {
  packed_product(format, {data, scales}, rows, count, first, last, out);
}
void tile_product_double_simd(WeightFormat format, const uint8_t* data, const uint8_t* scales,
                              const RowView* rows, int64_t count, int64_t first, int64_t last, double* out) {
  packed_product(format, {data, scales}, rows, count, first, last, out);
}

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spark::engine::cpu {

HWY_EXPORT(tile_product_simd);
HWY_EXPORT(tile_product_double_simd);
HWY_EXPORT(f32_product_simd);

namespace {

const uint8_t* scales_of(const PackedWeight& weight, int64_t tile) {
  const uint8_t* scales = weight.scales.as<uint8_t>();
  if (weight.format == WeightFormat::kFp8) scales += tile * weight.blocks * 4;
  if (weight.format == WeightFormat::kFp4) scales += tile * weight.blocks * kTile;
  return scales;
}

// Rows with pairs alone go nowhere else, few or many.
bool on_tile_unit(const RowView& row, int64_t count) {
  return row.pairs != nullptr && (row.x == nullptr || count >= kTileUnitRows);
}

}  // namespace

bool takes_tile_unit(WeightFormat format, int64_t rows) {
  const bool codes = format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
  return codes && rows >= kTileUnitRows && tile_unit_usable();
}

void tile_product_double(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count,
                         int64_t first, int64_t last, double* out) {
  if (weight.format == WeightFormat::kF32) {
    HWY_DYNAMIC_DISPATCH(f32_product_simd)
    (weight.tile_data(tile), rows, count, first, last, std::min<int64_t>(kTile, weight.rows - tile * kTile),
     out);
    return;
  }
  if (on_tile_unit(*rows, count)) {
    return tile_unit_product(weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count,
                             first, last, out);
  }
  HWY_DYNAMIC_DISPATCH(tile_product_double_simd)
  (weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count, first, last, out);
}

void tile_product(const PackedWeight& weight, int64_t tile, const RowView* rows, int64_t count, int64_t first,
                  int64_t last, float* out) {
  if (weight.format == WeightFormat::kF32) {
    double sums[kRowGroup * kTile];
    for (int64_t m = 0; m < count; m += kRowGroup) {
      const int64_t group = std::min<int64_t>(kRowGroup, count - m);
      tile_product_double(weight, tile, rows + m, group, first, last, sums);
      for (int64_t i = 0; i < group * kTile; ++i) out[m * kTile + i] = static_cast<float>(sums[i]);
    }
    return;
  }
  if (on_tile_unit(*rows, count)) {
    return tile_unit_product(weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count,
                             first, last, out);
  }
  HWY_DYNAMIC_DISPATCH(tile_product_simd)
  (weight.format, weight.tile_data(tile), scales_of(weight, tile), rows, count, first, last, out);
}

void tile_product_fp4(const uint32_t* words, const uint8_t* scales, int64_t blocks, const RowView* rows,
                      int64_t count, float* out) {
  const auto* data = reinterpret_cast<const uint8_t*>(words);
  if (on_tile_unit(*rows, count))
    return tile_unit_product(WeightFormat::kFp4, data, scales, rows, count, 0, blocks, out);
  HWY_DYNAMIC_DISPATCH(tile_product_simd)
  (WeightFormat::kFp4, data, scales, rows, count, 0, blocks, out);
}

}  // namespace spark::engine::cpu
#endif
