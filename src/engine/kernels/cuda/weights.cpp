#include "engine/kernels/cuda/weights.h"

#include <algorithm>
#include <vector>

#include "engine/kernels/cuda/plan/pack_plan.h"
#include "engine/kernels/cuda/plan/tiles.h"

namespace spark::engine::cuda {
namespace {

constexpr int64_t kRawBytes = int64_t{64} << 20;
constexpr int64_t kRawScaleBytes = int64_t{16} << 20;

std::string shape_text(const Weight& w) {
  return std::to_string(w.rows) + " x " + std::to_string(w.cols);
}

void require(bool ok, const Weight& weight, const char* what) {
  if (!ok) throw Error("weight of " + shape_text(weight) + ": " + what, "CUDA backend");
}

}  // namespace

template <class Prepare>
void WeightStore::by_pieces(const void* host, int64_t rows, int64_t row_bytes, const Prepare& prepare) {
  if (raw_ == nullptr) raw_ = bytes(kRawBytes, "weight staging");
  const int64_t piece = std::max<int64_t>(32, kRawBytes / row_bytes / 32 * 32);
  if (piece * row_bytes > kRawBytes) {
    throw Error("a weight row of " + std::to_string(row_bytes) + " bytes", "CUDA backend", "at most 2 MiB");
  }
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    staging_.upload(stream_.get(), raw_, static_cast<const uint8_t*>(host) + first * row_bytes,
                    static_cast<size_t>(count * row_bytes));
    prepare(raw_, first, count);
  }
}

Weight WeightStore::keep(const Weight& shape, const PreparedWeight& prepared) {
  weights_.push_back(prepared);
  Weight placed = shape;
  placed.data = nullptr;
  placed.scales = nullptr;
  placed.prepared = &weights_.back();
  return placed;
}

const PreparedWeight& WeightStore::prepared(const Weight& weight) {
  SPARK_CHECK(weight.prepared != nullptr);
  return *static_cast<const PreparedWeight*>(weight.prepared);
}

const PreparedExperts& WeightStore::prepared(const ExpertBank& bank) {
  SPARK_CHECK(bank.prepared != nullptr);
  return *static_cast<const PreparedExperts*>(bank.prepared);
}

Weight WeightStore::place(const Weight& host) {
  if (host.empty()) return host;
  switch (host.format) {
    case WeightFormat::kFp8:
      return keep(host, place_fp8(host));
    case WeightFormat::kBf16:
      return keep(host, place_bf16(host));
    case WeightFormat::kF32:
      return keep(host, place_plain(host, Layout::kF32));
    case WeightFormat::kFp4:
      break;
  }
  PreparedWeight w{.layout = Layout::kFp4, .rows = host.rows, .cols = host.cols};
  w.bytes = prepared_bytes(w.layout, w.rows, w.cols);
  uint8_t* stages = bytes(w.bytes, "weights");
  place_fp4(host, 1, 0, stages);
  w.tiles = stages;
  return keep(host, w);
}

PreparedWeight WeightStore::place_fp8(const Weight& host) {
  require(host.cols % 32 == 0, host, "FP8 columns must be a multiple of 32");
  PreparedWeight w{.layout = Layout::kFp8, .rows = host.rows, .cols = host.cols};
  const int64_t tile_bytes = prepared_bytes(w.layout, w.rows, w.cols);
  const int64_t scale_bytes = ceil_div(w.rows, 32) * (w.cols / 32);
  uint8_t* tiles = bytes(tile_bytes, "weights");
  uint8_t* scales = bytes(scale_bytes, "weight scales");
  by_pieces(host.data, w.rows, w.cols, [&](const uint8_t* raw, int64_t first, int64_t count) {
    launch_prepare_fp8(launch(), raw, count, w.cols, tiles + first * w.cols);
  });
  staging_.upload(stream_.get(), scales, host.scales, static_cast<size_t>(scale_bytes));
  w.tiles = tiles;
  w.scales = scales;
  w.bytes = tile_bytes + scale_bytes;
  return w;
}

PreparedWeight WeightStore::place_plain(const Weight& host, Layout layout) {
  PreparedWeight w{.layout = layout, .rows = host.rows, .cols = host.cols};
  w.bytes = prepared_bytes(layout, host.rows, host.cols);
  uint8_t* copy = bytes(w.bytes, "weights");
  staging_.upload(stream_.get(), copy, host.data, static_cast<size_t>(w.bytes));
  w.tiles = copy;
  return w;
}

PreparedWeight WeightStore::place_bf16(const Weight& host) {
  if (host.cols % 8 != 0) return place_plain(host, Layout::kPlainBf16);
  PreparedWeight w{.layout = Layout::kPacked, .rows = host.rows, .cols = host.cols};
  if (host.rows >= pack_rows_from_ && host.cols % 32 == 0 && host.cols <= 65536 && pack(host, w)) return w;
  w = {.layout = Layout::kBf16, .rows = host.rows, .cols = host.cols};
  w.bytes = prepared_bytes(w.layout, w.rows, w.cols);
  uint8_t* tiles = bytes(w.bytes, "weights");
  const int64_t tile_row_bytes = ceil_div(w.cols, kTileCols) * kTileCols * 2;
  by_pieces(host.data, w.rows, w.cols * 2, [&](const uint8_t* raw, int64_t first, int64_t count) {
    launch_prepare_bf16(launch(), reinterpret_cast<const uint16_t*>(raw), count, w.cols,
                        tiles + first * tile_row_bytes);
  });
  w.tiles = tiles;
  return w;
}

// False when packing would not pay; throws when the packed form does not give back every bit.
bool WeightStore::pack(const Weight& host, PreparedWeight& w) {
  auto* histogram = reinterpret_cast<uint64_t*>(bytes(257 * 8, "packing"));
  by_pieces(host.data, w.rows, w.cols * 2, [&](const uint8_t* raw, int64_t, int64_t count) {
    launch_count_exponents(launch(), reinterpret_cast<const uint16_t*>(raw), count * w.cols, histogram);
  });
  std::vector<uint64_t> counts(257);
  staging_.download(stream_.get(), counts.data(), histogram, counts.size() * 8);
  const PackChoice choice = choose_exponent_base(counts);
  if (!choice.worthwhile) return false;
  w.exponent_base = choice.base;
  w.unpack_scale = choice.unpack_scale;

  auto* per_row = reinterpret_cast<uint32_t*>(bytes(w.rows * 4, "packing"));
  by_pieces(host.data, w.rows, w.cols * 2, [&](const uint8_t* raw, int64_t first, int64_t count) {
    launch_count_exceptions(launch(), reinterpret_cast<const uint16_t*>(raw), count, w.cols, w.exponent_base,
                            per_row + first);
  });
  std::vector<uint32_t> offsets(static_cast<size_t>(w.rows) + 1);
  staging_.download(stream_.get(), offsets.data() + 1, per_row, static_cast<size_t>(w.rows) * 4);
  for (size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];

  uint8_t* tiles = bytes(prepared_bytes(w.layout, w.rows, w.cols), "packed weights");
  auto* device_offsets =
      reinterpret_cast<uint32_t*>(bytes(static_cast<int64_t>(offsets.size()) * 4, "packed weights"));
  auto* exceptions = reinterpret_cast<uint32_t*>(bytes(int64_t{offsets.back()} * 4, "packed weights"));
  staging_.upload(stream_.get(), device_offsets, offsets.data(), offsets.size() * 4);
  w.tiles = tiles;
  w.exception_offsets = device_offsets;
  w.exceptions = exceptions;
  w.bytes =
      prepared_bytes(w.layout, w.rows, w.cols) + static_cast<int64_t>(offsets.size() + offsets.back()) * 4;
  const int64_t tile_row_bytes = w.cols / kTileCols * (kPackedTileBytes / kTileRows);
  auto* mismatches = reinterpret_cast<uint32_t*>(bytes(4, "packing"));
  by_pieces(host.data, w.rows, w.cols * 2, [&](const uint8_t* raw, int64_t first, int64_t count) {
    const auto* values = reinterpret_cast<const uint16_t*>(raw);
    launch_pack(launch(), values, count, w.cols, w.exponent_base, device_offsets + first,
                tiles + first * tile_row_bytes, exceptions);
    PreparedWeight piece = w;
    piece.rows = count;
    piece.tiles = tiles + first * tile_row_bytes;
    piece.exception_offsets = device_offsets + first;
    launch_verify_pack(launch(), piece, values, mismatches);
  });
  uint32_t wrong = 0;
  staging_.download(stream_.get(), &wrong, mismatches, 4);
  if (wrong != 0) {
    throw Error("packing changed " + std::to_string(wrong) + " values of a weight of " + shape_text(host),
                "CUDA backend", "this is a defect: report it; it can be avoided with packing turned off");
  }
  return true;
}

void WeightStore::place_fp4(const Weight& host, int matrices, int matrix, uint8_t* stages) {
  require(host.format == WeightFormat::kFp4, host, "routed experts are FP4");
  require(host.cols % 32 == 0, host, "FP4 columns must be a multiple of 32");
  if (raw_scales_ == nullptr) raw_scales_ = bytes(kRawScaleBytes, "weight staging");
  const int64_t scale_row = host.cols / 32;
  const Fp4Stages at = {.double_blocks = ceil_div(host.cols, kFp4TileCols), .matrices = matrices};
  require(host.rows * scale_row <= kRawScaleBytes, host, "too many scales for one expert");
  staging_.upload(stream_.get(), raw_scales_, host.scales, static_cast<size_t>(host.rows * scale_row));
  // Pieces are whole groups of 32 rows.
  by_pieces(host.data, host.rows, host.cols / 2, [&](const uint8_t* raw, int64_t first, int64_t count) {
    launch_prepare_fp4(launch(), raw, raw_scales_ + first * scale_row, count, host.cols, at, matrix,
                       stages + first / 32 * at.double_blocks * fp4_stage_bytes(matrices));
  });
}

PreparedExperts& WeightStore::new_bank(int experts, int64_t hidden, int64_t width) {
  banks_.push_back({.experts = experts, .hidden = hidden, .width = width});
  PreparedExperts& bank = banks_.back();
  bank.gate_up = bytes(experts * 2 * prepared_bytes(Layout::kFp4, width, hidden), "experts");
  bank.down = bytes(experts * prepared_bytes(Layout::kFp4, hidden, width), "experts");
  return bank;
}

ExpertBank WeightStore::place_experts(std::span<const ExpertWeights> host) {
  if (host.empty()) return {};
  const int64_t width = host[0].w1.rows;
  const int64_t hidden = host[0].w1.cols;
  require(width % 32 == 0 && hidden % 32 == 0, host[0].w1, "expert widths must be multiples of 32");
  PreparedExperts& bank = new_bank(static_cast<int>(host.size()), hidden, width);
  const int64_t up_bytes = prepared_bytes(Layout::kFp4, width, hidden);
  const int64_t down_bytes = prepared_bytes(Layout::kFp4, hidden, width);
  // The bank's pointers are const for the kernels; the memory is ours.
  auto* gate_up = const_cast<uint8_t*>(bank.gate_up);
  auto* down = const_cast<uint8_t*>(bank.down);
  ExpertBank placed;
  for (size_t i = 0; i < host.size(); ++i) {
    const ExpertWeights& expert = host[i];
    require(expert.w1.rows == width && expert.w1.cols == hidden && expert.w3.rows == width &&
                expert.w3.cols == hidden && expert.w2.rows == hidden && expert.w2.cols == width,
            expert.w1, "experts of one bank must have one shape");
    const int64_t e = static_cast<int64_t>(i);
    place_fp4(expert.w1, 2, 0, gate_up + 2 * e * up_bytes);
    place_fp4(expert.w3, 2, 1, gate_up + 2 * e * up_bytes);
    place_fp4(expert.w2, 1, 0, down + e * down_bytes);
    placed.experts.push_back({.w1 = {.format = WeightFormat::kFp4, .rows = width, .cols = hidden},
                              .w3 = {.format = WeightFormat::kFp4, .rows = width, .cols = hidden},
                              .w2 = {.format = WeightFormat::kFp4, .rows = hidden, .cols = width}});
  }
  placed.prepared = &bank;
  return placed;
}

Weight WeightStore::synthetic(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) {
  PreparedWeight w{.rows = rows, .cols = cols};
  if (format == WeightFormat::kFp8) {
    w.layout = Layout::kFp8;
    const int64_t tile_bytes = prepared_bytes(w.layout, rows, cols);
    const int64_t scale_bytes = round_up(ceil_div(rows, 32) * (cols / 32), 8);
    uint8_t* tiles = bytes(tile_bytes, "weights");
    uint8_t* scales = bytes(scale_bytes, "weight scales");
    launch_fill(launch(), Fill::kE4m3, tiles, tile_bytes, seed, 0, 1);
    launch_fill(launch(), Fill::kUe8m0, scales, scale_bytes, seed + 1, 111, 3);
    w.tiles = tiles;
    w.scales = scales;
    w.bytes = tile_bytes + scale_bytes;
  } else if (format == WeightFormat::kBf16 && rows < pack_rows_from_) {
    w.layout = Layout::kBf16;
    w.bytes = prepared_bytes(w.layout, rows, cols);
    uint8_t* tiles = bytes(w.bytes, "weights");
    launch_fill(launch(), Fill::kBf16, tiles, w.bytes, seed, 117, 4);
    w.tiles = tiles;
  } else if (format == WeightFormat::kBf16) {
    // Any bytes are a packed weight; one exception in every row, as about in the real head.
    w.layout = Layout::kPacked;
    w.exponent_base = 103;
    w.unpack_scale = static_cast<uint16_t>((127 + w.exponent_base) << 7);
    const int64_t tile_bytes = prepared_bytes(w.layout, rows, cols);
    uint8_t* tiles = bytes(tile_bytes, "weights");
    launch_fill(launch(), Fill::kBytes, tiles, tile_bytes, seed, 0, 1);
    std::vector<uint32_t> offsets(static_cast<size_t>(rows) + 1), entries(static_cast<size_t>(rows));
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i] = static_cast<uint32_t>(i * 37 % static_cast<size_t>(cols)) << 16 | 0x3F00;
    }
    auto* device_offsets =
        reinterpret_cast<uint32_t*>(bytes(static_cast<int64_t>(offsets.size()) * 4, "weights"));
    auto* exceptions =
        reinterpret_cast<uint32_t*>(bytes(static_cast<int64_t>(entries.size()) * 4, "weights"));
    staging_.upload(stream_.get(), device_offsets, offsets.data(), offsets.size() * 4);
    staging_.upload(stream_.get(), exceptions, entries.data(), entries.size() * 4);
    w.tiles = tiles;
    w.exception_offsets = device_offsets;
    w.exceptions = exceptions;
    w.bytes = tile_bytes + static_cast<int64_t>(offsets.size() + entries.size()) * 4;
  } else {
    // FP32 of small magnitude: BF16 pairs as bits.
    w.layout = Layout::kF32;
    w.bytes = rows * cols * 4;
    uint8_t* values = bytes(w.bytes, "weights");
    launch_fill(launch(), Fill::kBf16, values, w.bytes, seed, 117, 4);
    w.tiles = values;
  }
  return keep({.format = format, .rows = rows, .cols = cols}, w);
}

ExpertBank WeightStore::synthetic_experts(int experts, int64_t hidden, int64_t width, uint64_t seed) {
  PreparedExperts& bank = new_bank(experts, hidden, width);
  const auto fill = [&](const uint8_t* to, int64_t count, int matrices, uint64_t salt) {
    launch_fill_fp4(launch(), const_cast<uint8_t*>(to), count, matrices, seed + salt, 117, 3);
  };
  fill(bank.gate_up, experts * 2 * prepared_bytes(Layout::kFp4, width, hidden), 2, 1);
  fill(bank.down, experts * prepared_bytes(Layout::kFp4, hidden, width), 1, 3);
  ExpertBank placed;
  placed.prepared = &bank;
  return placed;
}

}  // namespace spark::engine::cuda
