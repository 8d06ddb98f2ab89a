#include "engine/checkpoint/row_reader.h"

#include "common/error.h"
#include "engine/checkpoint/fault_list.h"

namespace spark::engine {

RowReader::RowReader(std::shared_ptr<const RandomAccessFile> file, const StoredTensor& entry)
    : file_(std::move(file)), name_(entry.name), dtype_(entry.dtype), offset_(entry.offset) {
  if (entry.shape.size() != 2) {
    throw Error(
        "tensor " + quote_name(name_) + " of shape " + format_shape(entry.shape) + " is no table of rows",
        file_->path());
  }
  rows_ = entry.shape[0];
  row_bytes_ = static_cast<size_t>(entry.shape[1]) * model::dtype_bytes(dtype_);
}

uint64_t RowReader::row_offset(int64_t row) const {
  if (row < 0 || row >= rows_) {
    throw Error("row " + std::to_string(row) + " was asked of tensor " + quote_name(name_) + ", which has " +
                    std::to_string(rows_),
                file_->path());
  }
  return offset_ + static_cast<uint64_t>(row) * row_bytes_;
}

void RowReader::read(int64_t row, std::span<uint8_t> out) const {
  SPARK_CHECK(out.size() == row_bytes_);
  file_->read(row_offset(row), out);
}

void RowReader::read_rows(std::span<const int64_t> rows, std::span<uint8_t> out) const {
  SPARK_CHECK(out.size() == rows.size() * row_bytes_);
  for (size_t i = 0; i < rows.size(); ++i) read(rows[i], out.subspan(i * row_bytes_, row_bytes_));
}

}  // namespace spark::engine
