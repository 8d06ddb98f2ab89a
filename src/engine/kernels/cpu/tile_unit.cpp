#include "engine/kernels/cpu/tile_unit.h"

#include <cstdlib>
#include <string_view>

#include "common/error.h"

#if defined(__x86_64__) && defined(__linux__)
#if !defined(__clang__)
// GCC 12's own header, wherever it is inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "engine/numeric/bf16.h"
#include "engine/numeric/e4m3.h"

// Functions are compiled for the unit one by one: a flag for the whole file would let the linker choose an
// inline function of a header from here, for processors that cannot run it.
#define SPARK_TILE_UNIT __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))
#define SPARK_TILE_UNIT_INLINE SPARK_TILE_UNIT __attribute__((always_inline)) inline
#endif

namespace spark::engine::cpu {

#ifdef SPARK_TILE_UNIT
namespace {

constexpr int kUnitRows = 16;  // rows of activations, pairs of inputs and outputs that a tile register holds

// Whether processor and system have it, and the system's permission, asked for once.
bool permitted() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAvx512 = (1u << 16) | (1u << 30) | (1u << 31);  // F, BW, VL
  const bool vectors = (b & kAvx512) == kAvx512 && (c & (1u << 1)) != 0;
  const bool tiles = (d & (1u << 22)) != 0 && (d & (1u << 24)) != 0;  // BF16, tiles
  if (!vectors || !tiles) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1u << 27)) == 0) return false;  // XGETBV
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kStates = 0xE6u | (3u << 17);  // SSE, AVX, AVX-512, tile configuration and data
  if ((low & kStates) != kStates) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool switched_on() {
  const char* value = std::getenv("SPARK_CPU_AMX");
  return value == nullptr || std::string_view(value) != "0";
}

bool& usable() {
  static bool value = switched_on() && permitted();
  return value;
}

struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr TileShapes shapes(uint8_t rows) {
  TileShapes shape;
  for (int i = 0; i < 8; ++i) {
    shape.row_bytes[i] = 64;
    shape.rows[i] = i < 6 ? rows : kUnitRows;  // 6 and 7 hold weights
  }
  return shape;
}
constexpr TileShapes kFewRows = shapes(8);
constexpr TileShapes kAllRows = shapes(kUnitRows);

// Setting the shapes takes as long as several blocks' products, so a thread keeps them.
void set_shapes(const TileShapes& shape) {
  thread_local const TileShapes* current = nullptr;
  if (current == &shape) return;
  asm volatile("ldtilecfg %0" : : "m"(shape));
  current = &shape;
}

// sums[0], sums[1] [rows][16] = rows x[rows][32 inputs] times weights w[0], w[1] [16 pairs][16 outputs][2].
SPARK_TILE_UNIT_INLINE void multiply(const uint16_t* x, int64_t x_stride, const uint16_t* w, float* sums) {
  asm volatile(
      "tileloadd (%[x], %[x_stride], 1), %%tmm4\n\t"
      "tileloadd (%[w], %[row], 1), %%tmm6\n\t"
      "tilezero %%tmm0\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tileloadd 1024(%[w], %[row], 1), %%tmm7\n\t"
      "tilezero %%tmm1\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tilestored %%tmm0, (%[sums], %[row], 1)\n\t"
      "tilestored %%tmm1, 1024(%[sums], %[row], 1)"
      :
      : [x] "r"(x), [x_stride] "r"(x_stride), [w] "r"(w), [sums] "r"(sums), [row] "r"(int64_t{64})
      : "memory");
}

using Unpacked = uint16_t[2][kUnitRows * 32];

// The bytes of the codes' values in BF16, divided by something, for the 128 codes without sign.
struct alignas(64) Fp8Bytes {
  uint8_t low[128], high[128];
};
constexpr Fp8Bytes make_fp8_bytes(float divisor) {
  Fp8Bytes bytes{};
  for (unsigned code = 0; code < 128; ++code) {
    const float value = code == kE4m3Nan ? 480.0F : kE4m3Values[code];
    const uint32_t bits = std::bit_cast<uint32_t>(value / divisor) >> 16;
    bytes.low[code] = static_cast<uint8_t>(bits & 0xFFu);
    bytes.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return bytes;
}
constexpr Fp8Bytes kFp8Bytes = make_fp8_bytes(1.0F);
constexpr Fp8Bytes kFp8SmallBytes = make_fp8_bytes(256.0F);

// kPlain: for values without scales, which may be so large that an FP32 sum overflows. It must do so where
// the sums of the other paths do, whose weights are 2^-8 of their values.
template <bool plain>
struct UnitFp8 {
  static constexpr int64_t kBlockBytes = kTile * kBlock;
  static constexpr int64_t kScaleBytes = 4;
  // Bytes are spread to words inside each 128 bits: outputs 8i .. 8i+3 go to the first half, 8i+4 .. 8i+7 to
  // the second. Put right when all blocks are added, see in_order().
  static constexpr bool kMixed = true;
  static constexpr bool kPlain = plain;

  static SPARK_TILE_UNIT_INLINE void unpack(const uint8_t* data, Unpacked& w) {
    constexpr const Fp8Bytes& kBytes = plain ? kFp8SmallBytes : kFp8Bytes;
    const __m512i low0 = _mm512_load_si512(kBytes.low);
    const __m512i low1 = _mm512_load_si512(kBytes.low + 64);
    const __m512i high0 = _mm512_load_si512(kBytes.high);
    const __m512i high1 = _mm512_load_si512(kBytes.high + 64);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 4
    for (int pair = 0; pair < kUnitRows; ++pair) {
      const __m512i codes = _mm512_loadu_si512(data + pair * 64);
      const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
      const __m512i magnitude = _mm512_permutex2var_epi8(high0, codes, high1);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xF8);  // a | (b & c)
      _mm512_store_si512(w[0] + pair * 32, _mm512_unpacklo_epi8(low, high));
      _mm512_store_si512(w[1] + pair * 32, _mm512_unpackhi_epi8(low, high));
    }
  }
  static SPARK_TILE_UNIT_INLINE __m512 scale(const uint8_t* scales, int) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(scales));
  }
};

struct alignas(64) Fp4Words {
  uint16_t value[32];
};
constexpr Fp4Words make_fp4_words() {
  Fp4Words words{};
  constexpr float kMagnitudes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (unsigned i = 0; i < 32; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(kMagnitudes[i % 8]) >> 16;
    words.value[i] = static_cast<uint16_t>(bits | (i % 16 >= 8 ? 0x8000u : 0u));
  }
  return words;
}
constexpr Fp4Words kFp4Words = make_fp4_words();

struct UnitFp4 {
  static constexpr int64_t kBlockBytes = kTile * kBlock / 2;
  static constexpr int64_t kScaleBytes = kTile;
  static constexpr bool kMixed = false;
  static constexpr bool kPlain = false;

  // A word's low half has the nibbles of four inputs, its high half those of the next four: one lookup gives
  // a pair. The lookup takes five bits of each half; the fifth, of the next nibble, chooses between two
  // copies.
  static SPARK_TILE_UNIT_INLINE void unpack(const uint8_t* data, Unpacked& w) {
    const __m512i values = _mm512_load_si512(kFp4Words.value);
#pragma GCC unroll 4
    for (int word = 0; word < kBlock / 8; ++word) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i nibbles = _mm512_loadu_si512(data + word * 128 + half * 64);
        uint16_t* to = w[half] + word * 4 * 32;
        _mm512_store_si512(to, _mm512_permutexvar_epi16(nibbles, values));
        _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 4), values));
        _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 8), values));
        _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 12), values));
      }
    }
  }
  // UE8M0 to FP32: byte 0 is 2^-127 (a subnormal), byte 255 is NaN.
  static SPARK_TILE_UNIT_INLINE __m512 scale(const uint8_t* scales, int half) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * half));
    const __m512i byte = _mm512_cvtepu8_epi32(bytes);
    const __m512i ends =
        _mm512_and_si512(_mm512_add_epi32(byte, _mm512_set1_epi32(1)), _mm512_set1_epi32(0xFE));
    const __mmask16 is_end = _mm512_testn_epi32_mask(ends, ends);
    const __m512i shifted = _mm512_slli_epi32(byte, 23);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(shifted, is_end, shifted, _mm512_set1_epi32(0x00400000)));
  }
};

// 16 totals of a row in registers. add() does the very operations of add_block() in tile_product.cpp.
template <typename Out>
struct Totals;
template <>
struct Totals<float> {
  __m512 sum;
  SPARK_TILE_UNIT_INLINE void load(const float* from) { sum = _mm512_loadu_ps(from); }
  SPARK_TILE_UNIT_INLINE void clear() { sum = _mm512_setzero_ps(); }
  SPARK_TILE_UNIT_INLINE void add(__m512 block, __m512 row, __m512 factor) {
    sum = _mm512_fmadd_ps(_mm512_mul_ps(block, row), factor, sum);
  }
  SPARK_TILE_UNIT_INLINE void store(float* to) const { _mm512_storeu_ps(to, sum); }
};
template <>
struct Totals<double> {
  __m512d low, high;
  SPARK_TILE_UNIT_INLINE void load(const double* from) {
    low = _mm512_loadu_pd(from);
    high = _mm512_loadu_pd(from + 8);
  }
  SPARK_TILE_UNIT_INLINE void clear() { low = high = _mm512_setzero_pd(); }
  SPARK_TILE_UNIT_INLINE void add(__m512 block, __m512 row, __m512 factor) {
    const __m512 term = _mm512_fmadd_ps(_mm512_mul_ps(block, row), factor, _mm512_setzero_ps());
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(term), 1));
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(term)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(upper));
  }
  SPARK_TILE_UNIT_INLINE void store(double* to) const {
    _mm512_storeu_pd(to, low);
    _mm512_storeu_pd(to + 8, high);
  }
};

// 32 totals of a row from the order of UnitFp8::kMixed.
SPARK_TILE_UNIT_INLINE void in_order(float* row) {
  const __m512i a = _mm512_loadu_si512(row);
  const __m512i b = _mm512_loadu_si512(row + 16);
  _mm512_storeu_si512(row, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b));
  _mm512_storeu_si512(row + 16,
                      _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b));
}
SPARK_TILE_UNIT_INLINE void in_order(double* row) {
  const __m512d a0 = _mm512_loadu_pd(row), a1 = _mm512_loadu_pd(row + 8);
  const __m512d b0 = _mm512_loadu_pd(row + 16), b1 = _mm512_loadu_pd(row + 24);
  _mm512_storeu_pd(row, _mm512_shuffle_f64x2(a0, b0, 0x44));
  _mm512_storeu_pd(row + 8, _mm512_shuffle_f64x2(a0, b0, 0xEE));
  _mm512_storeu_pd(row + 16, _mm512_shuffle_f64x2(a1, b1, 0x44));
  _mm512_storeu_pd(row + 24, _mm512_shuffle_f64x2(a1, b1, 0xEE));
}

struct TileRows {
  const RowView* rows;
  int64_t count;
  int64_t stride;  // bytes between rows
};

// Several blocks together: the unit's loads wait for stores that have not reached the cache, so first all
// weights are unpacked, then all products formed, then all added.
constexpr int kTogether = 4;
struct Scratch {
  alignas(64) Unpacked w[kTogether];
  alignas(64) float sums[kTogether][2][kUnitRows * 16];
};

// Blocks b .. b+N-1; the totals begin with zero where is_first.
template <typename Format, int N, typename Out>
SPARK_TILE_UNIT_INLINE void add_blocks(const uint8_t* data, const uint8_t* scales, const TileRows& x,
                                       int64_t b, bool is_first, Scratch& scratch, Out* out) {
  __m512 factor[N][2];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    Format::unpack(data + (b + i) * Format::kBlockBytes, scratch.w[i]);
    factor[i][0] = Format::scale(scales + (b + i) * Format::kScaleBytes, 0);
    factor[i][1] = Format::scale(scales + (b + i) * Format::kScaleBytes, 1);
  }
  for (int64_t group = 0; group < x.count; group += kUnitRows) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i)
      multiply(x.rows[group].pairs + (b + i) * kBlock, x.stride, scratch.w[i][0], scratch.sums[i][0]);
    const int64_t count = x.count - group < kUnitRows ? x.count - group : kUnitRows;
    for (int64_t m = 0; m < count; ++m) {
      Out* const to = out + (group + m) * kTile;
      const float* const row_scale = Format::kPlain ? nullptr : x.rows[group + m].scale + b;
      Totals<Out> total[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        if (is_first) {
          total[half].clear();
        } else {
          total[half].load(to + 16 * half);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const __m512 row = _mm512_set1_ps(Format::kPlain ? 256.0F : row_scale[i]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          total[half].add(_mm512_load_ps(scratch.sums[i][half] + m * 16), row, factor[i][half]);
      }
      total[0].store(to);
      total[1].store(to + 16);
    }
  }
}

template <typename Format, typename Out>
SPARK_TILE_UNIT void product(const uint8_t* data, const uint8_t* scales, const RowView* rows, int64_t count,
                             int64_t first, int64_t last, Out* out) {
  Scratch scratch;
  const TileRows x{rows, count, count > 1 ? (rows[1].pairs - rows[0].pairs) * 2 : 0};
  set_shapes(count <= 8 ? kFewRows : kAllRows);
  int64_t b = first;
  for (; b + kTogether <= last; b += kTogether)
    add_blocks<Format, kTogether>(data, scales, x, b, b == first, scratch, out);
  for (; b < last; ++b) add_blocks<Format, 1>(data, scales, x, b, b == first, scratch, out);
  if (first == last) {
    for (int64_t i = 0; i < count * kTile; ++i) out[i] = 0;
  }
  if constexpr (Format::kMixed) {
    for (int64_t m = 0; m < count; ++m) in_order(out + m * kTile);
  }
}

template <typename Out>
void any_format(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                int64_t count, int64_t first, int64_t last, Out* out) {
  if (format == WeightFormat::kFp8 && rows->scale == nullptr)
    return product<UnitFp8<true>>(data, scales, rows, count, first, last, out);
  if (format == WeightFormat::kFp8)
    return product<UnitFp8<false>>(data, scales, rows, count, first, last, out);
  SPARK_CHECK(format == WeightFormat::kFp4);
  product<UnitFp4>(data, scales, rows, count, first, last, out);
}

bool& allowed() {
  static bool value = true;
  return value;
}

SPARK_TILE_UNIT void pair_up(const uint16_t* x, int64_t n, uint16_t* pairs) {
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i smallest =
      _mm512_set1_epi16(static_cast<int16_t>(std::bit_cast<uint32_t>(kLeastPlain) >> 16));
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t left = n - i;
    const auto present = left >= kBlock ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    const __m512i values = _mm512_maskz_loadu_epi16(present, x + i);
    const __mmask32 kept = _mm512_cmpge_epu16_mask(_mm512_and_si512(values, magnitude), smallest);
    _mm512_storeu_si512(pairs + i, _mm512_shuffle_epi8(_mm512_maskz_mov_epi16(kept, values), order));
  }
}

}  // namespace

bool tile_unit_usable() {
  return usable() && allowed();
}
void allow_tile_unit(bool value) {
  allowed() = value;
}

void pairs_from_bf16(const uint16_t* x, int64_t n, uint16_t* pairs) {
  pair_up(x, n, pairs);
}

void tile_unit_product(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, float* out) {
  any_format(format, data, scales, rows, count, first, last, out);
}
void tile_unit_product(WeightFormat format, const uint8_t* data, const uint8_t* scales, const RowView* rows,
                       int64_t count, int64_t first, int64_t last, double* out) {
  any_format(format, data, scales, rows, count, first, last, out);
}

#else

bool tile_unit_usable() {
  return false;
}
void allow_tile_unit(bool) {}

void pairs_from_bf16(const uint16_t*, int64_t, uint16_t*) {
  throw Error("this processor has no tile unit", "pairs_from_bf16");
}

void tile_unit_product(WeightFormat, const uint8_t*, const uint8_t*, const RowView*, int64_t, int64_t,
                       int64_t, float*) {
  throw Error("this processor has no tile unit", "tile_unit_product");
}
void tile_unit_product(WeightFormat, const uint8_t*, const uint8_t*, const RowView*, int64_t, int64_t,
                       int64_t, double*) {
  throw Error("this processor has no tile unit", "tile_unit_product");
}

#endif

}  // namespace spark::engine::cpu
