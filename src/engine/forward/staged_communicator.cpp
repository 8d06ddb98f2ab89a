#include "engine/forward/staged_communicator.h"

namespace spark::engine {

// Whether `inner` works on the arrays where they are. One rank alone exchanges nothing and waits for nothing.
bool StagedCommunicator::passes() {
  if (!staged_ && inner_.ranks() > 1) backend_.finish();
  return !staged_;
}

void StagedCommunicator::sum_rows(uint16_t* x, int32_t rows, int32_t cols) {
  if (passes()) return inner_.sum_rows(x, rows, cols);
  rows_.resize(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  const size_t bytes = rows_.size() * sizeof(uint16_t);
  backend_.download(rows_.data(), x, bytes);
  inner_.sum_rows(rows_.data(), rows, cols);
  backend_.upload(x, rows_.data(), bytes);
}

void StagedCommunicator::sum_own_rows(uint16_t* x, int32_t rows, int32_t cols) {
  if (passes()) return inner_.sum_own_rows(x, rows, cols);
  const auto width = static_cast<size_t>(cols);
  rows_.resize(static_cast<size_t>(rows) * width);
  backend_.download(rows_.data(), x, rows_.size() * sizeof(uint16_t));
  inner_.sum_own_rows(rows_.data(), rows, cols);
  const RowRange own = own_rows(rows, rank(), ranks());
  const size_t first = static_cast<size_t>(own.first) * width;
  backend_.upload(x + first, rows_.data() + first, static_cast<size_t>(own.rows) * width * sizeof(uint16_t));
}

void StagedCommunicator::sum_partials(const PartialSums& args) {
  if (inner_.ranks() == 1 && backend_.host_memory()) {
    return backend_.round_partials(
        {.rows = args.rows, .terms = args.terms, .cols = args.cols, .x = args.x, .y = args.y});
  }
  if (!stages_partials_) {
    backend_.finish();
    return inner_.sum_partials(args);
  }
  const auto width = static_cast<size_t>(args.cols);
  rows_.resize(static_cast<size_t>(args.rows) * width);
  partials_.resize(rows_.size() * static_cast<size_t>(args.terms));
  backend_.download(partials_.data(), args.x, partials_.size() * sizeof(double));
  PartialSums host = args;
  host.x = partials_.data();
  host.y = rows_.data();
  inner_.sum_partials(host);
  const RowRange own = args.own_rows_only ? own_rows(args.rows, rank(), ranks()) : RowRange{0, args.rows};
  const size_t first = static_cast<size_t>(own.first) * width;
  backend_.upload(args.y + first, rows_.data() + first,
                  static_cast<size_t>(own.rows) * width * sizeof(uint16_t));
}

void StagedCommunicator::gather_rows(std::span<const SpreadRows> arrays, int32_t rows) {
  if (passes()) return inner_.gather_rows(arrays, rows);
  const RowRange own = own_rows(rows, rank(), ranks());
  for (const SpreadRows& array : arrays) {
    const auto row_bytes = static_cast<size_t>(array.row_bytes);
    const size_t first = static_cast<size_t>(own.first) * row_bytes;
    all_.resize(static_cast<size_t>(rows) * row_bytes);
    backend_.download(all_.data() + first, static_cast<const uint8_t*>(array.rows) + first,
                      static_cast<size_t>(own.rows) * row_bytes);
    const SpreadRows host{all_.data(), array.row_bytes};
    inner_.gather_rows({&host, 1}, rows);
    backend_.upload(array.rows, all_.data(), all_.size());
  }
}

void StagedCommunicator::gather_columns(const GatherColumns& args) {
  if (passes()) return inner_.gather_columns(args);
  const auto row_bytes = static_cast<size_t>(args.rows) * static_cast<size_t>(args.element_bytes);
  part_.resize(row_bytes * static_cast<size_t>(args.part_cols));
  backend_.download(part_.data(), args.part, part_.size());
  const bool receives = !args.first_rank_only || rank() == 0;
  if (receives) all_.resize(row_bytes * static_cast<size_t>(args.all_cols));
  GatherColumns host = args;
  host.part = part_.data();
  host.all = receives ? all_.data() : nullptr;
  inner_.gather_columns(host);
  if (receives) backend_.upload(args.all, all_.data(), all_.size());
}

}  // namespace spark::engine
