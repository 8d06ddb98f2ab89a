#include "engine/collective/host_communicator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/numeric/bf16.h"

namespace spark::engine {
namespace {

template <typename T>
std::span<const uint8_t> bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

template <typename T>
std::span<uint8_t> writable_bytes_of(std::span<T> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size_bytes()};
}

template <typename T>
std::span<T> slice_of(std::span<T> x, size_t slice, int32_t rank) {
  const size_t begin = std::min(slice * static_cast<size_t>(rank), x.size());
  return x.subspan(begin, std::min(slice, x.size() - begin));
}

// What a rank says when the ranks meet.
struct Standing {
  uint64_t digest = 0;
  uint32_t failed = 0;
  std::array<char, 500> failure{};  // zero-terminated
};

// Elements added between two roundings: few enough that the sums stay in the nearest cache.
constexpr size_t kRun = 1024;

}  // namespace

void add_in_rank_order(std::span<uint16_t> x, std::span<const uint16_t> parts, int32_t rank, int32_t ranks) {
  const size_t size = x.size();
  std::array<float, kRun> sum;
  for (size_t begin = 0; begin < size; begin += kRun) {
    const size_t count = std::min(kRun, size - begin);
    for (int32_t r = 0; r < ranks; ++r) {
      const size_t part = static_cast<size_t>(r < rank ? r : r - 1);
      const uint16_t* from = r == rank ? x.data() + begin : parts.data() + part * size + begin;
      if (r == 0) {
        for (size_t i = 0; i < count; ++i) sum[i] = bf16_to_float(from[i]);
      } else {
        for (size_t i = 0; i < count; ++i) sum[i] += bf16_to_float(from[i]);
      }
    }
    for (size_t i = 0; i < count; ++i) x[begin + i] = float_to_bf16(sum[i]);
  }
}

uint64_t extend_digest(uint64_t digest, std::span<const uint8_t> bytes) {
  const auto mix = [&](uint64_t word) {
    digest = std::rotl((digest ^ word ^ 0x2545F4914F6CDD1Du) * 0x9E3779B97F4A7C15u, 29);
    digest ^= digest >> 32;
  };
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  mix(rest);
  mix(bytes.size());
  return digest;
}

HostCommunicator::HostCommunicator(Transport& transport, size_t one_shot_bytes)
    : transport_(transport), one_shot_bytes_(one_shot_bytes) {}

template <typename T>
std::span<const T> HostCommunicator::exchange_parts(std::span<const T> x, size_t slice, bool all_to_all) {
  const auto part_for = [&](int32_t to) { return all_to_all ? x : slice_of(x, slice, to); };
  const size_t own = part_for(rank()).size_bytes();
  parts_.resize(own * static_cast<size_t>(ranks() - 1));
  size_t part = 0;
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) transport_.receive(r, std::span(parts_).subspan(part++ * own, own));
  }
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) transport_.send(r, bytes_of(part_for(r)));
  }
  transport_.wait();
  return {reinterpret_cast<const T*>(parts_.data()), parts_.size() / sizeof(T)};
}

void HostCommunicator::sum_rows(uint16_t* x, int32_t rows, int32_t cols) {
  const std::span<uint16_t> values(x, static_cast<size_t>(rows) * static_cast<size_t>(cols));
  if (ranks() == 1 || values.empty()) return;
  if (values.size_bytes() <= one_shot_bytes_) {
    sum_at_once(values);
  } else {
    const size_t slice = (values.size() + static_cast<size_t>(ranks()) - 1) / static_cast<size_t>(ranks());
    sum_own_slice(values, slice);
    exchange_slices(writable_bytes_of(values), slice * sizeof(uint16_t));
    transport_.wait();
  }
}

void HostCommunicator::sum_at_once(std::span<uint16_t> x) {
  add_in_rank_order(x, exchange_parts(std::span<const uint16_t>(x), x.size(), true), rank(), ranks());
}

void HostCommunicator::sum_own_slice(std::span<uint16_t> x, size_t slice) {
  add_in_rank_order(slice_of(x, slice, rank()), exchange_parts(std::span<const uint16_t>(x), slice, false),
                    rank(), ranks());
}

// Parts travel as doubles, the rounded results as BF16. Slices are of whole rows.
void HostCommunicator::sum_partials(const PartialSums& args) {
  const auto width = static_cast<size_t>(args.cols);
  const size_t row = static_cast<size_t>(args.terms) * width;
  const std::span<const double> x(args.x, static_cast<size_t>(args.rows) * row);
  if (x.empty()) return;
  const bool at_once = !args.own_rows_only && x.size_bytes() <= one_shot_bytes_;
  const auto even = static_cast<size_t>(own_rows(args.rows, 0, ranks()).rows);
  const RowRange own = at_once ? RowRange{0, args.rows} : own_rows(args.rows, rank(), ranks());
  const auto others = exchange_parts(x, even * row, at_once);
  const size_t part = static_cast<size_t>(own.rows) * row;
  std::vector<const double*> parts;
  for (int32_t r = 0; r < ranks(); ++r) {
    const auto before = static_cast<size_t>(r < rank() ? r : r - 1);
    parts.push_back(r == rank() ? x.data() + static_cast<size_t>(own.first) * row
                                : others.data() + before * part);
  }
  add_partials(parts, own.rows, args.terms, args.cols, args.y + static_cast<size_t>(own.first) * width);
  if (at_once || args.own_rows_only) return;
  exchange_slices(writable_bytes_of(std::span(args.y, static_cast<size_t>(args.rows) * width)),
                  even * width * sizeof(uint16_t));
  transport_.wait();
}

void HostCommunicator::exchange_slices(std::span<uint8_t> x, size_t slice) {
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) transport_.receive(r, slice_of(x, slice, r));
  }
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) transport_.send(r, slice_of(x, slice, rank()));
  }
}

void HostCommunicator::sum_own_rows(uint16_t* x, int32_t rows, int32_t cols) {
  if (ranks() == 1 || rows == 0) return;
  const auto width = static_cast<size_t>(cols);
  const auto even = static_cast<size_t>(own_rows(rows, 0, ranks()).rows);
  sum_own_slice({x, static_cast<size_t>(rows) * width}, even * width);
}

void HostCommunicator::gather_rows(std::span<const SpreadRows> arrays, int32_t rows) {
  if (ranks() == 1 || rows == 0) return;
  const auto even = static_cast<size_t>(own_rows(rows, 0, ranks()).rows);
  for (const SpreadRows& array : arrays) {
    const auto row_bytes = static_cast<size_t>(array.row_bytes);
    exchange_slices({static_cast<uint8_t*>(array.rows), static_cast<size_t>(rows) * row_bytes},
                    even * row_bytes);
  }
  transport_.wait();
}

void HostCommunicator::gather_columns(const GatherColumns& args) {
  const auto element = static_cast<size_t>(args.element_bytes);
  const size_t part_row = static_cast<size_t>(args.part_cols) * element;
  const size_t all_row = static_cast<size_t>(args.all_cols) * element;
  const size_t part_bytes = part_row * static_cast<size_t>(args.rows);
  const bool receives = !args.first_rank_only || rank() == 0;
  if (part_bytes == 0) return;
  if (receives) columns_.resize(part_bytes * static_cast<size_t>(ranks()));
  const auto part_of = [&](int32_t r) {
    return std::span(columns_).subspan(static_cast<size_t>(r) * part_bytes, part_bytes);
  };
  for (int32_t r = 0; receives && r < ranks(); ++r) {
    if (r != rank()) transport_.receive(r, part_of(r));
  }
  for (int32_t r = 0; r < (args.first_rank_only ? 1 : ranks()); ++r) {
    if (r != rank()) transport_.send(r, {static_cast<const uint8_t*>(args.part), part_bytes});
  }
  transport_.wait();
  if (!receives) return;
  auto* all = static_cast<uint8_t*>(args.all);
  for (int32_t r = 0; r < ranks(); ++r) {
    const size_t begin = static_cast<size_t>(r) * part_row;
    if (begin >= all_row) break;
    const size_t kept = std::min(part_row, all_row - begin);
    const auto* from = r == rank() ? static_cast<const uint8_t*>(args.part) : part_of(r).data();
    for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
      std::memcpy(all + row * all_row + begin, from + row * part_row, kept);
    }
  }
}

void HostCommunicator::note(std::span<const uint8_t> call) {
  digest_ = extend_digest(digest_, call);
}

std::string HostCommunicator::meet(std::string_view failure) {
  std::vector<Standing> all(static_cast<size_t>(ranks()));
  Standing& own = all[static_cast<size_t>(rank())];
  own.digest = digest_;
  own.failed = failure.empty() ? 0 : 1;
  failure.copy(own.failure.data(), own.failure.size() - 1);
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) {
      transport_.receive(r, writable_bytes_of(std::span(all).subspan(static_cast<size_t>(r), 1)));
    }
  }
  for (int32_t r = 0; r < ranks(); ++r) {
    if (r != rank()) transport_.send(r, bytes_of(std::span<const Standing>(&own, 1)));
  }
  transport_.wait();
  for (int32_t r = 0; r < ranks(); ++r) {
    if (all[static_cast<size_t>(r)].digest == all.front().digest) continue;
    throw RankLost("rank " + std::to_string(r) + " was told to do something else than rank 0", "",
                   "the ranks no longer do the same, which is a fault of the engine: start it again");
  }
  for (int32_t r = 0; r < ranks(); ++r) {
    Standing& standing = all[static_cast<size_t>(r)];
    if (standing.failed == 0) continue;
    standing.failure.back() = '\0';
    const std::string said = standing.failure.data();
    return r == rank() ? said : "rank " + std::to_string(r) + ": " + said;
  }
  return {};
}

}  // namespace spark::engine
