// Rows of a 2-D tensor, read from disk one by one: the Engram tables have 384 million rows in files of 101 GB
// each, of which a token needs a few.
//
//   const RowReader table = checkpoint.rows("layers.1.engram.embed.weight");  // 256 bytes a row
//   std::vector<uint8_t> bytes(ids.size() * table.row_bytes());
//   table.read_rows(ids, bytes);                                              // bytes of ids[0], ids[1], ...
//
// Nothing is mapped or cached here beyond the kernel's page cache. Several threads may read at once; the file
// stays open as long as a reader of it exists. A row outside the table and a short or failed read are Errors
// that name file and tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/checkpoint/random_access_file.h"
#include "engine/checkpoint/safetensors_header.h"

namespace spark::engine {

class RowReader {
 public:
  // Throws Error when the tensor is not two-dimensional.
  RowReader(std::shared_ptr<const RandomAccessFile> file, const StoredTensor& entry);

  int64_t rows() const { return rows_; }
  size_t row_bytes() const { return row_bytes_; }
  model::Dtype dtype() const { return dtype_; }
  const std::string& path() const { return file_->path(); }

  // For readers with their own I/O: the file (owned by this object) and the place of a row in it.
  const RandomAccessFile& file() const { return *file_; }
  uint64_t row_offset(int64_t row) const;

  void read(int64_t row, std::span<uint8_t> out) const;  // out.size() == row_bytes()
  void read_rows(std::span<const int64_t> rows, std::span<uint8_t> out) const;

 private:
  std::shared_ptr<const RandomAccessFile> file_;
  std::string name_;
  model::Dtype dtype_;
  uint64_t offset_;
  int64_t rows_;
  size_t row_bytes_;
};

}  // namespace spark::engine
