// The weight formats of a tile (tile_product.h): how a block of 32 inputs is decoded and summed, and its
// scales. Included once per target by the products (hence the toggling guard).
#include "engine/kernels/cpu/simd_inl.h"

#if defined(SPARK_CPU_TILE_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARK_CPU_TILE_FORMATS_INL_H_
#undef SPARK_CPU_TILE_FORMATS_INL_H_
#else
#define SPARK_CPU_TILE_FORMATS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace spark::engine::cpu::HWY_NAMESPACE {

// Whether there are registers for both sums of a block at once; otherwise one is finished before the other.
constexpr size_t kRegisters = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM ? 32 : 16;
constexpr bool fits_together(int rows, int vectors) {
  return static_cast<size_t>(2 * rows * vectors + 2 * vectors + 2) <= kRegisters;
}

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

}  // namespace spark::engine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
